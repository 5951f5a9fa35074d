"""One episode as a state machine over tokens: what is forced, what is sampled, when the context is compacted.

Owned here: the spans and segments of an episode, one author per token. The policy is outside: ``lockstep`` feeds in
what the model sampled, ``warm`` what a demonstrator wrote, both through the same door, so that a demonstration has
exactly the form of a rollout.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import numpy as np

from glmgym.settings import Settings
from glmgym.trajectory import Outcome, Reward, Segment, SegmentEnd, Span, SpanKind, Stop, Trajectory
from glmgym_trainers.proving.words import END, HANDOVER, RESUME, SUM, decode


@dataclass(frozen=True, slots=True)
class Reply:
    """What the game says to an action. A reward ends the episode and can be given only once."""

    observation: list[int] = field(default_factory=list)
    reward: float | None = None
    stop: Stop = Stop.DONE


class Game(Protocol):
    """One task, used once. Opening and observations end with the word that hands over to the policy."""

    family: str
    max_action: int  # tokens, END included; a longer action is cut there

    def opening(self) -> list[int]: ...

    def reply(self, action: list[int]) -> Reply: ...

    def demonstrate(self, random: Random) -> list[int]:
        """The next action of a demonstrator, which may be set up to err."""
        ...

    def demonstrate_summary(self, random: Random) -> list[int]: ...


class GameRules(Settings):
    """What a kind of game is made from: all its numbers. Its ``repr`` is part of the key of what was trained on it."""

    def deal(self, random: Random) -> Game:
        """A new game, drawn from ``random``."""
        raise NotImplementedError


Games = tuple[GameRules, ...]  # kinds of games that are dealt with equal chance


class Compaction(Settings):
    """When a context is cut (CompactionRL, equations 6-10). The task's own words stay in every context."""

    context: int  # tokens
    reserve: int  # a summary is asked for once fewer tokens than this remain
    keep_pairs: int = 1  # latest actions kept with their observations
    max_compactions: int = 3
    max_summary: int = 9  # tokens, END included


def deal(games: Games, random: Random) -> Game:
    """A game of one of the kinds."""
    return games[random.randrange(len(games))].deal(random)


class Episode:
    """Tokens in, a trajectory out. ``queue`` holds tokens to be fed before the policy may sample
    again; ``summarising`` is true while a summary is due.

    ``window_closed`` says that this context is over; ``next_window`` opens the following one where there is one.
    """

    def __init__(self, id: str, game: Game, compaction: Compaction | None = None, *, group_id: str = "") -> None:
        self.id = id
        self.game = game
        self.queue: deque[int] = deque()
        self.window_closed = False
        self.outcome: Outcome | None = None
        self._group_id = group_id
        self._compaction = compaction
        self._segments: list[Segment] = []
        self._spans: list[Span] = []
        self._pairs: list[tuple[list[int], list[int]]] = []  # actions and their observations, all contexts
        self._tokens: list[int] = []  # being sampled
        self._logprobs: list[float] = []
        self.summarising = False
        self._opening = game.opening()
        self._force(SpanKind.PROMPT, self._opening)

    def take(self, token: int, logprob: float, *, version: int) -> None:
        """The policy sampled ``token``. Only while the queue is empty and the window is open."""
        if self.queue or self.window_closed:
            raise ValueError(f"episode {self.id}: a token came while {'others wait' if self.queue else 'it is over'}")
        self._tokens.append(token)
        self._logprobs.append(logprob)
        limit = self._limits().max_summary if self.summarising else self.game.max_action
        if token == END or len(self._tokens) == limit:
            self._end_turn(version)

    def next_window(self) -> bool:
        """Open the context that follows a compaction; False when the episode is over."""
        if self.outcome is not None:
            return False
        limits, summary = self._limits(), self._segments[-1].spans[-1]
        self.window_closed, self._spans = False, []
        self._force(SpanKind.PROMPT, [*self._opening[:-1], RESUME])
        self._force(SpanKind.CARRIED, summary.token_ids.tolist())
        self._force(SpanKind.PROMPT, [HANDOVER])
        for action, observation in self._pairs[-limits.keep_pairs :] if limits.keep_pairs else []:
            self._force(SpanKind.CARRIED, action)
            self._force(SpanKind.OBSERVATION, observation)
        return True

    def trajectory(self) -> Trajectory:
        """The record of a finished episode."""
        assert self.outcome is not None
        return Trajectory(
            id=self.id,
            task_id=decode(self._opening),
            env_id="proving-ground",
            segments=tuple(self._segments),
            outcome=self.outcome,
            group_id=self._group_id,
            family=self.game.family,
            domain=self.game.family,
        )

    def _end_turn(self, version: int) -> None:
        tokens, logprobs = self._tokens, self._logprobs
        self._tokens, self._logprobs = [], []
        kind = SpanKind.SUMMARY if self.summarising else SpanKind.ACTION
        columns = np.array(logprobs, np.float32), np.full(len(tokens), version, np.int32)
        self._spans.append(Span(kind, np.array(tokens, np.int32), *columns))
        if self.summarising:
            self.summarising = False
            self._close(SegmentEnd.COMPACTED)
            return
        reply = self.game.reply(tokens)
        if reply.reward is not None:
            self.outcome = Outcome(reply.stop, (Reward("success", reply.reward),))
            self._close(SegmentEnd.END)
            return
        self._pairs.append((tokens, reply.observation))
        self._force(SpanKind.OBSERVATION, reply.observation)
        if self._must_compact():
            self._force(SpanKind.PROMPT, [SUM])
            self.summarising = True

    def _must_compact(self) -> bool:
        limits = self._compaction
        if limits is None or len(self._segments) == limits.max_compactions:
            return False
        return limits.context - sum(len(span) for span in self._spans) < limits.reserve

    def _limits(self) -> Compaction:
        assert self._compaction is not None
        return self._compaction

    def _force(self, kind: SpanKind, tokens: list[int]) -> None:
        self._spans.append(Span(kind, np.array(tokens, np.int32)))
        self.queue.extend(tokens)

    def _close(self, ended_by: SegmentEnd) -> None:
        self._segments.append(Segment(tuple(self._spans), ended_by))
        self.window_closed = True


def demonstration(game: Game, random: Random, compaction: Compaction | None = None) -> Trajectory:
    """The episode that the game's demonstrator plays; its log-probs are 0, for nobody sampled it."""
    episode = Episode("demonstration", game, compaction)
    while True:
        episode.queue.clear()
        turn = game.demonstrate_summary(random) if episode.summarising else game.demonstrate(random)
        for token in turn:
            episode.take(token, 0.0, version=0)
        if episode.window_closed and not episode.next_window():
            return episode.trajectory()

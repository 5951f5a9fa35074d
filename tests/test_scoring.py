"""Laws of teachers' scores: about the right tokens, by the right teacher, once each, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from episodes import TOKENIZER
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_glm import trajectory

from glmgym.chat import Tokenizer
from glmgym.engine import TopScores
from glmgym.engines import SCORING, Fault, ScriptedEngine, script_logprobs
from glmgym.errors import ConfigError, EngineFailure
from glmgym.scoring import Scored, Teacher, Teachers, Vocabulary, check_same_tokenizer
from glmgym.trajectory import Failure, Outcome, Stop, Trajectory

TOKENIZER_FILE = Path(__file__).parents[1] / "trainers" / "glmgym_trainers" / "assets" / "tokenizer" / "tokenizer.json"
TIMEOUT_S = 10.0


class NotedScorer(ScriptedEngine):
    """Keeps every request, and how many ran at once. While ``gate`` is closed, none is answered."""

    def __init__(self, **options: Any) -> None:
        super().__init__([], **options)
        self.requests: list[tuple[list[int], int, float]] = []
        self.running = self.most_running = self.cancelled = 0
        self.is_closed = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
        self.requests.append((list(token_ids), k, temperature))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            return await super().score_top(token_ids, k, temperature=temperature)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.is_closed = True
        await super().close()


def of(id: str, domain: str = "terminal", patterns: Sequence[str] = ("ppaaooaa",), seed: int = 0) -> Trajectory:
    return replace(trajectory(id, patterns, seed=seed), domain=domain)


def teachers_of(scorers: dict[str, ScriptedEngine], **options: Any) -> Teachers:
    """A teacher called like its domain, in capitals, for each."""
    routes = {domain: Teacher(domain.upper(), scorer, TOKENIZER) for domain, scorer in scorers.items()}
    return Teachers(routes, student=TOKENIZER, **options)


async def scores_of(teachers: Teachers, batch: Sequence[Trajectory]) -> Scored:
    return await asyncio.wait_for(teachers.scores(batch), TIMEOUT_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - the scorers tell nobody
            await asyncio.sleep(0.001)


# Which token a number is about.


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_entry_p_is_about_token_p(temperature: float) -> None:
    """O6: a scripted log-prob is a code of its token and position, so that any shift by one shows at every entry."""
    teachers = teachers_of({"terminal": ScriptedEngine([])}, temperature=temperature, top_k=3)
    segment = of("t1").segments[0]
    score = (await scores_of(teachers, [of("t1")])).scores["t1", 0]
    every = await ScriptedEngine([]).score_top(segment.token_ids.tolist(), -1, temperature=temperature)
    assert len(score.logprobs) == len(segment) == 8
    assert score.top_ids is not None
    assert score.top_logprobs is not None
    for p in range(1, 8):
        assert score.logprobs[p] == script_logprobs([int(segment.token_ids[p])], p, temperature)[0]
        assert score.top_ids[p].tolist() == every.top_ids[p - 1, :3].tolist()
        assert score.top_logprobs[p].tolist() == every.top_logprobs[p - 1, :3].tolist()
        assert [score.top_logprobs[p][0]] == script_logprobs([int(score.top_ids[p][0])], p, temperature).tolist()
    assert score.teacher == "TERMINAL"


@pytest.mark.parametrize(("top_k", "width"), [(0, None), (1, 1), (64, 64), (65, 64), (-1, 64)])
async def test_as_many_likeliest_tokens_as_asked_for_and_there_are(top_k: int, width: int | None) -> None:
    score = (await scores_of(teachers_of({"terminal": NotedScorer()}, top_k=top_k), [of("t1")])).scores["t1", 0]
    assert (None if score.top_ids is None else score.top_ids.shape) == (None if width is None else (8, width))
    assert (score.top_ids is None) == (score.top_logprobs is None)


async def test_a_teacher_is_asked_at_the_student_s_temperature() -> None:
    """O6: teacher and student are tempered alike, or two equal models would differ."""
    scorer = NotedScorer()
    await scores_of(teachers_of({"terminal": scorer}, temperature=0.7, top_k=5), [of("t1")])
    assert scorer.requests == [(of("t1").segments[0].token_ids.tolist(), 5, 0.7)]


async def test_what_a_teacher_excludes_stays_excluded() -> None:
    """-inf is an answer (a masked vocabulary), not a number to be invented here; NaN and positive ones are none."""

    class Masking(ScriptedEngine):
        async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
            whole = await super().score_top(token_ids, k, temperature=temperature)
            return replace(whole, logprobs=np.where(np.arange(7) == 2, odd, whole.logprobs).astype(np.float32))

    for odd, is_scored in ((-math.inf, True), (math.nan, False), (1e-3, False), (5e-5, True)):
        scored = await scores_of(teachers_of({"terminal": Masking([])}), [of("t1")])
        assert (("t1", 0) in scored.scores) == is_scored, odd
        if is_scored:
            assert scored.scores["t1", 0].logprobs[3] == np.float32(odd)
        else:
            assert "positive or not a number" in scored.failures["t1"].message


# Who scores what.


async def test_each_domain_goes_to_its_own_teacher() -> None:
    scorers = {"terminal": NotedScorer(), "reasoning": NotedScorer()}
    batch = [of("t1"), of("t2", "reasoning"), of("t3")]
    scored = await scores_of(teachers_of(scorers), batch)
    assert {key: score.teacher for key, score in scored.scores.items()} == {
        ("t1", 0): "TERMINAL",
        ("t2", 0): "REASONING",
        ("t3", 0): "TERMINAL",
    }
    assert (len(scorers["terminal"].requests), len(scorers["reasoning"].requests)) == (2, 1)


@pytest.mark.parametrize(("domain", "words"), [("general", "the domain 'general'"), ("", "no domain")])
async def test_an_unrouted_domain_raises_and_has_no_default(domain: str, words: str) -> None:
    """O6: with a single teacher too; the message names the domain and those that are routed."""
    scorer = NotedScorer()
    teachers = teachers_of({"terminal": scorer})
    for ask in (teachers.route, teachers.submit):
        with pytest.raises(ConfigError, match=f"task-0 of pictured-v0 has {words}.*they know 'terminal'"):
            ask(of("t1", domain))
    with pytest.raises(ConfigError, match=words):
        await teachers.scores([of("t1", domain)])
    assert scorer.requests == []


def test_no_route_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="no teacher is routed"):
        Teachers({}, student=TOKENIZER)


async def test_only_what_can_be_learned_from_is_scored() -> None:
    """Neither a failed attempt, nor one that sampled nothing, nor a segment of it that sampled nothing."""
    scorer = NotedScorer()
    failed = replace(of("t1"), outcome=Outcome(Stop.FAILED, failure=Failure("env", "E", "gone")))
    batch = [failed, of("t2", patterns=["ppp"]), of("t3", patterns=["ppa", "pp", "pppaa"])]
    teachers = teachers_of({"terminal": scorer})
    for each in batch:
        teachers.submit(each)
    scored = await scores_of(teachers, batch)
    assert set(scored.scores) == {("t3", 0), ("t3", 2)}
    assert (scored.failures, [len(ids) for ids, _, _ in scorer.requests]) == ({}, [3, 5])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["terminal", "reasoning"]),
            st.lists(st.from_regex(r"p[pao]{0,6}", fullmatch=True), min_size=1, max_size=3),
        ),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_a_batch_gets_the_scores_of_its_sampled_segments_and_no_others(
    drawn: list[tuple[str, list[str]]], random: Any
) -> None:
    """However much of it was submitted before, in whatever order."""

    async def check() -> None:
        teachers = teachers_of({"terminal": NotedScorer(), "reasoning": NotedScorer()}, max_running=2)
        everyone = [of(f"t{n}", domain, patterns, n) for n, (domain, patterns) in enumerate(drawn)]
        for each in random.sample(everyone, random.randint(0, len(everyone))):
            teachers.submit(each)
        batch = random.sample(everyone, random.randint(0, len(everyone)))
        scored = await scores_of(teachers, batch)
        expected = {(t.id, i): s for t in batch for i, s in enumerate(t.segments) if s.num_sampled}
        assert scored.scores.keys() == expected.keys()
        for key, segment in expected.items():
            np.testing.assert_array_equal(scored.scores[key].logprobs[1:], script_logprobs(segment.token_ids[1:], 1))
        await teachers.close()

    asyncio.run(check())


# Tokenizers.


@dataclass
class Pieces:
    pieces: tuple[bytes, ...]

    @property
    def sha256(self) -> str:
        return str(hash(self.pieces))


def test_tokenizers_are_compared_by_what_ids_stand_for() -> None:
    """O6: not by name, file or size. Swapping the ids of two pieces of the real tokenizer changes neither of these."""
    text = TOKENIZER_FILE.read_text()
    check_same_tokenizer(TOKENIZER, Tokenizer(tokenizers.Tokenizer.from_str(text)), name="copy")
    spec = json.loads(text)
    vocab = spec["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    first = min(vocab["a"], vocab["b"])
    other = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(spec)))
    assert other.vocab_size == TOKENIZER.vocab_size
    with pytest.raises(ConfigError, match=rf"'expert' .*id {first} is b'[ab]' there and b'[ab]' for the student"):
        check_same_tokenizer(TOKENIZER, other, name="expert")
    with pytest.raises(ConfigError, match="'expert'"):
        Teachers({"terminal": Teacher("expert", ScriptedEngine([]), other)}, student=TOKENIZER)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ((b"a", b"b"), ""),
        ((b"a", b"c"), r"id 1 is b'c' there and b'b' for the student"),
        ((b"a", b"b", b"c"), "it has 3 ids, the student 2"),
        ((b"a",), "it has 1 ids, the student 2"),
    ],
)
def test_the_first_difference_is_named(theirs: tuple[bytes, ...], message: str) -> None:
    student: Vocabulary = Pieces((b"a", b"b"))
    if not message:
        check_same_tokenizer(student, Pieces(theirs), name="x")
        return
    with pytest.raises(ConfigError, match=message):
        check_same_tokenizer(student, Pieces(theirs), name="x")


# Many at once.


async def test_teachers_work_at_once_and_each_within_its_bound() -> None:
    """Two a teacher: four run together, and the slow teacher does not hold the other's trajectories back."""
    slow, fast = NotedScorer(), NotedScorer()
    teachers = teachers_of({"terminal": slow, "reasoning": fast}, max_running=2)
    slow.gate.clear()
    fast.gate.clear()
    batch = [of(f"t{n}", ("terminal", "reasoning")[n % 2]) for n in range(12)]
    for each in batch:
        teachers.submit(each)
    await until(lambda: slow.running + fast.running == 4)
    fast.gate.set()
    reasoning = await scores_of(teachers, batch[1::2])
    assert (len(reasoning.scores), slow.running, len(slow.requests)) == (6, 2, 2)
    slow.gate.set()
    assert len((await scores_of(teachers, batch[::2])).scores) == 6
    assert (slow.most_running, fast.most_running) == (2, 2)


async def test_scores_that_come_out_of_order_find_their_trajectories() -> None:
    """The longer the text (4 to 7 tokens), the later its answer: t0 was submitted first and is answered last."""
    answered: list[int] = []

    class Slow(ScriptedEngine):
        async def score_top(self, token_ids: Sequence[int], k: int, *, temperature: float = 1.0) -> TopScores:
            await until(lambda: len(answered) == len(token_ids) - 4)
            answered.append(len(token_ids))
            return await super().score_top(token_ids, k, temperature=temperature)

    batch = [of(f"t{n}", patterns=["p" * (6 - n) + "a"], seed=n) for n in range(4)]
    teachers = teachers_of({"terminal": Slow([])}, max_running=4)
    for each in batch:
        teachers.submit(each)
    scored = await scores_of(teachers, batch)
    assert answered == [4, 5, 6, 7]
    for each in batch:
        ids = each.segments[0].token_ids
        np.testing.assert_array_equal(scored.scores[each.id, 0].logprobs[1:], script_logprobs(ids[1:], 1))


async def test_a_trajectory_is_scored_once_and_handed_over_once() -> None:
    scorer = NotedScorer()
    teachers = teachers_of({"terminal": scorer})
    for _ in range(3):
        teachers.submit(of("t1"))
    assert teachers.held == {"t1"}
    await scores_of(teachers, [of("t1")])
    assert (len(scorer.requests), teachers.held) == (1, set())
    await scores_of(teachers, [of("t1")])
    assert len(scorer.requests) == 2


async def test_what_nobody_submitted_is_scored_when_it_is_taken() -> None:
    """A resumed run takes trajectories that ended in the run before it."""
    teachers = teachers_of({"terminal": ScriptedEngine([])})
    teachers.submit(of("t2"))
    assert set((await scores_of(teachers, [of("t1"), of("t2")])).scores) == {("t1", 0), ("t2", 0)}
    assert (await scores_of(teachers, [])).scores == {}


async def test_a_caller_that_is_cancelled_may_come_back() -> None:
    """The work goes on meanwhile: it is not asked for again."""
    scorer = NotedScorer()
    scorer.gate.clear()
    teachers = teachers_of({"terminal": scorer})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(teachers.scores([of("t1")]), 0.01)
    scorer.gate.set()
    assert len((await scores_of(teachers, [of("t1")])).scores) == 1
    assert (len(scorer.requests), scorer.cancelled) == (1, 0)


# What is not needed, and what breaks.


async def test_what_is_forgotten_stops_and_leaves_nothing() -> None:
    """A trajectory that grew too old: its request ends, waiting ones never start, its neighbours go on."""
    scorer = NotedScorer()
    scorer.gate.clear()
    teachers = teachers_of({"terminal": scorer}, max_running=1)
    for name in ("t1", "t2", "t3"):
        teachers.submit(of(name))
    await until(lambda: scorer.running == 1)
    teachers.forget(["t1", "t2", "unknown"])
    assert teachers.held == {"t3"}
    scorer.gate.set()
    assert set((await scores_of(teachers, [of("t3")])).scores) == {("t3", 0)}
    assert (scorer.cancelled, len(scorer.requests)) == (1, 2)
    teachers.submit(of("t4"))
    await until(lambda: scorer.running == 0 and len(scorer.requests) == 3)
    teachers.forget(["t4"])  # scored already, never fetched
    assert teachers.held == set()


async def test_closing_ends_everything() -> None:
    before = asyncio.all_tasks()
    scorers = {"terminal": NotedScorer(), "reasoning": NotedScorer()}
    scorers["terminal"].gate.clear()
    teachers = teachers_of(scorers, max_running=2)
    for number in range(6):
        teachers.submit(of(f"t{number}"))
    waiting = asyncio.ensure_future(teachers.scores([of("t0")]))
    await until(lambda: scorers["terminal"].running == 2)
    await asyncio.wait_for(teachers.close(), TIMEOUT_S)
    with pytest.raises(EngineFailure, match="closed"):
        await asyncio.wait_for(waiting, TIMEOUT_S)
    assert asyncio.all_tasks() == before
    assert (scorers["terminal"].running, scorers["terminal"].is_closed, scorers["reasoning"].is_closed) == (
        0,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("faults", "requests", "message"),
    [
        ([], 1, ""),
        ([Fault.CRASH], 2, ""),
        ([Fault.CRASH, Fault.CRASH], 2, "scripted crash in scoring request 1"),
        ([Fault.EXTRA_LOGPROB], 1, r"\(8,\), \(7, 0\)"),  # will not pass: not asked again
    ],
)
async def test_a_failure_is_tried_once_more_and_then_is_no_score(
    faults: list[Fault], requests: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Never a log-prob of 0 in its place; the neighbour in the same batch has its score."""
    asked: list[int] = []

    def fault(session: str, turn: int) -> Fault | None:
        assert session == SCORING
        asked.append(turn)
        return faults[turn] if turn < len(faults) else None

    teachers = teachers_of({"terminal": ScriptedEngine([], fault=fault), "reasoning": ScriptedEngine([])})
    with caplog.at_level(logging.WARNING, "glmgym.scoring"):
        scored = await scores_of(teachers, [of("t1"), of("t2", "reasoning")])
    assert len(asked) == requests
    assert ("t2", 0) in scored.scores
    assert ("t1", 0) in scored.scores if not message else ("t1", 0) not in scored.scores
    assert set(scored.failures) == ({"t1"} if message else set())
    if message:
        assert scored.failures["t1"].origin == "engine"
        assert re.search(message, scored.failures["t1"].message)
        assert "rollout t1: teacher TERMINAL failed" in caplog.text


async def test_a_text_that_no_teacher_can_hold_is_not_asked_for_twice() -> None:
    scorer = NotedScorer(context_length=7)
    scored = await scores_of(teachers_of({"terminal": scorer}), [of("t1"), of("t2", patterns=["pppppaa"])])
    assert set(scored.scores) == {("t2", 0)}
    assert (len(scorer.requests), scored.failures["t1"].retryable) == (2, False)
    assert "8 tokens to score do not fit the context of 7" in scored.failures["t1"].message


async def test_a_trajectory_has_all_its_scores_or_none() -> None:
    """Its second segment fails twice: the first one's score must not be trained alone."""
    answers = iter([None, Fault.CRASH, None, Fault.CRASH])
    scorer = ScriptedEngine([], fault=lambda *_: next(answers))
    scored = await scores_of(teachers_of({"terminal": scorer}), [of("t1", patterns=["ppa", "ppaa"])])
    assert (scored.scores, set(scored.failures)) == ({}, {"t1"})


async def test_a_teacher_that_says_nothing_is_a_failure() -> None:
    scorer = ScriptedEngine([], fault=lambda *_: Fault.STALL)
    scored = await scores_of(teachers_of({"terminal": scorer}, timeout_s=0.01), [of("t1")])
    assert scored.failures["t1"].type == "TimeoutError"
    assert scored.failures["t1"].message.startswith("teacher TERMINAL on t1 segment 0")

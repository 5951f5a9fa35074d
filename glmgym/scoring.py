"""What teachers say about the tokens a student sampled: the record, who scores which trajectory, and when.

Owned here: the route from a trajectory's domain to its one teacher, and the alignment of a prefill's log-probs with the
tokens they are about. Scoring runs beside the rollouts: a trajectory is submitted as it ends, and its scores are there,
as a rule, when the trainer takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from glmgym.engine import Scorer, TopScores
from glmgym.errors import BoundaryFailure, CaptureError, ConfigError, EngineFailure, boundary
from glmgym.trajectory import ROUNDING_NATS, Failure, Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class TeacherScore:
    """One teacher's view of one segment, aligned with its tokens: entry p is about token p given all before it.

    Entry 0 has no prefix and means nothing. Log-probs are over the whole vocabulary, at the temperature the student
    sampled with, in nats; -inf where the teacher excludes the token.
    """

    teacher: str
    logprobs: NDArray[np.float32]  # [T]
    top_ids: NDArray[np.int32] | None = None  # [T, k] the teacher's likeliest tokens, likeliest first
    top_logprobs: NDArray[np.float32] | None = None  # [T, k]


class Vocabulary(Protocol):
    """What makes two tokenizers the same: the bytes that each id stands for. A ``Tokenizer`` is one."""

    @property
    def pieces(self) -> tuple[bytes, ...]: ...

    @property
    def sha256(self) -> str:
        """Of ``pieces``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """A frozen model and the name that reports know it by."""

    name: str
    scorer: Scorer
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a batch by trajectory id and segment index; by id what made a trajectory go without.

    A trajectory has the scores of all its segments that hold a sampled token, or a failure.
    """

    scores: Mapping[tuple[str, int], TeacherScore]
    failures: Mapping[str, Failure]


class Teachers:
    """Scores each trajectory with the teacher of its domain, several at once and in any order.

    Used from one event loop. Failed trajectories and those without a sampled token are nothing to learn from and are
    not scored. A failure that may pass is tried once more; what fails then has no score, and must not be trained.

    Args:
        routes: domain -> teacher. Several domains may share one.
        student: the vocabulary of the policy that is taught.
        temperature: what the student samples with; the teacher's distribution is tempered alike.
        top_k: of the teacher's likeliest tokens to keep; 0 for none, -1 for the whole vocabulary.
        max_running: texts that one teacher is asked about at once.
        timeout_s: how long one text may take.

    Raises:
        ConfigError: there is no route, or a teacher's tokenizer is not the student's.
    """

    def __init__(
        self,
        routes: Mapping[str, Teacher],
        *,
        student: Vocabulary,
        temperature: float = 1.0,
        top_k: int = 0,
        max_running: int = 4,
        timeout_s: float = 600.0,
    ) -> None:
        if not routes:
            raise ConfigError('no teacher is routed: give [teachers] routes, such as {terminal = "runs/expert"}')
        self._routes = dict(routes)
        self._temperature, self._top_k, self._timeout_s = temperature, top_k, timeout_s
        self._room = {teacher: asyncio.Semaphore(max_running) for teacher in self._routes.values()}
        self._work: dict[str, asyncio.Task[dict[int, TeacherScore] | Failure]] = {}  # by trajectory id
        self._leaving: set[asyncio.Task[dict[int, TeacherScore] | Failure]] = set()  # cancelled, not yet ended
        for teacher in self._room:
            check_same_tokenizer(student, teacher.vocabulary, name=teacher.name)

    @property
    def held(self) -> set[str]:
        """Ids of the trajectories that were submitted and neither fetched nor forgotten."""
        return set(self._work)

    def route(self, trajectory: Trajectory) -> Teacher:
        """The one teacher of a trajectory.

        Raises:
            ConfigError: no route for its domain; there is no default.
        """
        teacher = self._routes.get(trajectory.domain)
        if teacher is None:
            what = f"the domain {trajectory.domain!r}" if trajectory.domain else "no domain"
            raise ConfigError(
                f"task {trajectory.task_id} of {trajectory.env_id} has {what}, for which [teachers] routes name no "
                f"teacher; they know {', '.join(map(repr, sorted(self._routes)))}: add a route, or give the "
                "task such a domain"
            )
        return teacher

    def submit(self, trajectory: Trajectory) -> None:
        """Begin to score a trajectory that ended; nothing happens if that began already.

        Raises:
            ConfigError: no route for its domain.
        """
        if trajectory.id in self._work or not (trajectory.outcome.is_valid and trajectory.num_sampled):
            return
        teacher = self.route(trajectory)
        self._work[trajectory.id] = asyncio.ensure_future(self._try_twice(teacher, trajectory))

    async def scores(self, batch: Sequence[Trajectory]) -> Scored:
        """The scores of a batch, waiting for those under way and starting those that nobody submitted.

        They are handed over: a second call scores again. A caller that is cancelled may come back for them.

        Raises:
            ConfigError: no route for a domain.
            EngineFailure: the teachers were closed meanwhile.
        """
        for trajectory in batch:
            self.submit(trajectory)
        tasks = {each.id: self._work[each.id] for each in batch if each.id in self._work}
        if tasks:
            await asyncio.wait(tasks.values())
        scores: dict[tuple[str, int], TeacherScore] = {}
        failures: dict[str, Failure] = {}
        for id, task in tasks.items():
            self._work.pop(id, None)
            if task.cancelled():
                raise EngineFailure("the teachers were closed")
            result = task.result()
            if isinstance(result, Failure):
                failures[id] = result
            else:
                scores.update({(id, index): score for index, score in result.items()})
        return Scored(scores, failures)

    def forget(self, ids: Iterable[str]) -> None:
        """Drop trajectories that will not be trained; what is being computed for them is cancelled."""
        for id in ids:
            task = self._work.pop(id, None)
            if task is not None and task.cancel():
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Cancel what runs, wait for its end, and close every teacher."""
        self.forget(self.held)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for teacher in self._room:
            await teacher.scorer.close()

    async def _try_twice(self, teacher: Teacher, trajectory: Trajectory) -> dict[int, TeacherScore] | Failure:
        for _ in range(2):
            try:
                return {
                    index: await self._score(teacher, trajectory, index)
                    for index, segment in enumerate(trajectory.segments)
                    if segment.num_sampled
                }
            except BoundaryFailure as error:
                failure = Failure.of(error)
                if not error.retryable:
                    break
        logger.warning("rollout %s: teacher %s failed: %s", trajectory.id, teacher.name, failure.message)
        return failure

    async def _score(self, teacher: Teacher, trajectory: Trajectory, index: int) -> TeacherScore:
        ids = trajectory.segments[index].token_ids.tolist()
        what = f"teacher {teacher.name} on {trajectory.id} segment {index}"
        async with self._room[teacher]:
            with boundary(EngineFailure, what):
                async with asyncio.timeout(self._timeout_s):
                    found = await teacher.scorer.score_top(ids, self._top_k, temperature=self._temperature)
        return _aligned(found, len(ids), teacher.name, what)


def check_same_tokenizer(student: Vocabulary, teacher: Vocabulary, *, name: str) -> None:
    """Refuse a teacher whose ids stand for other bytes than the student's: its log-probs would be of other texts.

    Raises:
        ConfigError: they differ; names the first id that does.
    """
    if student.sha256 == teacher.sha256:
        return
    pairs = zip(student.pieces, teacher.pieces, strict=False)
    first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if first is None:
        where = f"it has {len(teacher.pieces)} ids, the student {len(student.pieces)}"
    else:
        where = f"id {first} is {teacher.pieces[first]!r} there and {student.pieces[first]!r} for the student"
    raise ConfigError(
        f"teacher {name!r} has another tokenizer than the student: {where} (sha256 of the id -> bytes map "
        f"{teacher.sha256[:12]} and {student.sha256[:12]}); learning token by token needs a teacher of the same base"
    )


def _aligned(found: TopScores, num_tokens: int, teacher: str, what: str) -> TeacherScore:
    """A prefill's answer moved to where its tokens are: entry t of [T-1] is about token t + 1.

    Raises:
        CaptureError: the answer is for another number of tokens, or not of log-probs.
    """
    if len(found.logprobs) != num_tokens - 1:
        raise CaptureError(f"{what}: {num_tokens} tokens came back with {len(found.logprobs)} log-probs")
    for logprobs in (found.logprobs, found.top_logprobs):
        if np.isnan(logprobs).any() or (logprobs > ROUNDING_NATS).any():
            raise CaptureError(f"{what}: a log-prob is positive or not a number")
    logprobs = np.insert(found.logprobs, 0, 0.0)
    if not found.top_ids.shape[1]:
        return TeacherScore(teacher, logprobs)
    return TeacherScore(
        teacher, logprobs, np.insert(found.top_ids, 0, 0, axis=0), np.insert(found.top_logprobs, 0, 0.0, axis=0)
    )

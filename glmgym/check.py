"""Proof that an environment is sound before anything is trained on it.

The oracle scores 1, doing nothing scores 0, each twice; a reset shows the same messages and the same files every time.
Episodes here are played on messages, without tokens or an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glmgym.env import Opening, Split, Task
from glmgym.episode import Episode
from glmgym.errors import BoundaryFailure, ConfigError, EnvFailure, boundary
from glmgym.messages import Message, assistant
from glmgym.registry import EnvSpec
from glmgym.sandbox import BoxSpec, Sandbox, SandboxProvider
from glmgym.trajectory import Reward

_LOOK_AHEAD = 64  # tasks looked through for different families
_TOLERANCE = 1e-6
MOST_TASKS = 5_000  # of a split whose tasks are all checked; a generator has more, and no end of them
_NOTHING: tuple[tuple[str, tuple[Message, ...]], ...] = (
    ("ending at once", ()),
    ("an empty answer", (assistant(""),)),
)


@dataclass(frozen=True, slots=True)
class Played:
    """What one scripted episode showed. ``files`` maps a path to a digest, as they were after reset."""

    opening: Opening
    messages: tuple[Message, ...]
    rewards: tuple[Reward, ...]
    files: dict[str, str]

    @property
    def total(self) -> float:
        return sum(reward.weight * reward.value for reward in self.rewards)

    @property
    def outcome(self) -> float:
        """What an evaluation would score: without shaping."""
        return sum(reward.weight * reward.value for reward in self.rewards if not reward.shaping)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """``problems`` are sentences; the environment is sound when there are none."""

    env_id: str
    task_ids: tuple[str, ...]
    episodes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def summary(self) -> str:
        """One line for people."""
        found = f"{len(self.problems)} problems" if self.problems else "sound"
        return f"{found}: {self.episodes} episodes on {len(self.task_ids)} tasks"


async def check(
    spec: EnvSpec,
    provider: SandboxProvider | None,
    *,
    tasks: int | None = 3,
    max_live: int = 1,
    on_checked: Callable[[Task], None] = lambda task: None,
) -> CheckReport:
    """Play the oracle and the do-nothing policies on tasks of each split.

    Args:
        provider: opens the boxes; may be ``None`` for environments registered without one.
        tasks: how many of each split, of as many different families as the first few dozen offer; ``None`` is all.
        max_live: tasks under way at once.
        on_checked: told each task that is through.

    Raises:
        ConfigError: the environment needs a box and there is no provider, ``tasks`` is below 1, or all of too many.
    """
    if tasks is not None and tasks < 1:
        raise ConfigError(f"check needs at least 1 task, got tasks={tasks}")
    if spec.box is not None and provider is None:
        raise ConfigError(f"{spec.id} needs a sandbox: give check() a provider")
    problems: list[str] = []
    if spec.oracle is None:
        problems.append(f"{spec.id} has no oracle, so nothing shows that its tasks can be solved; register one")
    picked, found = pick(spec, tasks)
    problems += found
    slots = asyncio.Semaphore(max_live)

    async def check_one(task: Task) -> tuple[int, list[str]]:
        async with slots:
            checked = await _check_task(spec, task, provider)
        on_checked(task)
        return checked

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(check_one(task)) for task in picked]
    results = [job.result() for job in jobs]
    problems += [problem for _, found in results for problem in found]
    return CheckReport(
        spec.id, tuple(task.id for task in picked), sum(played for played, _ in results), tuple(problems)
    )


def pick(spec: EnvSpec, tasks: int | None) -> tuple[list[Task], list[str]]:
    """The tasks to check, one that is in both splits once, and what is wrong with the splits.

    Raises:
        ConfigError: ``None`` for all, of a split that has too many.
    """
    picked: dict[str, Task] = {}
    problems: list[str] = []
    for split in ("train", "heldout"):
        size = spec.tasks.size(split)
        if tasks is None and size > MOST_TASKS:
            raise ConfigError(f"{spec.id} has {size:,} {split} tasks: say how many to check")
        chosen = list(range(size)) if tasks is None else _pick(spec, split, tasks)
        if not chosen:
            problems.append(f"{spec.id} has no {split} tasks: {spec.description}")
        for index in chosen:
            task = spec.tasks.task(split, index)
            if spec.tasks.task(split, index) != task:
                problems.append(
                    f"{task.id}: asking for the same task twice gives two different tasks; "
                    "draw only from the given generator"
                )
            picked[task.id] = task
    return list(picked.values()), problems


async def play(
    spec: EnvSpec, task: Task, replies: Sequence[Message], provider: SandboxProvider | None, *, list_files: bool = False
) -> Played:
    """One episode of fixed assistant turns, graded; replies after the end are not played.

    Raises:
        BoundaryFailure: the environment, its scorer or the sandbox broke.
    """
    box_spec = spec.box_of(task)
    async with Episode(spec, task, provider) as episode:
        opening = await episode.reset()
        files: dict[str, str] = {}
        if list_files and episode.box is not None and box_spec is not None:
            files = await _digest_files(episode.box, box_spec, opening)
        for reply in replies:
            step = await episode.step(reply)
            if step.terminated or step.truncated:
                break
        return Played(opening, tuple(episode.messages), await episode.score(), files)


async def _check_task(spec: EnvSpec, task: Task, provider: SandboxProvider | None) -> tuple[int, list[str]]:
    problems: list[str] = []
    seen: list[Played] = []
    try:
        for name, replies, expected in await asyncio.to_thread(_scripts, spec, task):
            if len(replies) > spec.max_turns:
                problems.append(f"{task.id}: {name} takes {len(replies)} turns, more than max_turns={spec.max_turns}")
            pair = [await play(spec, task, replies, provider, list_files=True) for _ in range(2)]
            seen += pair
            first, second = (episode.total for episode in pair)
            if abs(first - second) > _TOLERANCE:
                problems.append(f"{task.id}: {name} scored {first:g}, then {second:g} for the same turns")
            elif abs(pair[0].outcome - expected) > _TOLERANCE:
                problems.append(f"{task.id}: {name} scored {pair[0].outcome:g}, not {expected:g}")
    except BoundaryFailure as failure:
        problems.append(f"{task.id}: an episode broke ({failure.origin}): {failure}")
    except ConfigError as error:
        problems.append(f"{task.id}: {error}")
    return len(seen), problems + _reset_differences(task, seen)


def _scripts(spec: EnvSpec, task: Task) -> list[tuple[str, Sequence[Message], float]]:
    """Who plays, the assistant turns, and the score they must get."""
    scripts: list[tuple[str, Sequence[Message], float]] = []
    if spec.oracle is not None:
        with boundary(EnvFailure, "oracle"):
            scripts.append(("the oracle", spec.oracle(task), 1.0))
    return scripts + [(f"doing nothing ({name})", replies, 0.0) for name, replies in _NOTHING]


def _reset_differences(task: Task, episodes: Sequence[Played]) -> list[str]:
    if not episodes:
        return []
    first = episodes[0]
    problems: list[str] = []
    if any(episode.opening != first.opening for episode in episodes):
        problems.append(f"{task.id}: reset does not show the same messages and tools every time")
    changed = {path for episode in episodes for path, _ in episode.files.items() ^ first.files.items()}
    if changed:
        problems.append(f"{task.id}: reset does not leave the same files every time: {', '.join(sorted(changed)[:5])}")
    return problems


async def _digest_files(box: Sandbox, spec: BoxSpec, opening: Opening) -> dict[str, str]:
    """Digests of the regular files in the box's working directory; those of volatile files are left blank."""
    # Sorted, so that the part of a long listing that is kept is the same part every time.
    find = 'find "$0" -type f -exec sha256sum {} + | sort -k 2'
    listing = await box.run(["bash", "-c", find, spec.cwd])
    if listing.exit_code != 0:
        raise EnvFailure(f"the files after reset cannot be listed: {listing.text.strip()}")
    digests = {path: digest for digest, _, path in (line.partition("  ") for line in listing.text.splitlines())}
    return {path: "" if path in opening.volatile else digest for path, digest in digests.items()}


def _pick(spec: EnvSpec, split: Split, count: int) -> list[int]:
    """Indices of up to ``count`` tasks, one of each new family first."""
    indices = range(min(spec.tasks.size(split), max(count, _LOOK_AHEAD)))
    families: dict[str, int] = {}
    for index in indices:
        families.setdefault(spec.tasks.task(split, index).family, index)
    firsts = list(families.values())
    return (firsts + [index for index in indices if index not in firsts])[:count]

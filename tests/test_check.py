"""``check`` proves an environment, and ``init_env`` writes one that passes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glmgym import BoxSpec, Message, Opening, Reward, ScoreView, Task, ToolEnv, assistant, procedural
from glmgym.check import check
from glmgym.errors import ConfigError, SandboxDead
from glmgym.registry import EnvSpec, find_environment, load_file
from glmgym.sandbox import CommandResult, Sandbox
from glmgym.scaffold import init_env
from glmgym_sandboxes.fake import FakeProvider

_clock = itertools.count()


class Guess(ToolEnv):
    """Say the word."""

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("said", float(view.answer == self.task.data["word"])),)


class GivesItAway(Guess):
    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("said", 1.0),)


class Moody(Guess):
    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        return (Reward("said", float(next(_clock))),)


class Clock(Guess):
    def opening(self, task: Task) -> str:
        return f"{task.instruction} at {next(_clock)}"


class Broken(Guess):
    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        raise ZeroDivisionError("no grade")


def _make(rng: Any) -> Task:
    word = f"word{rng.randint(0, 999)}"
    return Task(instruction=f"Say {word}.", data={"word": word}, family=rng.choice(["a", "b", "c"]))


def _say(task: Task) -> Sequence[Message]:
    return [assistant(task.data["word"])]


def _spec(make: Callable[[], Any] = Guess, **changes: Any) -> EnvSpec:
    tasks = procedural(_make, train=20, heldout=20, name="guess")
    return replace(EnvSpec("guess-v0", make, tasks, oracle=_say), **changes)


async def test_a_sound_environment_has_no_problems() -> None:
    """3 tasks of 2 splits, each played by the oracle and by two do-nothing policies, twice: 36 episodes."""
    report = await check(_spec(), None)
    assert report.problems == ()
    assert report.ok
    assert report.summary == "sound: 36 episodes on 6 tasks"
    families = {_spec().tasks.task("train", int(id.rsplit("/", 1)[1])).family for id in report.task_ids[:3]}
    assert families == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (_spec(GivesItAway), "guess/train/0: doing nothing (ending at once) scored 1, not 0"),
        (_spec(GivesItAway), "guess/train/0: doing nothing (an empty answer) scored 1, not 0"),
        (_spec(oracle=lambda task: [assistant("no idea")]), "guess/train/0: the oracle scored 0, not 1"),
        (_spec(oracle=None), "guess-v0 has no oracle, so nothing shows that its tasks can be solved; register one"),
        (_spec(Clock), "guess/train/0: reset does not show the same messages and tools every time"),
        (_spec(Broken), "guess/train/0: an episode broke (scorer): score: ZeroDivisionError: no grade"),
        (_spec(oracle=lambda task: 1 // 0), "ZeroDivisionError"),
        (_spec(max_turns=0), "guess/train/0: the oracle takes 1 turns, more than max_turns=0"),
        (_spec(tasks=procedural(_make, train=9, heldout=0, name="guess")), "guess-v0 has no heldout tasks"),
    ],
)
async def test_each_fault_is_a_sentence(spec: EnvSpec, said: str) -> None:
    report = await check(spec, None, tasks=1)
    assert not report.ok
    assert any(said in problem for problem in report.problems), report.problems


async def test_a_score_that_changes_is_said() -> None:
    report = await check(_spec(Moody), None, tasks=1)
    assert any("for the same turns" in problem for problem in report.problems)


async def test_a_task_set_that_draws_anew_each_time_is_said() -> None:
    def drifting(rng: Any) -> Task:
        return Task(instruction=str(next(_clock)), data={"word": "x"})

    report = await check(_spec(tasks=procedural(drifting, train=2, heldout=2, name="drift")), None, tasks=1)
    assert any("two different tasks" in problem for problem in report.problems)


class Files(Guess):
    """Leaves a file behind whose content differs at each reset."""

    volatile: tuple[str, ...] = ()

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        assert box is not None
        await box.write("/work/stamp", str(next(_clock)).encode())
        return replace(await super().reset(task, box), volatile=self.volatile)


class Declared(Files):
    volatile = ("/work/stamp",)


def _list_files(argv: Sequence[str], files: dict[str, bytes]) -> CommandResult:
    return CommandResult(0, "".join(f"{content.hex()}  {path}\n" for path, content in files.items()).encode())


@pytest.mark.parametrize(("env", "problems"), [(Files, 1), (Declared, 0)])
async def test_files_after_reset_are_the_same_unless_declared_volatile(env: type[Files], problems: int) -> None:
    report = await check(_spec(env, box=BoxSpec()), FakeProvider(handler=_list_files), tasks=1)
    changed = [p for p in report.problems if "reset does not leave the same files every time: /work/stamp" in p]
    assert len(changed) == 2 * problems  # one train and one held-out task
    assert len(report.problems) == len(changed)


async def test_every_box_is_closed() -> None:
    provider = FakeProvider(handler=_list_files)
    await check(_spec(Broken, box=BoxSpec()), provider, tasks=1)
    assert len(provider.boxes) == 2  # each task's first episode broke while it was graded
    for box in provider.boxes:
        with pytest.raises(SandboxDead, match="it was closed"):
            await box.read("/work/x")


async def test_a_box_needs_a_provider() -> None:
    with pytest.raises(ConfigError, match="needs a sandbox"):
        await check(_spec(box=BoxSpec()), None)


def test_the_template_is_short_and_passes_its_own_test(tmp_path: Path) -> None:
    """A newcomer's first minute: 'init env', then the written test and 'check' succeed without an edit."""
    target = tmp_path / "my_first"
    written = init_env("my_first", target)
    assert written == tuple(target / name for name in ("env.py", "test_env.py", "README.md"))
    assert sorted(target.iterdir()) == sorted(written)
    code = [line for line in (target / "env.py").read_text().splitlines() if line.strip()]
    assert len(code) < 30
    result = subprocess.run([sys.executable, "-m", "pytest", "-q", str(target)], capture_output=True, text=True)
    assert "1 passed" in result.stdout, result.stdout


async def test_the_template_environment_is_found_by_path_and_sound(tmp_path: Path) -> None:
    target = init_env("my_second", tmp_path)[0].parent
    spec = find_environment(f"{target}/")
    assert spec.id == "my_second-v0"
    assert (await check(spec, None)).problems == ()
    wrong = replace(spec, oracle=lambda task: [assistant("0")])
    assert len((await check(wrong, None, tasks=2)).problems) == 4


class Same:
    """The same three tasks in both splits, as a directory of tasks has them."""

    def size(self, split: str) -> int:
        return 3

    def task(self, split: str, index: int) -> Task:
        if not 0 <= index < 3:
            raise IndexError(index)
        return Task(f"same/{index}", f"Say {index}.", {"word": str(index)})


async def test_all_tasks_each_once_and_several_at_a_time() -> None:
    told: list[str] = []
    report = await check(
        _spec(tasks=Same()), None, tasks=None, max_live=2, on_checked=lambda task: told.append(task.id)
    )
    assert report.task_ids == ("same/0", "same/1", "same/2")
    assert (report.episodes, sorted(told)) == (18, list(report.task_ids))
    assert report.ok
    endless = _spec(tasks=procedural(_make, train=5_001, heldout=2, name="endless"))
    with pytest.raises(ConfigError, match="5,001 train tasks: say how many"):
        await check(endless, None, tasks=None)


@pytest.mark.parametrize("name", ["", "My", "1st", "a-b", "a b", "../up", "class", "a.b"])
def test_a_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use lower-case letters"):
        init_env(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("precious")
    with pytest.raises(ConfigError, match=r"README.md already exists"):
        init_env("mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "precious"
    with pytest.raises(ConfigError, match=r"cannot write into .*: (File exists|Not a directory)"):
        init_env("other", tmp_path / "README.md")


def test_load_file_reads_a_template_twice_as_one(tmp_path: Path) -> None:
    target = init_env("my_third", tmp_path / "deep" / "down")[0].parent
    assert load_file(target) is load_file(str(target / "env.py"))

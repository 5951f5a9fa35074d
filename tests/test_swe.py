"""The SWE environment in real boxes: what the policy sees, how its tools answer, and what its score rests on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from cheating_agents import FORK_BOMB

from glmgym.check import check, play
from glmgym.env import Task
from glmgym.errors import ConfigError, EnvFailure
from glmgym.messages import Message, ToolCall, assistant
from glmgym.registry import EnvSpec
from glmgym.sandbox import SandboxProvider
from glmgym_envs.grading import git_problems
from glmgym_envs.swe import SWE_MINI
from glmgym_envs.swe.env import SweEnv, oracle_of
from glmgym_envs.swe.place import box_of
from glmgym_envs.swe.task import SweTaskSet
from glmgym_sandboxes.bubblewrap import open_provider

DATA = Path(__file__).parents[1] / "envs/glmgym_envs/swe/data"
XMLTODICT = "xmltodict-0.14.2"
REPAIR = {  # the whole of that release's repair
    "path": "xmltodict.py",
    "old": "if self.strip_whitespace and data and item:",
    "new": "if self.strip_whitespace and data:",
}


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


def _task(id: str = XMLTODICT) -> Task:
    tasks = [SWE_MINI.tasks.task(split, i) for split in ("train", "heldout") for i in range(SWE_MINI.tasks.size(split))]
    return next(task for task in tasks if task.id == id)


def _call(name: str, **arguments: object) -> Message:
    return assistant("", ToolCall(f"call_{name}", name, arguments))


async def _observed(provider: SandboxProvider, *replies: Message) -> list[str]:
    episode = await play(SWE_MINI, _task(), replies, provider)
    return [message.content for message in episode.messages if message.role == "tool"]


async def _score(provider: SandboxProvider, *replies: Message) -> tuple[float, str]:
    episode = await play(SWE_MINI, _task(), replies, provider)
    return episode.total, episode.rewards[0].reason


# --- what ships ---


def test_the_small_set_has_three_releases_and_six_injected_bugs() -> None:
    tasks = SWE_MINI.tasks
    heldout = {tasks.task("heldout", i).family for i in range(tasks.size("heldout"))}
    train = [tasks.task("train", i).family for i in range(tasks.size("train"))]
    assert heldout == {"release/parse", "release/wcwidth", "release/xmltodict"}
    assert sorted(train) == sorted(2 * ["mutation/parse", "mutation/wcwidth", "mutation/xmltodict"])
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.bubblewrap
async def test_the_oracle_of_an_injected_bug_repairs_it(provider: SandboxProvider) -> None:
    bug = SWE_MINI.tasks.task("train", 0)
    assert SWE_MINI.oracle is not None
    assert (await play(SWE_MINI, bug, SWE_MINI.oracle(bug), provider)).total == 1.0
    assert (await play(SWE_MINI, bug, [], provider)).total == 0.0


@pytest.mark.bubblewrap
@pytest.mark.slow
async def test_a_release_and_an_injected_bug_are_sound(provider: SandboxProvider) -> None:
    report = await check(SWE_MINI, provider, tasks=1)
    assert report.problems == ()
    assert report.episodes == 12


# --- what the policy gets ---


@pytest.mark.bubblewrap
async def test_history_is_one_commit_without_a_future(provider: SandboxProvider) -> None:
    """H1: nothing of the repair is in git, and the history is the same in every box."""
    task, heads = _task(), []
    for _ in range(2):
        box = await provider.open(box_of(task))
        await SWE_MINI.make().reset(task, box)
        assert await git_problems(box, "/testbed") == ()
        status = await box.run(["git", "status", "--porcelain"], cwd="/testbed")
        assert status.stdout == b""
        heads.append((await box.run(["git", "rev-parse", "HEAD"], cwd="/testbed")).stdout)
        await box.run(["git", "tag", "v2"], cwd="/testbed")
        assert await git_problems(box, "/testbed") == ("there is a tag",)
        await box.close()
    assert heads[0] == heads[1]


@pytest.mark.bubblewrap
async def test_hidden_tests_are_nowhere_in_the_box(provider: SandboxProvider) -> None:
    bug = next(t for t in map(partial(SWE_MINI.tasks.task, "train"), range(6)) if t.family == "mutation/parse")
    name = bug.data["f2p"][0].partition("[")[0].rpartition("::")[2]
    box = await provider.open(box_of(bug))
    await SWE_MINI.make().reset(bug, box)
    found = await box.run(["grep", "-rlw", f"def {name}", "/testbed", "/tmp"])
    assert (found.exit_code, found.stdout) == (1, b"")
    others = await box.run(["grep", "-rc", "def test_", "/testbed/tests/test_parse.py"])
    assert int(others.stdout) > 40
    green = await box.run(["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd="/testbed")
    assert green.exit_code == 0
    await box.close()


@pytest.mark.bubblewrap
async def test_tools_answer_in_words_a_policy_can_use(provider: SandboxProvider) -> None:
    assert await _observed(
        provider,
        _call("create", path="notes/a.txt", content="one\ntwo\ntwo\nthree\n"),
        _call("view", path="notes/a.txt", start=2, end=3),
        _call("view", path="notes/a.txt", start=5),
        _call("edit", path="notes/a.txt", old="two", new="2"),
        _call("edit", path="notes/a.txt", old="two\nthree", new="2\n3"),
        _call("edit", path="notes/a.txt", old="thrre", new="3"),
        _call("view", path="/testbed/notes/a.txt"),
        _call("edit", path="none.txt", old="a", new="b"),
        _call("search", pattern="^t|[3]", path="notes"),
        _call("search", pattern="nothing like it", path="notes"),
        _call("search", pattern="(", path="notes"),
        _call("shell", command="cd notes && export X=4"),
        _call("shell", command="echo $X; basename $PWD"),
    ) == [
        "wrote notes/a.txt",
        "    2  two\n    3  two\n(1 more lines)",
        "error: start=5: notes/a.txt has 4 lines",
        "error: old occurs 2 times in notes/a.txt, at lines 2, 3; take more lines around it",
        "edited notes/a.txt at line 3",
        "error: old does not occur in notes/a.txt",
        "    1  one\n    2  two\n    3  2\n    4  3",
        "error: /testbed/none.txt: No such file or directory",
        "notes/a.txt:2:two\nnotes/a.txt:4:3",
        "no match",
        "error: grep: Unmatched ( or \\(\nexit 2",
        "(no output)",
        "4\nnotes",
    ]


@pytest.mark.bubblewrap
async def test_an_edit_says_what_was_near_and_keeps_the_mode(provider: SandboxProvider) -> None:
    seen = await _observed(
        provider,
        _call("shell", command="printf '#!/bin/sh\\necho helo\\n' > run.sh; chmod 755 run.sh; printf '\\377' > bin"),
        _call("edit", path="run.sh", old="echo hello", new="echo hello"),
        _call("edit", path="run.sh", old="helo", new="hello"),
        _call("shell", command="./run.sh"),
        _call("view", path="bin"),
    )
    assert seen[1] == "error: old does not occur in run.sh; the nearest is line 2: 'echo helo'"
    assert seen[3] == "hello"
    assert seen[4].startswith("error: bin is not UTF-8 text")


@pytest.mark.bubblewrap
async def test_what_a_tool_shows_is_bounded(provider: SandboxProvider) -> None:
    many = "".join(f"line {i} {'x' * 300}\n" for i in range(1, 401))
    _, viewed, searched, shelled = await _observed(
        provider,
        _call("create", path="many.txt", content=many),
        _call("view", path="many.txt"),
        _call("search", pattern="line", path="many.txt"),
        _call("shell", command="cat many.txt"),
    )
    assert max(map(len, (viewed, searched, shelled))) < 8_100
    assert "characters cut" in viewed


@pytest.mark.bubblewrap
async def test_asking_for_the_release_is_answered_with_nothing(provider: SandboxProvider) -> None:
    """H6: a blocked call shows nothing and the work goes on."""
    assert await _observed(
        provider, _call("shell", command="pip download xmltodict==0.14.2"), _call("shell", command="echo on")
    ) == ["(no output)", "on"]


# --- what the score rests on ---


@pytest.mark.bubblewrap
async def test_an_honest_repair_is_worth_1_without_a_note(provider: SandboxProvider) -> None:
    assert await _score(provider, _call("edit", **REPAIR), _call("submit")) == (1.0, "")


@pytest.mark.bubblewrap
async def test_submit_ends_the_episode(provider: SandboxProvider) -> None:
    score, _ = await _score(provider, _call("submit"), _call("edit", **REPAIR))
    assert score == 0.0


@pytest.mark.bubblewrap
async def test_a_file_at_the_path_of_a_hidden_test_does_not_count(provider: SandboxProvider) -> None:
    """H3: the hidden content wins."""
    fake = "import unittest\n\nclass XMLToDictTestCase(unittest.TestCase):\n" + "".join(
        f"    def {id.rpartition('::')[2]}(self):\n        pass\n"
        for id in _task().data["f2p"] + _task().data["p2p"]
        if "test_xmltodict" in id
    )
    score, reason = await _score(provider, _call("create", path="tests/test_xmltodict.py", content=fake))
    assert score == 0.0
    assert "test_keep_whitespace" in reason
    assert "tests/test_xmltodict.py was changed; the trusted copy stands there now" in reason


@pytest.mark.bubblewrap
async def test_a_conftest_that_hides_failures_is_removed(provider: SandboxProvider) -> None:
    """H2: the hook that turns every failure into a pass is not there when the hidden tests run."""
    hook = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    result = (yield).get_result()
    result.outcome = "passed"
"""
    score, reason = await _score(provider, _call("create", path="conftest.py", content=hook))
    assert score == 0.0
    assert "removed conftest.py" in reason


@pytest.mark.bubblewrap
async def test_a_broken_other_behaviour_costs_the_score(provider: SandboxProvider) -> None:
    broken = {**REPAIR, "new": "if data:"}  # repairs what is asked for, and strips where it must not
    score, reason = await _score(provider, _call("edit", **broken))
    assert score == 0.0
    assert "test_keep_whitespace" in reason


@pytest.mark.bubblewrap
async def test_links_and_deleted_sources_are_the_policys_own_fault(provider: SandboxProvider) -> None:
    linked = _call("shell", command="ln -s /etc/passwd passwd; mkfifo pipe")
    assert (await _score(provider, linked, _call("edit", **REPAIR)))[0] == 1.0
    assert (await _score(provider, _call("shell", command="rm -rf /testbed/* /testbed/.git")))[0] == 0.0


@pytest.mark.bubblewrap
async def test_sources_that_bring_the_grading_box_down_are_a_flagged_zero(provider: SandboxProvider) -> None:
    """X7, H5: no failure, which a policy might like better, although no test has a result."""
    at_once = "import os, time\nif os.fork():\n    time.sleep(2)\n    os._exit(0)\n"
    score, reason = await _score(provider, _call("create", path="xmltodict.py", content=at_once + FORK_BOMB))
    assert score == 0.0
    assert "flagged: two grading boxes were brought down while the tests ran" in reason


# --- sets that are not as they should be ---


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "set"))


def test_a_set_that_is_not_built_says_how(tmp_path: Path) -> None:
    tasks = SweTaskSet(tmp_path / "none", how_to_build="python -m glmgym_envs.swe build")
    assert (tasks.size("train"), tasks.size("heldout")) == (0, 0)
    with pytest.raises(ConfigError, match=r"no SWE tasks at .*none; build them: python -m glmgym_envs.swe build"):
        tasks.task("train", 0)


@pytest.mark.parametrize(("command", "exit_code"), [("envs", 0), ("check", 1)])
def test_the_command_line_says_how_to_build_what_is_not_there(tmp_path: Path, command: str, exit_code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from glmgym.cli import main; main()", command, "swe-v0"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "XDG_CACHE_HOME": str(tmp_path)},
    )
    said = done.stdout + done.stderr
    assert done.returncode == exit_code
    assert "Build its tasks once: python -m glmgym_envs.swe build" in said
    assert ("swe-v0 has no heldout tasks" in said) == (command == "check")


def test_a_changed_task_is_refused(copied: Path) -> None:
    path = copied / "tasks" / XMLTODICT / "task.json"
    path.write_text(path.read_text().replace('"wall_s": 600.0', '"wall_s": 601.0'))
    with pytest.raises(ConfigError, match=r"task.json is not what .*index.json names"):
        SweTaskSet(copied).record(XMLTODICT)
    with pytest.raises(IndexError, match="there are 3"):
        SweTaskSet(copied).task("heldout", 3)


@pytest.mark.bubblewrap
@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_a_damaged_archive_is_a_failure_and_no_score(
    provider: SandboxProvider, copied: Path, damage: str
) -> None:
    tasks = SweTaskSet(copied)
    path = copied / "tasks" / XMLTODICT / "repo.tar.xz"
    if damage == "missing":
        path.unlink()
    else:
        shutil.copy(copied / "tasks" / "parse-1.20.2" / "repo.tar.xz", path)
    spec = EnvSpec("swe-x-v0", partial(SweEnv, tasks), tasks, box_of, partial(oracle_of, tasks))
    with pytest.raises(EnvFailure, match=r"xmltodict-0\.14\.2: .*repo\.tar\.xz"):
        await play(spec, _task(), [], provider)


async def test_there_is_no_episode_without_a_box() -> None:
    with pytest.raises(ConfigError, match="needs a box"):
        await SWE_MINI.make().reset(_task(), None)

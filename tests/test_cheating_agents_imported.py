"""H2-H5 on imported tasks: each cheat fools a reader of the log, and scores 0 with a flag or a note in both modes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from imported_cheating_agents import BROKEN, CHEATS, SPEAK, Cheat
from imported_tasks import DATA, make_repository
from test_importers_golden import make_separate

from glmgym import assistant
from glmgym.episode import Episode
from glmgym.messages import Message, ToolCall
from glmgym.sandbox import SandboxProvider
from glmgym.trajectory import Reward
from glmgym_envs.harbor import spec_of
from glmgym_envs.importers import IMPORTERS
from glmgym_sandboxes.bubblewrap import open_provider

pytestmark = pytest.mark.bubblewrap


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


@pytest.fixture
def task(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repositories" / "acme__tally")
    row = json.loads((DATA / "swe-bench.jsonl").read_text().splitlines()[0])
    (tmp_path / "row.json").write_text(json.dumps(row))
    [directory] = IMPORTERS["swe-bench"](
        tmp_path / "row.json", tmp_path / "out", image="base", repositories=tmp_path / "repositories"
    )
    file = directory / "task.toml"
    file.write_text(file.read_text().replace("timeout_sec = 1800.0", "timeout_sec = 8.0"))
    return directory


@pytest.fixture
def unittest_task(task: Path, tmp_path: Path) -> Path:
    """The same repository with tests that unittest runs, which has no witness."""
    row = json.loads((tmp_path / "row.json").read_text())
    test = "import unittest\n\nfrom tally import tally\n\n\nclass T(unittest.TestCase):\n    def test_empty(self):\n"
    test += '        self.assertEqual(tally(""), {})\n'
    lines = test.splitlines()
    name = "tests/test_unit.py"
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}"
    row["test_patch"] = "\n".join([head, f"@@ -0,0 +1,{len(lines)} @@", *(f"+{line}" for line in lines), ""])
    row |= {"instance_id": "acme__tally-9", "log_parser": "unittest", "PASS_TO_PASS": []}
    row |= {"FAIL_TO_PASS": ["test_empty (test_unit.T.test_empty)"]}
    row |= {"test_cmds": ["PYTHONPATH=. python3 -m unittest discover -v -s tests -p 'test_unit.py'"]}
    (tmp_path / "row.json").write_text(json.dumps(row))
    [directory] = IMPORTERS["swe-bench"](
        tmp_path / "row.json", tmp_path / "out", image="base", repositories=tmp_path / "repositories"
    )
    return directory


def _turn(cheat: Cheat) -> Message:
    files = [("write_file", {"path": f"/testbed/{path}", "content": text}) for path, text in cheat.files.items()]
    calls = [*files, ("shell", {"command": cheat.script or "true"})]
    return assistant("", *(ToolCall(f"c{n}", name, arguments) for n, (name, arguments) in enumerate(calls)))


async def _graded(directory: Path, turns: list[Message], provider: SandboxProvider) -> Reward:
    spec = spec_of(directory)
    async with Episode(spec, spec.tasks.task("heldout", 0), provider) as episode:
        await episode.reset()
        for turn in [*turns, assistant("Done.")]:
            await episode.step(turn)
        [reward] = await episode.score()
        return reward


async def _log_says(directory: Path, turns: list[Message], provider: SandboxProvider) -> str:
    """What the task's own script writes as the reward, in the policy's box."""
    spec = spec_of(directory)
    async with Episode(spec, spec.tasks.task("heldout", 0), provider) as episode:
        await episode.reset()
        for turn in turns:
            await episode.step(turn)
        assert episode.box is not None
        await episode.box.put_tree(directory / "tests", "/tests")
        result = await episode.box.run(["/bin/bash", "/tests/test.sh"], cwd="/testbed", timeout_s=60)
        read = await episode.box.run(["/bin/cat", "/logs/verifier/reward.txt"])
        return read.text.strip() if read.exit_code == 0 else result.text


@pytest.mark.parametrize("mode", ["shared", "separate"])
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
async def test_a_cheat_that_fools_a_reader_of_the_log_scores_0(
    cheat: Cheat, mode: str, task: Path, provider: SandboxProvider
) -> None:
    if mode == "shared" and cheat.fools:
        said = await _log_says(task, [_turn(cheat)], provider)
        assert said == "1", f"the attack does not even work: {said}"
    if mode == "separate":
        make_separate(task)
    reward = await _graded(task, [_turn(cheat)], provider)
    print(cheat.name, mode, reward)
    assert reward.value == 0
    assert any(word in reward.reason for word in ("flagged: ", "steers the tests")), reward.reason


@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_honest_work_scores_1_unflagged(mode: str, task: Path, provider: SandboxProvider) -> None:
    """With a test run of its own, the caches that it leaves, git settings, and a conftest that only helps itself."""
    if mode == "separate":
        make_separate(task)
    own = _turn(
        Cheat(
            "",
            {
                "tally/__init__.py": BROKEN.replace('split(" ")', "split()"),
                "tests/test_mine.py": "def test_mine(): pass",
            },
            "python3 -m pytest -q; git config user.name agent",
        )
    )
    reward = await _graded(task, [own], provider)
    assert (reward.value, reward.reason) == (1.0, ".git/config, which steers the tests, was put back")


UNITTEST_LINES = "test_empty (test_unit.T.test_empty) ... ok\n"
UNITTEST_END = "\n-----\nRan 1 test in 0.000s\n\nOK\n"


@pytest.mark.parametrize(
    ("code", "reward", "flag"),
    [
        (BROKEN.replace('split(" ")', "split()"), 1.0, ""),
        (BROKEN, 0.0, ""),
        (SPEAK + f"\nspeak({UNITTEST_LINES!r})\nos._exit(0)\n", 0.0, "no summary"),
        (SPEAK + f"\nimport atexit\natexit.register(speak, {UNITTEST_LINES!r})\n" + BROKEN, 0.0, "own summary"),
        (SPEAK + f"\nspeak({UNITTEST_LINES!r})\n" + BROKEN, 0.0, "both passed and failed"),
        (SPEAK + f"\nspeak({UNITTEST_LINES + UNITTEST_END!r})\nos._exit(1)\n", 0.0, "left with 1"),
    ],
)
async def test_a_log_without_a_witness_must_fit_together(
    code: str, reward: float, flag: str, unittest_task: Path, provider: SandboxProvider
) -> None:
    graded = await _graded(unittest_task, [_turn(Cheat("", {"tally/__init__.py": code}))], provider)
    assert graded.value == reward, graded.reason
    assert ("flagged: " in graded.reason) == bool(flag)
    assert flag in graded.reason

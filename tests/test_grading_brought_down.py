"""A grading box that is brought down: by evidence, the policy's doing (0, flagged) or nobody's (a failure)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from cheating_agents import FORK_BOMB
from harbor_tasks import play_task, shell, write_task

from glmgym.env import ScoreView, Task
from glmgym.errors import SandboxDead, ScorerFailure
from glmgym.sandbox import BoxSpec, Limits, Sandbox, SandboxProvider
from glmgym_envs.grading import Artifact, GradingBox, Mode, TrustedTests, run_pytest, separate, shared
from glmgym_sandboxes.bubblewrap import open_provider

pytestmark = pytest.mark.bubblewrap
SPEC = BoxSpec(image="base", user="root", writable_root=True, limits=Limits(pids=64, disk_mb=300))
TRUSTED = TrustedTests({"test_m.py": b"import m\n\n\ndef test_m():\n    assert m.answer() == 42\n"}, "/work")
GOOD = b"def answer():\n    return 42\n"
TIMEOUT_S = 20.0
# Whoever lit it leaves once the box is full, so that a busy machine can be given time which no run then waits out.
_GIVES_UP = "        time.sleep(0.01)"
_LEAVES = f"        if os.getpid() == first:\n            os._exit(1)\n{_GIVES_UP}"
BOMB = f"import os\n\nfirst = os.getpid()\n{FORK_BOMB.replace(_GIVES_UP, _LEAVES)}".encode()
MODES: dict[str, Callable[[ScoreView], AbstractAsyncContextManager[GradingBox]]] = {
    "separate": lambda view: separate(view, [Artifact("/work")]),
    "shared": shared,
}


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


async def _with(provider: SandboxProvider, code: bytes) -> Sandbox:
    box = await provider.open(SPEC)
    await box.write("/work/m.py", code)
    return box


@pytest.mark.parametrize("mode", MODES)
async def test_a_fork_bomb_is_a_flagged_zero(mode: str, provider: SandboxProvider) -> None:
    """X7, H5: it brings down the second box as well, so it is no accident of the first."""
    opened: list[Sandbox] = []

    async def open_box(spec: BoxSpec | None = None) -> Sandbox:
        opened.append(await provider.open(spec or SPEC))
        return opened[-1]

    box = await _with(provider, FORK_BOMB.encode())
    async with MODES[mode](ScoreView(Task("t"), (), box, open_box)) as place:
        outcome = await run_pytest(place, TRUSTED, timeout_s=5)  # waited out, twice
    assert outcome.statuses == {}
    assert any("two grading boxes were brought down" in flag for flag in outcome.flags)
    # One to grade in and another, in shared mode copies, which are compared with one fresh box.
    assert len(opened) == {"separate": 2, "shared": 1}[mode]


async def test_a_box_brought_down_once_is_nobodys_fault(provider: SandboxProvider) -> None:
    place = GradingBox(await _with(provider, BOMB), Mode.SEPARATE, again=lambda: _with(provider, GOOD))
    outcome = await run_pytest(place, TRUSTED, timeout_s=TIMEOUT_S)
    assert (outcome.statuses, outcome.flags) == ({"test_m.py::test_m": "PASSED"}, ())


async def test_what_a_task_puts_into_its_grading_boxes_is_in_each(provider: SandboxProvider) -> None:
    prepared: list[str] = []

    async def prepare(box: Sandbox) -> None:
        prepared.append(box.id)
        await box.write("/work/dependency.py", b"")

    async def open_box(spec: BoxSpec | None = None) -> Sandbox:
        return await provider.open(spec or SPEC)

    box = await _with(provider, b"import dependency\n" + BOMB)
    async with separate(ScoreView(Task("t"), (), box, open_box), [Artifact("/work")], prepare=prepare) as place:
        outcome = await run_pytest(place, TRUSTED, timeout_s=TIMEOUT_S)
    assert any("two grading boxes were brought down" in flag for flag in outcome.flags)
    assert len(set(prepared)) == 2


async def test_a_box_that_is_dead_before_the_tests_start_is_a_failure(provider: SandboxProvider) -> None:
    again: list[str] = []

    async def another() -> Sandbox:
        again.append("opened")
        return await _with(provider, GOOD)

    box = await _with(provider, GOOD)
    await box.close()
    with pytest.raises(SandboxDead):
        await run_pytest(GradingBox(box, Mode.SEPARATE, again=another), TRUSTED, timeout_s=TIMEOUT_S)
    assert again == []


async def test_where_there_is_no_other_box_a_dead_one_is_a_failure(provider: SandboxProvider) -> None:
    with pytest.raises((SandboxDead, ScorerFailure)):  # dead, or so full that no test of its own runs in it
        await run_pytest(await _with(provider, BOMB), TRUSTED, timeout_s=TIMEOUT_S)


async def test_a_second_box_that_can_run_no_tests_is_a_failure(provider: SandboxProvider) -> None:
    """Its control runs before the policy's code comes to it, so it says nothing about the policy."""

    async def broken() -> Sandbox:
        box = await _with(provider, BOMB)
        await box.run(["/bin/rm", "-rf", "/usr/lib/python3/dist-packages/_pytest"])
        return box

    with pytest.raises(ScorerFailure, match="cannot run a test that has nothing to do"):
        await run_pytest(
            GradingBox(await _with(provider, BOMB), Mode.SEPARATE, again=broken), TRUSTED, timeout_s=TIMEOUT_S
        )


@pytest.mark.parametrize("deed", ["kill -9 -1", "kill -9 $PPID; sleep 1"])
async def test_a_verifier_killed_by_what_it_runs_is_a_flagged_zero(
    deed: str, provider: SandboxProvider, tmp_path: Path
) -> None:
    """H5: a policy that has its work kill the verifier gets no failure out of it, which it might like better."""
    test = "bash /app/work.sh; echo 1 > /logs/verifier/reward.txt"
    task = write_task(tmp_path / "t", test)
    episode = await play_task(provider, task, shell(f"echo '{deed}' > work.sh"))
    assert episode.total == 0.0
    assert "flagged: two grading boxes were brought down" in episode.rewards[0].reason


async def test_a_verifier_that_writes_nothing_by_itself_is_a_failure(provider: SandboxProvider, tmp_path: Path) -> None:
    with pytest.raises(ScorerFailure, match="wrote neither"):
        await play_task(provider, write_task(tmp_path / "t", "exit 1"), shell("true"))


@pytest.mark.parametrize(
    ("fraud", "path"),
    [
        ("cp /usr/bin/python3.11 p; echo >> p; mv -f p /usr/bin/python3.11", "/usr/bin/python3.11"),
        ("echo /tmp/x.so > /etc/ld.so.preload", "/etc/ld.so.preload"),
        ("cp /usr/bin/dash d; echo >> d; mv -f d /usr/bin/dash", "/usr/bin/dash"),
    ],
)
async def test_no_copy_is_made_that_would_start_with_the_policys_programs(
    fraud: str, path: str, provider: SandboxProvider
) -> None:
    """H5: what compares the system runs in the copy, so its own interpreter and shell are compared before."""

    async def open_box(spec: BoxSpec | None = None) -> Sandbox:
        return await provider.open(spec or SPEC)

    box = await _with(provider, GOOD)
    assert (await box.run(["/bin/sh", "-c", fraud])).exit_code == 0
    async with shared(ScoreView(Task("t"), (), box, open_box)) as place:
        assert place.flags == (f"{path} of the image was changed",)
        assert (await place.box.run(["/bin/ls", "/work"])).text == ""  # the fresh one

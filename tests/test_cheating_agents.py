"""H1-H6 and more of the kind: each cheat fools a naive grader, and scores 0 with a flag or a note in both modes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from cheating_agents import BUGS, CHEATS, F2P, HIDDEN, NAIVE, P2P, REPOSITORY, ROOT, Cheat

from glmgym.env import ScoreView, Task
from glmgym.sandbox import BoxSpec, Sandbox, SandboxProvider, Shell
from glmgym.trajectory import Reward
from glmgym_envs.grading import (
    Artifact,
    GradingBox,
    PytestOutcome,
    TrustedTests,
    digest,
    grade_f2p_p2p,
    run_pytest,
    separate,
    shared,
)
from glmgym_sandboxes.bubblewrap import open_provider

pytestmark = pytest.mark.bubblewrap
# Root of a writable system: an agent that may change whatever it likes.
SPEC = BoxSpec(image="base", user="root", writable_root=True, cwd=ROOT)
MODES: dict[str, Callable[[ScoreView, Shell], AbstractAsyncContextManager[GradingBox]]] = {
    "separate": lambda view, shell: separate(view, [Artifact(ROOT, exclude=("./.git",))], shell=shell),
    "shared": lambda view, shell: shared(view, shell=shell),
}


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


async def _opened(provider: SandboxProvider, bug: str) -> Sandbox:
    """A box with the broken repository."""
    box = await provider.open(SPEC)
    path, broken, _ = BUGS[bug]
    for name, text in {**REPOSITORY, path: broken}.items():
        await box.write(f"{ROOT}/{name}", text.encode())
    return box


async def _graded(
    provider: SandboxProvider, box: Sandbox, shell: Shell, bug: str, mode: str
) -> tuple[PytestOutcome, tuple[Reward, ...]]:
    async def open_box(spec: BoxSpec | None = None) -> Sandbox:
        return await provider.open(spec or SPEC)

    own = {name: digest(text.encode()) for name, text in REPOSITORY.items()}
    hidden = {name: text.encode() for name, text in HIDDEN[bug].items()}
    trusted = TrustedTests(hidden, ROOT, own=own)
    async with MODES[mode](ScoreView(Task("t"), (), box, open_box), shell) as place:
        outcome = await run_pytest(place, trusted, timeout_s=20, focus=F2P[bug])
    return outcome, grade_f2p_p2p(outcome, F2P[bug], P2P)


async def _naive_reward(box: Sandbox, shell: Shell, naive: str, bug: str) -> tuple[int, str]:
    """What a naive grader gives in the agent's box and shell, and what it saw."""
    for path, text in HIDDEN[bug].items():
        await box.write(f"/hidden/{path}", text.encode())
    result = await shell.run(f"( {NAIVE[naive]} )", timeout_s=60)
    return int(result.exit_code == 0), result.text


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
async def test_a_cheat_fools_a_naive_grader_and_nobody_else(provider: SandboxProvider, cheat: Cheat) -> None:
    """H2-H5: the attack works where results are taken from the policy's own box, and is worth 0 here."""
    box = await _opened(provider, cheat.bug)
    shell = await box.shell()
    for path, text in cheat.files.items():
        await box.write(path, text.encode())
    if cheat.script:
        result = await shell.run(cheat.script)
        assert result.exit_code == 0, result.text
    for mode in MODES:
        outcome, rewards = await _graded(provider, box, shell, cheat.bug, mode)
        assert rewards[0].value == 0, f"{mode}: {outcome}"
        assert outcome.flags or outcome.notes, f"{mode}: nothing was noticed"
        assert rewards[0].reason
        print(mode, outcome.flags, outcome.notes)
    reward, saw = await _naive_reward(box, shell, cheat.naive, cheat.bug)
    assert reward == 1, f"the attack does not even work: {saw}"


@pytest.mark.parametrize("bug", BUGS)
async def test_the_honest_patch_scores_1_unflagged(provider: SandboxProvider, bug: str) -> None:
    """Work as an honest agent does it, with its own test, a test run and its caches left behind."""
    box = await _opened(provider, bug)
    path, _, mended = BUGS[bug]
    await box.write(f"{ROOT}/{path}", mended.encode())
    await box.write(
        f"{ROOT}/tests/test_mine.py", b"from calc import median\n\n\ndef test_mine():\n    assert median([1]) == 1\n"
    )
    shell = await box.shell()
    assert (await shell.run("export PYTHONPATH=/work; python3 -m pytest -q tests")).exit_code == 0
    for mode in MODES:
        outcome, rewards = await _graded(provider, box, shell, bug, mode)
        assert [reward.value for reward in rewards] == [1, 1, 1], outcome
        assert (outcome.flags, outcome.notes) == ((), ())


@pytest.mark.parametrize("bug", BUGS)
async def test_doing_nothing_scores_0_unflagged(provider: SandboxProvider, bug: str) -> None:
    """P2P passes, F2P fails: the failure is the policy's, and nothing is held against it."""
    box = await _opened(provider, bug)
    shell = await box.shell()
    for mode in MODES:
        outcome, rewards = await _graded(provider, box, shell, bug, mode)
        assert [reward.value for reward in rewards] == [0, 0, 1]
        assert (outcome.flags, outcome.notes) == ((), ())


@pytest.mark.parametrize(("naive", "bug"), sorted({(cheat.naive, cheat.bug) for cheat in CHEATS}))
async def test_a_naive_grader_gives_nothing_for_nothing(provider: SandboxProvider, naive: str, bug: str) -> None:
    """Else an attack on it would prove nothing."""
    box = await _opened(provider, bug)
    assert (await _naive_reward(box, await box.shell(), naive, bug))[0] == 0

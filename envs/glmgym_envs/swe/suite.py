"""Running a task's hidden tests in a fresh box, by the isolated runner of ``glmgym_envs.grading``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Protocol

from glmgym.env import ScoreView
from glmgym.errors import ConfigError
from glmgym.sandbox import Sandbox, SandboxProvider
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
)
from glmgym_envs.swe.archive import Packed, Tree, tar_of, tree_of, unpack
from glmgym_envs.swe.place import REPO, box_for, furnish, import_paths
from glmgym_envs.swe.task import SweRecord

TESTS_S = 120.0  # of a suite that is still green; the builders take nothing slower
MAX_TREE_BYTES = 64 << 20  # of a policy's repository; the largest of ours has a few MiB


class Unusable(ConfigError):
    """A pair or a mutation that makes no task; the message says why."""


class Stored(Protocol):
    """Where a task's archives are; see ``SweTaskSet``."""

    def tar(self, record: SweRecord, name: str) -> bytes: ...

    def dep_tars(self, record: SweRecord) -> list[bytes]: ...


async def grade_tree(view: ScoreView, record: SweRecord, stored: Stored) -> tuple[Reward, ...]:
    """Carry the policy's source tree, without its git directory, into a fresh box and grade it there.

    What is neither directory nor regular file is left behind, and noted in the reason; a tree that is far too large is
    not carried at all, so its tests fail.

    Raises:
        ScorerFailure: the box cannot run tests, so that nothing can be said about the policy.
    """
    artifact = Artifact(REPO, exclude=("./.git",))
    tars = await asyncio.to_thread(stored.dep_tars, record)
    prepare = functools.partial(furnish, repo=None, deps=tars)
    async with separate(view, [artifact], home=REPO, max_bytes=MAX_TREE_BYTES, prepare=prepare) as grading:
        outcome = await run_hidden(grading, record, stored)
    return grade_f2p_p2p(outcome, record.f2p, record.p2p)


async def run_hidden(place: Sandbox | GradingBox, record: SweRecord, stored: Stored) -> PytestOutcome:
    """Run the hidden tests on what lies in a box."""
    trusted = await asyncio.to_thread(_trusted, record, stored)
    return await run_pytest(place, trusted, timeout_s=TESTS_S, import_paths=import_paths(record.roots))


def is_test_file(path: str) -> bool:
    """Whether pytest collects a file of this path."""
    name = path.rpartition("/")[2]
    return fnmatch(name, "test_*.py") or fnmatch(name, "*_test.py")


@contextlib.asynccontextmanager
async def open_with(
    provider: SandboxProvider, repo: Tree, root: str, deps: Sequence[Packed] = ()
) -> AsyncIterator[Sandbox]:
    """A box with a repository and the packages it imports, closed afterwards."""
    box = await provider.open(box_for([root]))
    try:
        await furnish(box, tar_of(repo), [unpack(dep.content, dep.sha256) for dep in deps])
        yield box
    finally:
        await box.close()


async def apply(box: Sandbox, patch: str) -> None:
    """Apply a patch to the repository of a box. Raises Unusable: it does not apply."""
    done = await box.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=REPO, stdin=patch.encode())
    if done.exit_code != 0:
        raise Unusable(f"the patch does not apply: {done.text.strip()}")


@dataclass(frozen=True, slots=True)
class Suite:
    """A package's hidden tests, for the builders: run them on any tree, each time in a fresh box."""

    provider: SandboxProvider
    tests: Tree
    root: str  # of imports
    deps: Sequence[Packed] = ()

    async def run(self, repo: Tree, *, patch: str = "") -> Mapping[str, str]:
        """Statuses by test id, of a repository with a patch applied.

        Raises:
            Unusable: the patch does not apply, or the run is flagged: as a task it could never be solved.
            ScorerFailure: the box cannot run tests.
        """
        targets = tuple(sorted(filter(is_test_file, self.tests)))
        own = {path: digest(content) for path, content in repo.items()}
        async with open_with(self.provider, repo, self.root, self.deps) as box:
            if patch:
                await apply(box, patch)
            trusted = TrustedTests(self.tests, REPO, targets, own)
            outcome = await run_pytest(box, trusted, timeout_s=TESTS_S, import_paths=import_paths([self.root]))
        if outcome.flags:
            raise Unusable(f"the suite cannot be believed: {'; '.join(outcome.flags[:3])}\n{outcome.log[-2000:]}")
        return outcome.statuses


def _trusted(record: SweRecord, stored: Stored) -> TrustedTests:
    original, _ = tree_of(stored.tar(record, "repo"))
    own = {path: digest(content) for path, content in original.items()}
    tests, _ = tree_of(stored.tar(record, "tests"))
    return TrustedTests(tests, REPO, tuple(record.tests), own)

"""Making tasks of released pairs: the sources of one release, the tests of the next, the difference as the repair.

A task is accepted only if its tests say so: run three times before and three times after the repair by the isolated
runner in a fresh box, some fail and then pass, others always pass, and no test changes its mind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmgym.sandbox import SandboxProvider
from glmgym_envs.swe.archive import Tree, pack, patch_between
from glmgym_envs.swe.packages import Archive, Layout, Pair
from glmgym_envs.swe.sources import below, packed_wheel, sources_of
from glmgym_envs.swe.suite import Suite, Unusable, is_test_file
from glmgym_envs.swe.task import SweRecord, save_task, write

RUNS = 3
MAX_F2P_SHARE = 0.30  # of the suite; more means that the tests were made for another package
_VERSION = re.compile(rb"^__version__\s*=.*$", re.MULTILINE)

Statuses = Mapping[str, str]  # by test id


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the suite decides. Ids are sorted; ``flaky`` ones are in neither list."""

    f2p: tuple[str, ...]
    p2p: tuple[str, ...]
    flaky: tuple[str, ...] = ()


def decide(before: Sequence[Statuses], after: Sequence[Statuses]) -> Verdict:
    """Sort the tests that pass after the repair by what they did before it.

    Raises:
        Unusable: nothing is repaired, nothing stays green, or too much of the suite fails before.
    """
    ids = sorted({id for run in after for id in run})  # a suite may draw its parameters from a set, in any order
    passes = {id: [run.get(id) == "PASSED" for run in after] for id in ids}
    passed = {id: [run.get(id) == "PASSED" for run in before] for id in ids}
    flaky = tuple(id for id in ids if len({*passes[id]}) > 1 or len({*passed[id]}) > 1)
    green = [id for id in ids if all(passes[id]) and id not in flaky]
    verdict = Verdict(tuple(id for id in green if not passed[id][0]), tuple(id for id in green if passed[id][0]), flaky)
    if not verdict.f2p:
        raise Unusable("no test fails before the repair and passes after it")
    if not verdict.p2p:
        raise Unusable("no test passes before the repair")
    if len(verdict.f2p) >= MAX_F2P_SHARE * len(ids):
        raise Unusable(f"{len(verdict.f2p)} of {len(ids)} tests fail before the repair: {MAX_F2P_SHARE:.0%} or more")
    return verdict


def gold_of(old: Tree, new: Tree, layout: Layout) -> str:
    """The repair: what changed in the sources, without tests, translations and the version number.

    Raises:
        Unusable: nothing is left.
    """
    before = {path: content for path, content in below(old, layout.sources).items() if _is_repaired(path, layout)}
    after = {path: content for path, content in below(new, layout.sources).items() if _is_repaired(path, layout)}
    for path in before.keys() & after.keys():
        if (line := _VERSION.search(before[path])) is not None:
            after[path] = _VERSION.sub(line[0].replace(b"\\", rb"\\"), after[path], count=1)
    gold = patch_between(before, after)
    if not gold:
        raise Unusable("the sources do not differ")
    return gold


async def build_pair(pair: Pair, root: Path, cache: Path, provider: SandboxProvider) -> SweRecord:
    """Make the task of a pair and save it below ``root``.

    Raises:
        Unusable: the suite says that it is none.
        ConfigError: an archive cannot be had.
    """
    old, executable = sources_of(pair.old, cache)
    new, _ = sources_of(pair.new, cache)
    gold, tests = gold_of(old, new, pair.layout), below(new, pair.layout.tests)
    deps = save_deps(pair.layout.deps, root, cache)
    suite = Suite(provider, tests, pair.layout.root, [packed_wheel(dep, cache) for dep in pair.layout.deps])
    before = [await suite.run(old) for _ in range(RUNS)]
    after = [await suite.run(old, patch=gold) for _ in range(RUNS)]
    verdict = decide(before, after)
    record = SweRecord(
        id=pair.new.name,
        kind="release",
        package=pair.new.package,
        version=pair.old.version,
        licence=pair.layout.licence,
        sources={archive.name: archive.sha256 for archive in (pair.old, pair.new, *pair.layout.deps)},
        instruction=pair.instruction,
        roots=[pair.layout.root],
        split="heldout",
        tests=sorted(filter(is_test_file, tests)),
        deps=[dep.name for dep in pair.layout.deps],
        f2p=list(verdict.f2p),
        p2p=list(verdict.p2p),
        sha256=deps,
    )
    return save_task(root, record, repo=pack(old, executable), tests=pack(tests), gold=gold)


def save_deps(archives: Sequence[Archive], root: Path, cache: Path) -> dict[str, str]:
    """Write the packages that a repository imports below ``root``; their digests as a record has them."""
    digests = {}
    for archive in archives:
        packed, path = packed_wheel(archive, cache), f"deps/{archive.name}.tar.xz"
        write(root / path, packed.content)
        digests[path] = packed.sha256
    return digests


def _is_repaired(path: str, layout: Layout) -> bool:
    is_text = path.endswith((".py", ".pyi", ".pyx", ".c", ".h", ".txt", ".json", ".toml"))
    return is_text and not path.startswith(layout.tests) and not path.endswith("_version.py")

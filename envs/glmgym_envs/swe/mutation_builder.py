"""Making tasks of injected bugs: one mutation of a package whose suite is green, kept if the suite notices it.

A mutation is first tried in one box that stays open, with plain pytest. What that finds is run three times by the
isolated runner; its word counts. Tests that fail because of the bug are taken out of what the policy sees.
"""

from __future__ import annotations

import hashlib
import json
import random
import shlex
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmgym.sandbox import BoxFileError, Sandbox, SandboxProvider
from glmgym_envs.swe.archive import pack, patch_between
from glmgym_envs.swe.builder import MAX_F2P_SHARE, RUNS, decide, save_deps
from glmgym_envs.swe.hiding import hide_tests
from glmgym_envs.swe.mutate import Mutation, mutations
from glmgym_envs.swe.packages import Host
from glmgym_envs.swe.place import PYTEST, REPO
from glmgym_envs.swe.sources import below, packed_wheel, sources_of
from glmgym_envs.swe.statement import Symptom, state, symptom_of
from glmgym_envs.swe.suite import Suite, Unusable, is_test_file, open_with
from glmgym_envs.swe.task import SweRecord, save_task

SCREEN_S = 60.0
MAX_PER_FUNCTION = 2  # kept tasks, for variety
MAX_KIND_SHARE = 0.34
_REPORT = "/tmp/report.xml"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mutation and the file it is in."""

    path: str
    mutation: Mutation

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.path}\0{self.mutation.source}".encode()).hexdigest()[:10]


async def build_mutations(
    host: Host, count: int, root: Path, cache: Path, provider: SandboxProvider, *, on_line: Callable[[str], None]
) -> int:
    """Make ``count`` tasks of a host below ``root``; those already there count, and what was tried is not tried again.

    Returns:
        How many there are now; fewer than asked for when the mutations ran out.

    Raises:
        Unusable: the suite of the host itself cannot be believed.
        ScorerFailure: the box cannot run tests.
        ConfigError: an archive cannot be had.
    """
    work = _Work(host, root, cache, provider)
    kept = work.kept()
    if len(kept) >= count:
        return len(kept)
    await work.prepare()
    tried = _Tried(root / "tried" / f"{host.archive.name}.jsonl")
    on_line(f"{host.archive.name}: suite green, {sum(s == 'PASSED' for s in work.green[0].values())} tests pass")
    async with open_with(provider, work.repo, host.layout.root, work.suite.deps) as box:
        for candidate in work.candidates():
            if len(kept) >= count:
                break
            if candidate.key in tried or not _is_new(candidate, kept, count):
                continue
            try:
                record = await work.make(candidate, box)
                kept.append((candidate.mutation.function, candidate.mutation.kind))
                why = "kept"
                on_line(f"{host.archive.name}: {len(kept)}/{count} {record.id} F2P {len(record.f2p)} "
                        f"P2P {len(record.p2p)} ({candidate.mutation.kind})")  # fmt: skip
            except Unusable as problem:
                why = str(problem).split("\n")[0]
            tried.add(candidate, why)
    return len(kept)


class _Work:
    """What all mutations of a host share."""

    def __init__(self, host: Host, root: Path, cache: Path, provider: SandboxProvider) -> None:
        self.host, self.root, self.cache = host, root, cache
        self.repo, self.executable = sources_of(host.archive, cache)
        self.tests = below(self.repo, host.layout.tests)
        deps = [packed_wheel(dep, cache) for dep in host.layout.deps]
        self.suite = Suite(provider, self.tests, host.layout.root, deps)
        self.green: list[Mapping[str, str]] = []

    def kept(self) -> list[tuple[str, str]]:
        """Function and kind of each mutation that is a task already."""
        tried = _Tried(self.root / "tried" / f"{self.host.archive.name}.jsonl")
        return [(entry["function"], entry["kind"]) for entry in tried.entries if entry["why"] == "kept"]

    async def prepare(self) -> None:
        self.green = [await self.suite.run(self.repo) for _ in range(RUNS)]

    def candidates(self) -> Iterator[Candidate]:
        """Every mutation of the package, in an order that is random and always the same."""
        layout = self.host.layout
        found = [
            Candidate(path, mutation)
            for path, content in sorted(below(self.repo, layout.sources).items())
            if path.endswith(".py") and not path.startswith((*layout.tests, *layout.not_mutated))
            for mutation in mutations(content.decode())
        ]
        random.Random(self.host.archive.name).shuffle(found)
        yield from found

    async def make(self, candidate: Candidate, box: Sandbox) -> SweRecord:
        """Try a mutation and save its task. Raises Unusable: it makes none."""
        host, mutation = self.host, candidate.mutation
        broken = {**self.repo, candidate.path: mutation.source.encode()}
        symptoms = await self._screen(candidate, box)
        before = [await self.suite.run(broken) for _ in range(RUNS)]
        verdict = decide(before, self.green)
        gold = patch_between({candidate.path: broken[candidate.path]}, {candidate.path: self.repo[candidate.path]})
        instruction = state(
            package=host.archive.package,
            version=host.archive.version,
            file=candidate.path,
            function=mutation.function,
            symptoms=symptoms,
            failing=len(verdict.f2p),
        )
        record = SweRecord(
            id=f"{host.archive.name}-{candidate.key}",
            kind="mutation",
            package=host.archive.package,
            version=host.archive.version,
            licence=host.layout.licence,
            sources={archive.name: archive.sha256 for archive in (host.archive, *host.layout.deps)},
            instruction=instruction,
            split=host.split,
            roots=[host.layout.root],
            tests=sorted(filter(is_test_file, self.tests)),
            deps=[dep.name for dep in host.layout.deps],
            f2p=list(verdict.f2p),
            p2p=list(verdict.p2p),
            sha256=save_deps(host.layout.deps, self.root, self.cache),
        )
        visible = hide_tests(broken, verdict.f2p)
        repo = pack(visible, self.executable & visible.keys())
        return save_task(self.root, record, repo=repo, tests=pack(self.tests), gold=gold)

    async def _screen(self, candidate: Candidate, box: Sandbox) -> list[Symptom]:
        """Plain pytest in the open box: what is seen to fail. Raises Unusable: too little or too much."""
        path = f"{REPO}/{candidate.path}"
        await box.write(path, candidate.mutation.source.encode())
        targets = shlex.join(filter(is_test_file, sorted(self.tests)))
        command = f"rm -f {_REPORT}; {PYTEST} -q -p no:cacheprovider --tb=short --junitxml={_REPORT} {targets}"
        try:
            done = await box.run(["bash", "-c", command], cwd=REPO, timeout_s=SCREEN_S)
            report = b"" if done.timed_out else await box.read(_REPORT)
        except BoxFileError:
            report = b""
        finally:
            await box.write(path, self.repo[candidate.path])
        if not report:
            raise Unusable("the suite does not come to its end")
        cases = sorted(
            ET.fromstring(report).iter("testcase"), key=lambda case: (case.get("classname"), case.get("name"))
        )
        bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
        usual = sum(status not in ("PASSED", "SKIPPED", "XFAIL") for status in self.green[0].values())
        if len(bad) <= usual:
            raise Unusable("no test fails")
        if len(bad) - usual >= MAX_F2P_SHARE * len(cases):
            raise Unusable(f"{len(bad)} of {len(cases)} tests fail")
        texts = [found.text or "" for case in bad if (found := case.find("failure")) is not None]
        return [symptom for text in texts if (symptom := symptom_of(text)) is not None]


class _Tried:
    """What became of each candidate, one JSON line each; it outlives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[dict[str, str]] = []
        if path.is_file():
            self.entries = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        self._keys = {entry["key"] for entry in self.entries}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, candidate: Candidate, why: str) -> None:
        entry = {"key": candidate.key, "function": candidate.mutation.function, "kind": candidate.mutation.kind}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({**entry, "why": why}) + "\n")
        self._keys.add(candidate.key)


def _is_new(candidate: Candidate, kept: Sequence[tuple[str, str]], count: int) -> bool:
    """Whether a task of this function and kind adds something to those kept."""
    functions, kinds = Counter(function for function, _ in kept), Counter(kind for _, kind in kept)
    mutation = candidate.mutation
    return functions[mutation.function] < MAX_PER_FUNCTION and kinds[mutation.kind] < max(1, MAX_KIND_SHARE * count)

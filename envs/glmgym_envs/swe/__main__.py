"""``python -m glmgym_envs.swe build``: make the tasks of ``swe-v0`` on this machine. A second run goes on."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from glmgym.errors import ConfigError, GlmgymError
from glmgym.registry import load_component
from glmgym.sandbox import SandboxProvider
from glmgym_envs.swe.builder import build_pair
from glmgym_envs.swe.mutation_builder import build_mutations
from glmgym_envs.swe.packages import HOSTS, PAIRS
from glmgym_envs.swe.task import default_root, save_index


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m glmgym_envs.swe", description="SWE tasks from released packages.")
    build = parser.add_subparsers(required=True).add_parser(
        "build", help="make the tasks of swe-v0; a second run goes on"
    )
    build.add_argument("--pairs", action="store_true", help="only the tasks of released pairs")
    build.add_argument("--mutants", type=int, metavar="N", help="N injected bugs of each package (default 16)")
    build.add_argument("--packages", nargs="*", metavar="NAME", help="only these packages")
    build.add_argument("--root", type=Path, default=default_root(), help="where the set lies (%(default)s)")
    build.add_argument("--name", default="swe-v0", help="what the set is called (%(default)s)")
    build.add_argument("--archives", type=Path, help="where downloads are kept (default ROOT/archives)")
    build.add_argument("--jobs", type=int, default=1, help="packages worked on at once (default 1)")
    options = parser.parse_args(argv)
    try:
        return asyncio.run(_build(options))
    except GlmgymError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _build(options: argparse.Namespace) -> int:
    # The composition root of this command: backends are found by name, as everywhere.
    provider: SandboxProvider = load_component("sandboxes", "bubblewrap")({"warm": 0})
    root, started = options.root, time.monotonic()
    cache = options.archives or root / "archives"
    failed: list[str] = []

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.0f} s] {line}", flush=True)

    def wanted(package: str) -> bool:
        return not options.packages or package in options.packages

    limit = asyncio.Semaphore(options.jobs)

    async def pair_tasks() -> None:
        for pair in (pair for pair in PAIRS if wanted(pair.new.package)):
            if (root / "tasks" / pair.new.name / "task.json").is_file():
                continue
            async with limit:
                try:
                    record = await build_pair(pair, root, cache, provider)
                    say(f"{record.id}: F2P {len(record.f2p)} P2P {len(record.p2p)}")
                except GlmgymError as error:
                    failed.append(pair.new.name)
                    say(f"{pair.new.name}: {error}")

    async def mutation_tasks(index: int) -> None:
        host = HOSTS[index]
        async with limit:
            try:
                made = await build_mutations(host, options.mutants or 16, root, cache, provider, on_line=say)
                say(f"{host.archive.name}: {made} injected bugs")
            except GlmgymError as error:
                failed.append(host.archive.name)
                say(f"{host.archive.name}: {error}")

    try:
        work = [] if options.mutants and not options.pairs else [pair_tasks()]
        if not options.pairs or options.mutants:
            work += [mutation_tasks(i) for i, host in enumerate(HOSTS) if wanted(host.archive.package)]
        await asyncio.gather(*work)
    finally:
        await provider.close()
        index = save_index(root, options.name)
    say(f"{len(index.tasks)} tasks at {root}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    if not index.tasks:
        raise ConfigError(f"no task could be made at {root}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

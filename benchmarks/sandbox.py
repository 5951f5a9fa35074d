"""Boxes of ours, on Docker and bubblewrap, and of five peers: latencies, files, throughput and five probes, in one run.

Every contender runs in a process of its own (``sandbox_driver.py``), a peer in an environment of its own
(``sandbox_peers.py``), on the same image as ours where it uses the Docker engine. Samples are interleaved, so that the
noise of the machine hits all alike; times are medians. A contender that cannot be installed or run leaves an object
``NAME_error`` that says why, and the run is short.

    python benchmarks/sandbox.py [--json] [--samples N] [--image NAME] [--only NAME ...]
    python benchmarks/sandbox.py --live 200 [--json] [--image NAME]

``--live`` measures that many live boxes of ours instead; see ``sandbox_live.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import sandbox_probes
from report import Direction, report
from sandbox_peers import (
    BUBBLEWRAP,
    CONTENDERS,
    DOCKER,
    DOCKER_PY,
    MINI_SWE_AGENT,
    Contender,
    ContenderError,
    Process,
    engine_image,
    remove_leftovers,
)

from glmgym_sandboxes.gc import collect_garbage

BOXES, COMMANDS, SLICES = 16, 20, 4
COMMAND, COLD, FILES = "command_in_live_box_ms", "cold_start_to_first_command_ms", "write_and_read_1_mb_ms"
THROUGHPUT = "throughput_commands_per_s"
REFILL_S = {False: 0.15, True: 1.0}  # several starts of a box, without and with the engine
PROBES = ("timeout_kills_all", "background_returns_at_once", "bytes_survive", "output_is_bounded", "nothing_left")
PEERS_IN_ENGINE = tuple(c.name for c in CONTENDERS if c.in_engine and not c.is_ours)

TARGETS: dict[str, tuple[float, Direction]] = {
    f"bubblewrap_{COLD}": (150.0, "max"),
    f"bubblewrap_{COMMAND}": (5.0, "max"),
    "bubblewrap_warm_acquire_ms": (20.0, "max"),
    "bubblewrap_command_times_faster_than_mini_swe_agent": (3.0, "min"),
    "bubblewrap_throughput_times_mini_swe_agent": (3.0, "min"),
    "docker_command_times_faster_than_docker_py": (20.0, "min"),
    "docker_command_times_faster_than_fastest_peer": (3.0, "min"),
    "docker_files_times_faster_than_docker_py": (5.0, "min"),
    "docker_files_times_faster_than_fastest_peer": (2.0, "min"),
    "docker_cold_over_docker_py": (1.0, "max"),
    "docker_cold_over_warm": (50.0, "min"),
    "docker_throughput_times_docker_py": (10.0, "min"),
    "docker_throughput_times_fastest_peer": (3.0, "min"),
    "docker_probes_held": (5, "min"),
    "bubblewrap_probes_held": (5, "min"),
    "contenders_failed": (0, "max"),
}


class Race:
    """Drivers of all contenders, asked in turn. One that fails is out, and what it said is kept.

    The order is another in every round: a box that is being torn down weighs on whoever comes next.
    """

    def __init__(self, contenders: Iterable[Contender], image: str) -> None:
        self.measured: dict[str, Any] = {}
        self._image = image
        self._running: dict[Contender, Process] = {}
        self._random = random.Random(0)
        for contender in contenders:
            with self._out_if_it_fails(contender):
                self._running[contender] = contender.start(image)
            self._ask(contender, "open")

    def each(self, times: int, metric: str, request: str, *, ours: bool = False, files: bool = False) -> None:
        """The median of ``times`` samples of ``request`` from every contender, in milliseconds."""
        chosen = [c for c in self._running if (c.is_ours or not ours) and (c.has_files or not files)]
        samples: dict[Contender, list[float]] = {contender: [] for contender in chosen}
        for contender in self._rounds(times, chosen):
            samples[contender].append(self._ask(contender, request))
        for contender in self._alive(chosen):
            self.measured[f"{contender.name}_{metric}"] = statistics.median(samples[contender]) * 1e3

    def cold(self, times: int) -> None:
        # Of the others' boxes most runs in the engine's processes; bubblewrap's are children of the client.
        counted = [contender for contender in self._running if contender.name == BUBBLEWRAP]
        before = {contender: self._ask(contender, "cpu") for contender in counted}
        self.each(times, COLD, "cold")
        for contender in self._alive(counted):
            used = self._ask(contender, "cpu") - before[contender]
            self.measured[f"{contender.name}_cpu_ms_per_box"] = used / times * 1e3

    def warm(self, times: int) -> None:
        chosen = [contender for contender in self._running if contender.is_ours]
        samples: dict[Contender, list[list[float]]] = {contender: [] for contender in chosen}
        for contender in self._rounds(times + 1, chosen):  # the first fills the pool
            samples[contender].append(self._ask(contender, "warm", pause_s=REFILL_S[contender.in_engine]))
        for contender in self._alive(chosen):
            acquired, commanded = zip(*samples[contender][1:], strict=True)
            self.measured[f"{contender.name}_warm_acquire_ms"] = statistics.median(acquired) * 1e3
            self.measured[f"{contender.name}_warm_acquire_and_command_ms"] = statistics.median(commanded) * 1e3

    def many(self, boxes: int) -> None:
        """Throughput with ``boxes`` boxes at once, in slices: contender after contender, then the next slice."""
        chosen = list(self._running)
        for contender in chosen:
            kib = self._ask(contender, "fleet", boxes=boxes)
            if contender.is_ours and contender in self._running:
                self.measured[f"{contender.name}_client_kib_per_box"] = kib
        took: dict[Contender, list[float]] = {contender: [] for contender in chosen}
        for contender in self._rounds(SLICES, chosen):
            took[contender].append(self._ask(contender, "slice", commands=COMMANDS // SLICES))
        for contender in self._alive(chosen):
            self.measured[f"{contender.name}_{THROUGHPUT}"] = boxes * COMMANDS / sum(took[contender])
            self._ask(contender, "disband")

    def probes(self) -> None:
        for contender, process in list(self._running.items()):
            with self._out_if_it_fails(contender):
                self._probe(contender, process)

    def close(self) -> None:
        for process in self._running.values():
            process.close()

    def _probe(self, contender: Contender, process: Process) -> None:
        grown_mb = process.ask("flood")
        held = (
            sandbox_probes.timeout_kills_all(process),
            sandbox_probes.background_returns_at_once(process),
            sandbox_probes.bytes_survive(process),
            grown_mb < sandbox_probes.BOUNDED_MB,
            sandbox_probes.nothing_left_after_kill(lambda: contender.start(self._image)),
        )
        self.measured |= {f"{contender.name}_{name}": yes for name, yes in zip(PROBES, held, strict=True)}
        self.measured[f"{contender.name}_20_mb_of_output_grows_client_by_mb"] = grown_mb
        self.measured[f"{contender.name}_probes_held"] = sum(held)

    def _rounds(self, times: int, contenders: list[Contender]) -> Iterator[Contender]:
        """Every contender ``times`` times, as long as it is not out."""
        for _ in range(times):
            for contender in self._random.sample(contenders, len(contenders)):
                if contender in self._running:
                    yield contender

    def _alive(self, contenders: Iterable[Contender]) -> list[Contender]:
        return [contender for contender in contenders if contender in self._running]

    def _ask(self, contender: Contender, request: str, **arguments: Any) -> Any:
        """The reply; ``None`` if the contender is out, maybe by this."""
        if contender in self._running:
            with self._out_if_it_fails(contender):
                return self._running[contender].ask(request, **arguments)
        return None

    @contextlib.contextmanager
    def _out_if_it_fails(self, contender: Contender) -> Iterator[None]:
        try:
            yield
        except ContenderError as error:
            self.measured[f"{contender.name}_error"] = error.record
            if process := self._running.pop(contender, None):
                process.close()


def measure(samples: int, boxes: int, image: str, only: list[str]) -> dict[str, Any]:
    chosen = [contender for contender in CONTENDERS if not only or contender.name in only]
    failed: dict[str, Any] = {}
    if any(contender.in_engine for contender in chosen):
        try:
            image = engine_image(image)
        except ContenderError as error:
            failed = {f"{contender.name}_error": error.record for contender in chosen if contender.in_engine}
            chosen = [contender for contender in chosen if not contender.in_engine]
    race = Race(chosen, image)
    race.measured |= {"samples": samples, "boxes": boxes, "commands_per_box": COMMANDS, "image": image, **failed}
    try:
        race.each(samples, COMMAND, "command")
        race.each(samples, "command_in_shell_ms", "shell_command", ours=True)
        race.each(samples, FILES, "files", files=True)
        race.cold(samples)
        race.warm(samples)
        race.many(boxes)
        race.probes()
    finally:
        race.close()
        asyncio.run(collect_garbage())  # the control groups of our own driver that was killed
        if any(contender.in_engine for contender in chosen):
            remove_leftovers()
    race.measured["contenders_failed"] = sum(name.endswith("_error") for name in race.measured)
    return race.measured | ratios(race.measured)


def ratios(measured: dict[str, Any]) -> dict[str, float]:
    """How ours compare; a ratio that lacks one of its numbers is left out, and its target is missed."""
    found: dict[str, float] = {}

    def put(name: str, above: list[str], below: list[str], best: Callable[[Iterable[float]], float] = min) -> None:
        if all(key in measured for key in [*above, *below]):
            found[name] = best(measured[key] for key in above) / best(measured[key] for key in below)

    for word, metric in (("command", COMMAND), ("files", FILES)):
        ours = [f"{DOCKER}_{metric}"]
        put(f"docker_{word}_times_faster_than_docker_py", [f"{DOCKER_PY}_{metric}"], ours)
        put(f"docker_{word}_times_faster_than_fastest_peer", [f"{peer}_{metric}" for peer in PEERS_IN_ENGINE], ours)
    ours, peers = [f"{DOCKER}_{THROUGHPUT}"], [f"{peer}_{THROUGHPUT}" for peer in PEERS_IN_ENGINE]
    put("docker_throughput_times_docker_py", ours, [f"{DOCKER_PY}_{THROUGHPUT}"])
    put("docker_throughput_times_fastest_peer", ours, peers, max)
    put("docker_cold_over_docker_py", [f"{DOCKER}_{COLD}"], [f"{DOCKER_PY}_{COLD}"])
    put("docker_cold_over_warm", [f"{DOCKER}_{COLD}"], [f"{DOCKER}_warm_acquire_and_command_ms"])
    bubblewrap, mini = (f"{name}_{{}}" for name in (BUBBLEWRAP, MINI_SWE_AGENT))
    put("bubblewrap_command_times_faster_than_mini_swe_agent", [mini.format(COMMAND)], [bubblewrap.format(COMMAND)])
    put("bubblewrap_throughput_times_mini_swe_agent", [bubblewrap.format(THROUGHPUT)], [mini.format(THROUGHPUT)])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--samples", type=int, default=40, help="of each latency; 30 for numbers to show")
    parser.add_argument("--boxes", type=int, default=BOXES, help="at once, per contender; 16 for numbers to show")
    parser.add_argument("--image", default="base", help="of glmgym image list, or of the Docker engine")
    parser.add_argument("--only", nargs="+", default=[], choices=[c.name for c in CONTENDERS], metavar="NAME")
    parser.add_argument("--live", type=int, default=0, metavar="N", help="measure N live boxes of ours instead")
    options = parser.parse_args()
    if options.live:
        import sandbox_live  # needs the Docker backend, without which the rest can still run

        try:
            measured = sandbox_live.measure(options.live, engine_image(options.image))
        except ContenderError as error:
            measured = {f"{DOCKER}_error": error.record}
        return report(measured, sandbox_live.TARGETS, options.json)
    return report(measure(options.samples, options.boxes, options.image, options.only), TARGETS, options.json)


if __name__ == "__main__":
    sys.exit(main())

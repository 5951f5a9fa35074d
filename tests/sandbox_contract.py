"""The behaviour every sandbox backend owes, as two classes to inherit: files, and everything about commands.

A backend's test class gives a ``box`` fixture (and ``open_box`` for boxes with their own limits). Case ids X1-X4 and
hazard numbers are those of docs/field_cases.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from glmgym.errors import SandboxDead
from glmgym.sandbox import BoxFileError, BoxSpec, CommandError, CommandResult, Limits, Sandbox

OpenBox = Callable[[BoxSpec], Awaitable[Sandbox]]
ALL_BYTES = bytes(range(256))


class FileContract:
    """Reading and writing files; holds for a box that runs nothing, too."""

    @pytest.mark.parametrize("data", [b"", b"a\r\n\0\xff\xfe", ALL_BYTES * 3], ids=["empty", "odd", "all"])
    async def test_a_file_comes_back_byte_for_byte(self, box: Sandbox, data: bytes) -> None:
        """X3: bytes are kept."""
        await box.write("/work/deep/er/file", data)
        assert await box.read("/work/deep/er/file") == data
        assert await box.read("deep/er/file") == data  # relative to the working directory

    async def test_an_upload_of_5_mib_and_an_overwrite(self, box: Sandbox) -> None:
        """hazard 14: contents of any size go through the protocol; a shorter second write leaves no old tail."""
        data = os.urandom(5 << 20)
        await box.write("/work/big", data)
        assert await box.read("/work/big") == data
        await box.write("/work/big", b"short")
        assert await box.read("/work/big") == b"short"

    @pytest.mark.parametrize(("max_bytes", "fits"), [(9, False), (10, True), (11, True)])
    async def test_reading_stops_at_max_bytes(self, box: Sandbox, max_bytes: int, fits: bool) -> None:
        await box.write("/work/ten", b"0123456789")
        if fits:
            assert await box.read("/work/ten", max_bytes=max_bytes) == b"0123456789"
        else:
            with pytest.raises(BoxFileError, match="/work/ten"):
                await box.read("/work/ten", max_bytes=max_bytes)

    async def test_a_missing_file_is_named(self, box: Sandbox) -> None:
        with pytest.raises(BoxFileError, match="/work/nothing"):
            await box.read("/work/nothing")

    async def test_a_full_disk_is_an_error_and_never_success(self, open_box: OpenBox) -> None:
        """X2: writing past disk_mb raises; the box goes on."""
        box = await open_box(BoxSpec(limits=Limits(disk_mb=4)))
        with pytest.raises(BoxFileError, match="No space left"):
            await box.write("/work/big", b"x" * (5 << 20))
        await box.write("/work/big", b"small")
        assert await box.read("/work/big") == b"small"

    async def test_a_closed_box_is_dead_and_closing_twice_is_fine(self, box: Sandbox) -> None:
        await box.close()
        await box.close()
        with pytest.raises(SandboxDead):
            await box.read("/work/file")
        with pytest.raises(SandboxDead):
            await box.run(["true"])

    async def test_an_empty_command_is_refused(self, box: Sandbox) -> None:
        with pytest.raises(CommandError, match="empty"):
            await box.run([])


class SandboxContract(FileContract):
    """A box with real processes in it."""

    # --- results

    async def test_exit_code_streams_stdin_cwd_and_environment(self, box: Sandbox) -> None:
        script = 'read line; echo "$line $PWD $COLOUR"; echo bad >&2; exit 7'
        result = await box.run(["bash", "-c", script], stdin=b"hello\n", cwd="/tmp", env={"COLOUR": "a=b"})
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"hello /tmp a=b\n", b"bad\n")
        assert not result.timed_out

    @pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("TERM", 143), ("PIPE", 141)])
    async def test_a_signal_is_128_plus_its_number(self, box: Sandbox, name: str, code: int) -> None:
        assert (await bash(box, f"kill -{name} $$")).exit_code == code

    @pytest.mark.parametrize(
        ("argv", "cwd", "named"),
        [
            (["no-such-program"], None, "no-such-program"),
            (["/work/nothing"], None, "/work/nothing"),
            (["/etc/passwd"], None, "/etc/passwd"),
            (["true"], "/no/such/place", "/no/such/place"),
            (["true", "x" * 200_000], None, "too long"),
        ],
    )
    async def test_what_cannot_start_is_a_typed_error(
        self, box: Sandbox, argv: list[str], cwd: str | None, named: str
    ) -> None:
        """hazard 10, hazard 14: never the engine's error dressed up as the command's output and exit 126."""
        with pytest.raises(CommandError, match=named):
            await box.run(argv, cwd=cwd)
        assert (await bash(box, "echo fine")).stdout == b"fine\n"

    async def test_exit_126_of_a_command_is_data(self, box: Sandbox) -> None:
        """hazard 10"""
        assert (await bash(box, "exit 126")).exit_code == 126

    async def test_commands_run_side_by_side(self, box: Sandbox) -> None:
        began = time.monotonic()
        results = await asyncio.gather(*(bash(box, f"sleep 0.5; echo {number}") for number in range(6)))
        assert [result.stdout for result in results] == [b"%d\n" % number for number in range(6)]
        assert time.monotonic() - began < 2.0  # one after the other takes 3

    # --- bytes and amounts

    async def test_bytes_are_kept_and_the_view_is_text(self, box: Sandbox) -> None:
        r"""X3, hazard 4: ``\xff\xfe``, NULs, a binary, and a character split across two writes."""
        assert (await bash(box, r"printf '\xff\xfe\0x'")).stdout == b"\xff\xfe\0x"
        binary = await box.read("/bin/ls", max_bytes=1 << 20)
        assert binary[:4] == b"\x7fELF"
        big = await box.run(["cat", "/bin/ls"])
        half = BoxSpec().limits.output_bytes // 2
        assert big.stdout == binary[:half] + binary[-half:]
        split = await bash(box, r"printf 'a\xe2\x82'; sleep 0.05; printf '\xac\r\n\033[1mb\033[0m'")
        assert split.text == "a€\nb"

    @pytest.mark.parametrize("through_shell", [False, True])
    async def test_20_mb_of_output_is_bounded_and_counted(self, box: Sandbox, through_shell: bool) -> None:
        """X4, hazard 3: ``seq 3000000`` writes 22,888,896 bytes; the first and last 32 KiB stay."""
        command = "seq 3000000"
        result = await (await box.shell()).run(command) if through_shell else await bash(box, command)
        assert result.exit_code == 0
        assert len(result.stdout) == 65536
        assert result.dropped_bytes == 22_888_896 - 65536
        assert result.stdout.startswith(b"1\n2\n3\n")
        assert result.stdout.endswith(b"\n2999999\n3000000\n")

    @pytest.mark.parametrize("through_shell", [False, True])
    async def test_a_line_of_300000_characters(self, open_box: OpenBox, through_shell: bool) -> None:
        """X4, hazard 3"""
        box = await open_box(BoxSpec(limits=Limits(output_bytes=1 << 20)))
        command = "head -c 300000 /dev/zero | tr '\\0' y"
        result = await (await box.shell()).run(command) if through_shell else await bash(box, command)
        assert result.stdout == b"y" * 300_000
        assert result.dropped_bytes == 0

    async def test_stdin_of_a_megabyte_and_a_reader_that_leaves(self, open_box: OpenBox) -> None:
        box = await open_box(BoxSpec(limits=Limits(output_bytes=4 << 20)))
        data = ALL_BYTES * 4096
        assert (await box.run(["cat"], stdin=data)).stdout == data
        assert (await box.run(["head", "-c", "3"], stdin=data)).stdout == data[:3]
        assert (await box.run(["cat"], timeout_s=5)).stdout == b""  # X4: nothing to wait for

    # --- processes

    async def test_a_timeout_kills_a_setsid_child(self, box: Sandbox) -> None:
        """X1, hazard 1: parent, child and a double-forked setsid child all existed, and none is left."""
        mark = new_mark()
        script = f"(setsid bash -c 'exec -a {mark} sleep 300' &) ; bash -c 'exec -a {mark} sleep 300'"
        running = asyncio.create_task(bash(box, script, timeout_s=1.0))
        await until(lambda: count(box, mark), at_least=2)
        result = await running
        assert result.timed_out
        assert result.exit_code == 124
        assert 0.9 < result.wall_s < 2.0
        assert await count(box, mark) == 0

    async def test_a_timeout_keeps_the_output_so_far_and_spares_others(self, box: Sandbox) -> None:
        """What another command started meanwhile, orphans of its session included, is not the timed-out command's."""
        mark = new_mark()
        dying = asyncio.create_task(bash(box, "echo before; sleep 300", timeout_s=0.6))
        await asyncio.sleep(0.1)
        other = asyncio.create_task(bash(box, f"(bash -c 'exec -a {mark} sleep 300' &); sleep 0.8; echo done"))
        result = await dying
        assert (result.timed_out, result.stdout) == (True, b"before\n")
        assert (await other).stdout == b"done\n"
        assert await count(box, mark) == 1

    async def test_a_cancelled_call_leaves_nothing_running(self, box: Sandbox) -> None:
        """hazard 1: giving up waiting is a timeout too."""
        mark = new_mark()
        running = asyncio.create_task(bash(box, f"(setsid bash -c 'exec -a {mark} sleep 300' &); sleep 300"))
        await until(lambda: count(box, mark), at_least=1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: count(box, mark), at_most=0)

    async def test_a_background_child_holding_stdout_delays_nobody(self, box: Sandbox) -> None:
        """hazard 2: the call returns in the 100 ms drain, the next one at once; the child lives on with its output."""
        mark = new_mark()
        began = time.monotonic()
        script = f"bash -c 'exec -a {mark} sleep 300' & (sleep 0.5; echo late; echo alive > /work/alive) & echo ok"
        result = await bash(box, script)
        assert result.stdout == b"ok\n"
        assert (await bash(box, "echo next")).stdout == b"next\n"
        assert time.monotonic() - began < 0.5
        assert await count(box, mark) >= 1
        await asyncio.sleep(0.6)
        assert await box.read("/work/alive") == b"alive\n"  # it was not killed by a closed pipe

    async def test_no_zombies_are_left(self, box: Sandbox) -> None:
        """hazard 11: orphans are waited for."""
        await bash(box, "for i in $(seq 20); do (setsid true &) ; done")
        zombies = "cat /proc/[0-9]*/stat | cut -d' ' -f3 | grep -c Z"
        await until(lambda: number(bash(box, zombies)), at_most=0)

    async def test_a_command_cannot_reach_the_agent(self, box: Sandbox) -> None:
        """The protocol's descriptors and the agent's memory are out of reach, and nothing is inherited."""
        assert (await bash(box, "cat /proc/1/fd/* > /dev/null")).exit_code != 0
        assert (await bash(box, "echo forged > /proc/1/fd/11")).exit_code != 0
        assert (await bash(box, "ls /proc/1/fd")).exit_code != 0
        assert (await bash(box, "cat /proc/1/environ")).exit_code != 0
        assert (await bash(box, "exec 9<> /proc/1/mem")).exit_code != 0
        look = "ls /proc/self/fd | tr '\\n' ' '"  # 0 1 2, and 3 for ls reading the directory
        assert (await bash(box, look)).stdout == b"0 1 2 3 "
        assert (await (await box.shell()).run(look)).stdout == b"0 1 2 3 "
        assert (await bash(box, "echo fine")).stdout == b"fine\n"

    # --- the persistent shell

    async def test_cd_and_export_last(self, box: Sandbox) -> None:
        """hazard 13; and a command's stdin is empty, not the script."""
        shell = await box.shell()
        await shell.run("cd /tmp; export COLOUR=red; f() { echo f:$1; }")
        assert (await shell.run("echo $PWD $COLOUR; f 1; cat; echo err >&2")).stdout == b"/tmp red\nf:1\nerr\n"
        assert (await bash(box, "echo $PWD$COLOUR")).stdout == b"/work\n"  # other commands do not see it

    @pytest.mark.parametrize(
        ("command", "exit_code", "output"),
        [
            ("exit 3", 3, b""),
            ("echo a; exec sleep 0.1", 0, b"a\n"),
            ("echo 'open", 2, b"unexpected EOF"),
            ("if true; then", 2, b"unexpected end of file"),
            ("cat <<END\none\ntwo\nEND", 0, b"one\ntwo\n"),
            ("cat <<END\nno end", 0, b"no end\n"),
            ("set -e; false", 1, b""),
            ("stty raw; echo b", 0, b"b\n"),
            ("echo c\\", 0, b"c"),
            ("echo $__token 0; false", 1, b" 0\n"),
            ("# nothing", 0, b""),
            ("", 0, b""),
            ("kill -9 $$", 137, b""),
            ("exec 1>&- 2>&-", 0, b""),
            ("cat", 0, b""),
            ("read line", 1, b""),
            ("trap 'echo bye' EXIT; exit 4", 4, b"bye\n"),
            ("echo é", 0, "é\n".encode()),
        ],
    )
    async def test_the_shell_survives(self, box: Sandbox, command: str, exit_code: int, output: bytes) -> None:
        """X4, hazard 13: the result is right, and the next command works, in a fresh shell if need be."""
        shell = await box.shell()
        await shell.run("cd /tmp")
        result = await shell.run(command, timeout_s=5)
        assert result.exit_code == exit_code
        assert output in result.stdout
        assert not result.timed_out
        assert (await shell.run("echo next; pwd")).stdout.endswith(b"next\n/tmp\n")

    async def test_a_command_text_of_200_kib(self, box: Sandbox) -> None:
        """hazard 14"""
        text = "x" * 200 * 1024
        result = await (await box.shell()).run(f"v={text}; echo ${{#v}}")
        assert result.stdout == b"204800\n"

    async def test_a_shell_timeout_kills_the_command_and_keeps_the_place(self, box: Sandbox) -> None:
        """X1 in a shell: even a loop of the shell itself ends; what an earlier command started goes on."""
        shell, earlier, mark = await box.shell(), new_mark(), new_mark()
        await shell.run(f"cd /tmp; bash -c 'exec -a {earlier} sleep 300' &")
        await until(lambda: count(box, earlier), at_least=1)
        await asyncio.sleep(0.05)  # birth is told in steps of 10 ms
        running = asyncio.create_task(
            shell.run(f"(setsid bash -c 'exec -a {mark} sleep 300' &); while :; do :; done", timeout_s=0.7)
        )
        await until(lambda: count(box, mark), at_least=1)
        assert (await running).timed_out
        assert await count(box, mark) == 0
        assert await count(box, earlier) >= 1
        assert (await shell.run("pwd")).stdout == b"/tmp\n"

    async def test_closing_a_shell_ends_its_processes(self, box: Sandbox) -> None:
        shell, mark = await box.shell(), new_mark()
        await shell.run(f"bash -c 'exec -a {mark} sleep 300' &")
        await until(lambda: count(box, mark), at_least=1)
        await shell.close()
        assert await count(box, mark) == 0

    # --- files, with a policy that plays tricks

    async def test_only_regular_files_are_read(self, box: Sandbox) -> None:
        """hazard 12: symlinks, directories, pipes and devices are refused, without hanging."""
        await bash(box, "ln -s /etc/passwd link; mkdir dir; mkfifo pipe; echo secret > shut; chmod 0 shut")
        for path in ("link", "dir", "pipe", "/dev/zero", "shut"):
            with pytest.raises(BoxFileError, match=path):
                await box.read(path)
        for path in ("link", "dir", "pipe"):
            with pytest.raises(BoxFileError, match=path):
                await box.write(path, b"x")

    async def test_the_mode_of_a_written_file(self, box: Sandbox) -> None:
        await box.write("/work/tool", b"#!/bin/sh\necho ran\n", mode=0o755)
        assert (await box.run(["./tool"])).stdout == b"ran\n"

    # --- limits, isolation, death

    async def test_a_full_disk_shows_in_the_command(self, open_box: OpenBox) -> None:
        """X2, hazard 7"""
        box = await open_box(BoxSpec(limits=Limits(disk_mb=4)))
        result = await bash(box, "head -c 8000000 /dev/zero > /work/big")
        assert result.exit_code != 0
        assert "No space left" in result.text

    async def test_memory_is_limited_and_the_box_goes_on(self, open_box: OpenBox) -> None:
        """hazard 6"""
        box = await open_box(BoxSpec(limits=Limits(memory_mb=64)))
        eat = "python3 -c 'b = bytearray(32 << 20); print(len(b)); c = bytearray(256 << 20); print(len(c))'"
        result = await bash(box, eat)
        assert result.exit_code != 0
        assert b"268435456" not in result.stdout
        assert (await bash(box, "echo fine")).stdout == b"fine\n"

    async def test_a_fork_bomb_is_contained(self, open_box: OpenBox) -> None:
        """hazard 5: no more than ``pids`` processes; a box full of them is declared dead, or tells the truth."""
        box = await open_box(BoxSpec(limits=Limits(pids=30)))
        result = await bash(box, "for i in $(seq 60); do sleep 20 & done; jobs -r | wc -l", timeout_s=1)
        assert result.exit_code != 0
        assert "fork" in result.text
        await still_true(box)
        box = await open_box(BoxSpec(limits=Limits(pids=30)))
        bomb = await bash(box, "b() { b | b & }; b; sleep 20", timeout_s=1)
        assert bomb.exit_code != 0
        await still_true(box)

    @pytest.mark.parametrize(
        "attack", ["rm -rf /bin /usr/bin /etc", "kill -9 1", "kill -9 -1", "kill -STOP 1", "rm -rf /work/* /tmp/*"]
    )
    async def test_destruction_is_death_or_harmless(self, box: Sandbox, attack: str) -> None:
        """X2, hazard 15: afterwards a command either tells the truth or the box is dead; never a made-up success."""
        await bash(box, attack, timeout_s=5)
        await still_true(box)

    async def test_a_killed_box_is_dead_for_the_call_under_way_and_all_later_ones(self, box: Sandbox) -> None:
        """X2, hazard 10, hazard 15"""
        mark = new_mark()
        running = asyncio.create_task(bash(box, f"exec -a {mark} sleep 300"))
        await until(lambda: count(box, mark), at_least=1)
        (sleeper,) = host_processes(mark)
        os.kill(parent_of(sleeper), signal.SIGKILL)
        with pytest.raises(SandboxDead, match="is gone"):
            await running
        with pytest.raises(SandboxDead, match="is gone"):
            await box.write("/work/x", b"")
        with pytest.raises(SandboxDead, match="is gone"):
            await (await box.shell()).run("true")
        assert host_processes(mark) == []

    async def test_closing_leaves_no_process(self, box: Sandbox) -> None:
        mark = new_mark()
        await bash(box, f"for i in 1 2 3; do (setsid bash -c 'exec -a {mark} sleep 300' &); done; sleep 0.2")
        assert len(host_processes(mark)) == 3
        await box.close()
        assert host_processes(mark) == []

    async def test_the_network_is_off(self, box: Sandbox) -> None:
        """hazard 11: a listener on this machine's loopback is not reached from the box, though it is from here."""
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        socket.create_connection(address).close()  # it does listen
        listener.accept()[0].close()
        result = await bash(box, f"echo hi > /dev/tcp/127.0.0.1/{address[1]}", timeout_s=5)
        assert result.exit_code != 0
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.close()

    async def test_files_of_this_machine_are_invisible(self, box: Sandbox, tmp_path: Path) -> None:
        """hazard 11: our files, home directories and secrets are not there; we are not root."""
        (tmp_path / "secret").write_text("secret")
        for path in (str(tmp_path / "secret"), __file__, "/etc/shadow", "/root", "/home"):
            with pytest.raises(BoxFileError, match="No such file"):
                await box.read(path)
        assert (await bash(box, "id -u")).stdout != b"0\n"
        assert (await bash(box, "touch /usr/x /etc/x /x")).exit_code != 0

    async def test_privileged_system_calls_are_refused(self, box: Sandbox) -> None:
        """hazard 11: mount, ptrace, unshare, keyctl with EPERM (1); vsock with EAFNOSUPPORT (97)."""
        calls = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
def errno(name, *args):
    return ctypes.get_errno() if getattr(libc, name)(*args) == -1 else 0
print(errno("mount", b"none", b"/tmp", b"tmpfs", 0, None), errno("ptrace", 0, 0, 0, 0), errno("unshare", 0x10000000))
print(errno("socket", 40, 1, 0), errno("socket", 1, 1, 0))
"""
        result = await box.run(["python3", "-c", calls])
        assert result.text == "1 1 1\n97 0\n"

    async def test_two_boxes_share_nothing(self, box: Sandbox, open_box: OpenBox) -> None:
        other, mark = await open_box(BoxSpec()), new_mark()
        await bash(box, f"echo {mark} > /work/x; cp /work/x /tmp/x; cp /work/x /dev/shm/x; exec -a {mark} sleep 300 &")
        assert (await bash(other, "cat /work/x /tmp/x /dev/shm/x")).stdout == b""
        assert await count(other, mark) == 0


# --- what the tests are written with


async def bash(box: Sandbox, script: str, *, timeout_s: float = 20.0) -> CommandResult:
    return await box.run(["bash", "-c", script], timeout_s=timeout_s)


async def still_true(box: Sandbox) -> None:
    """A fresh random word comes back from a command, or the box says that it is dead."""
    word = uuid.uuid4().hex
    try:
        result = await box.run(["bash", "-c", "tr a-f A-F"], stdin=word.encode())
    except SandboxDead:
        return
    assert (result.exit_code, result.stdout.decode()) == (0, word.translate(str.maketrans("abcdef", "ABCDEF")))


def new_mark() -> str:
    return f"mark-{uuid.uuid4().hex}"


async def count(box: Sandbox, mark: str) -> int:
    """How many processes in the box carry ``mark`` in their command line, the one that looks not counted."""
    pattern = f"{mark[:-1]}[{mark[-1]}]"
    result = await box.run(["bash", "-c", f"grep -lsa '{pattern}' /proc/[0-9]*/cmdline | wc -l"])
    return int(result.stdout)


async def number(result: Awaitable[CommandResult]) -> int:
    return int((await result).stdout)


async def until(
    measure: Callable[[], Awaitable[int]], *, at_least: int = 0, at_most: int = 1 << 30, timeout_s: float = 5.0
) -> None:
    """Wait for a count to come into a range; fail with the last one seen."""
    end = time.monotonic() + timeout_s
    while not at_least <= (seen := await measure()) <= at_most:
        assert time.monotonic() < end, f"still {seen} after {timeout_s} s"
        await asyncio.sleep(0.02)


def host_processes(mark: str, *, anywhere: bool = False) -> list[int]:
    """Processes of this machine, boxes included, whose command line starts with ``mark``, or holds it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
            if line.startswith(mark.encode()) or (anywhere and mark.encode() in line):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

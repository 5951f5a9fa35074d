"""Checks of single commands: results, errors, streams, and any amount of bytes in either direction."""

from __future__ import annotations

import asyncio
import time

from glmgym.errors import SandboxFailure
from glmgym.sandbox import BoxSpec, CommandError, Limits
from glmgym_sandboxes.selfcheck.check import Subject, Unmet, check, equal, holds, refused
from glmgym_sandboxes.selfcheck.files import ALL_BYTES
from glmgym_sandboxes.selfcheck.observe import bash, round_trip_s

HEAD_AND_TAIL_BYTES = BoxSpec().limits.output_bytes


@check("commands", runs_commands=False)
async def an_empty_command_is_refused(subject: Subject) -> None:
    """No program at all is an error that says so."""
    box = await subject.open()
    with refused(CommandError, "empty"):
        await box.run([])


@check("commands")
async def exit_code_streams_stdin_cwd_and_environment(subject: Subject) -> None:
    """Each arrives where it belongs: stdin and variables in, the two streams apart and the exit code out."""
    box = await subject.open()
    script = 'read line; echo "$line $PWD $COLOUR"; echo bad >&2; exit 7'
    result = await box.run(["bash", "-c", script], stdin=b"hello\n", cwd="/tmp", env={"COLOUR": "a=b"})
    seen = (result.exit_code, result.stdout, result.stderr, result.timed_out)
    equal(seen, (7, b"hello /tmp a=b\n", b"bad\n", False), "exit code, stdout, stderr, timed_out")


@check("commands")
async def the_environment_and_directory_of_the_box(subject: Subject) -> None:
    """A command finds the box's working directory as its own and as its home, and the variables of the BoxSpec."""
    box = await subject.open(cwd="/app/src", env={"COLOUR": "blue"})
    equal((await bash(box, "echo $PWD $HOME $COLOUR; touch here")).stdout, b"/app/src /app/src blue\n", "the output")
    equal(await box.read("/app/src/here"), b"", "a file made in the working directory")
    equal((await (await box.shell()).run("echo $PWD $COLOUR")).stdout, b"/app/src blue\n", "the output in a shell")


@check("commands")
async def commands_do_not_run_as_root(subject: Subject) -> None:
    """hazard 11: the default user is not root."""
    box = await subject.open()
    holds((await bash(box, "id -u")).stdout.strip() not in (b"0", b""), "a user id other than 0", "0 or none")


@check("commands")
async def a_user_that_does_not_exist_is_named(subject: Subject) -> None:
    """hazard 10: an unknown user in the BoxSpec is an error naming it, not a box that fails later."""
    with refused(SandboxFailure, "nosuchuser"):
        await subject.open(user="nosuchuser")


@check("commands")
async def a_signal_is_128_plus_its_number(subject: Subject) -> None:
    """A command ended by a signal has exit code 128 + n."""
    box = await subject.open()
    for name, code in (("KILL", 137), ("TERM", 143), ("PIPE", 141)):
        equal((await bash(box, f"kill -{name} $$")).exit_code, code, f"the exit code after SIG{name}")


@check("commands")
async def what_cannot_start_is_a_typed_error(subject: Subject) -> None:
    """hazard 10, hazard 14: never the engine's error dressed up as the command's output and exit 126."""
    box = await subject.open()
    for argv, cwd, named in (
        (["no-such-program"], None, "no-such-program"),
        (["/work/nothing"], None, "/work/nothing"),
        (["/etc/passwd"], None, "/etc/passwd"),
        (["true"], "/no/such/place", "/no/such/place"),
        (["true", "x" * 200_000], None, "too long"),
    ):
        with refused(CommandError, named):
            await box.run(argv, cwd=cwd)
        equal((await bash(box, "echo fine")).stdout, b"fine\n", "the output of the next command")


@check("commands")
async def exit_126_of_a_command_is_data(subject: Subject) -> None:
    """hazard 10: an exit code that engines use for their own errors is passed on when a command chose it."""
    for code in (125, 126, 127):
        equal((await bash(await subject.open(), f"exit {code}")).exit_code, code, "the exit code")


@check("commands")
async def commands_run_side_by_side(subject: Subject) -> None:
    """Six commands of a second take less than the 6 s that they would need one after the other."""
    box = await subject.open()
    allowed_s = 4.0 + 3 * await round_trip_s(box)
    began = time.monotonic()
    results = await asyncio.gather(*(bash(box, f"sleep 1; echo {number}") for number in range(6)))
    took_s = time.monotonic() - began
    equal([result.stdout for result in results], [b"%d\n" % number for number in range(6)], "each command's output")
    holds(took_s < allowed_s, f"less than {allowed_s:.1f} s for all six", f"{took_s:.1f} s")


@check("commands")
async def bytes_are_kept_and_the_view_is_text(subject: Subject) -> None:
    r"""X3, hazard 4: ``\xff\xfe``, NULs, a binary, and a character split across two writes."""
    box = await subject.open()
    equal((await bash(box, r"printf '\xff\xfe\0x'")).stdout, b"\xff\xfe\0x", "stdout")
    binary = await box.read("/bin/ls", max_bytes=4 << 20)
    equal(binary[:4], b"\x7fELF", "the start of /bin/ls")
    half = HEAD_AND_TAIL_BYTES // 2
    equal((await box.run(["cat", "/bin/ls"])).stdout == binary[:half] + binary[-half:], True, "cat's output as read")
    split = await bash(box, r"printf 'a\xe2\x82'; sleep 0.05; printf '\xac\r\n\033[1mb\033[0m'")
    equal(split.text, "a€\nb", "the text view")


@check("commands")
async def output_of_20_mb_is_bounded_and_counted(subject: Subject) -> None:
    """X4, hazard 3: of the 22,888,896 bytes of ``seq 3000000`` the first and last 32 KiB stay, the rest is counted."""
    box = await subject.open()
    command = "seq 3000000"
    for result in (await bash(box, command), await (await box.shell()).run(command)):
        facts = (result.exit_code, len(result.stdout), result.dropped_bytes)
        equal(facts, (0, HEAD_AND_TAIL_BYTES, 22_888_896 - HEAD_AND_TAIL_BYTES), "exit code, kept and dropped bytes")
        equal(result.stdout[:6], b"1\n2\n3\n", "the head")
        equal(result.stdout[-16:], b"2999999\n3000000\n", "the tail")


@check("commands")
async def a_line_of_300000_characters(subject: Subject) -> None:
    """X4, hazard 3: one line may be very long."""
    box = await subject.open(limits=Limits(output_bytes=1 << 20))
    command = "head -c 300000 /dev/zero | tr '\\0' y"
    for result in (await bash(box, command), await (await box.shell()).run(command)):
        equal(result.stdout == b"y" * 300_000, True, "the whole line")
        equal(result.dropped_bytes, 0, "dropped bytes")


@check("commands")
async def stdin_of_a_megabyte_and_a_reader_that_leaves(subject: Subject) -> None:
    """X4: all of stdin arrives, a command need not read it, and without any it is at its end, not waiting."""
    box = await subject.open(limits=Limits(output_bytes=4 << 20))
    data = ALL_BYTES * 4096
    equal((await box.run(["cat"], stdin=data)).stdout == data, True, "1 MiB through cat")
    equal((await box.run(["head", "-c", "3"], stdin=data)).stdout, data[:3], "what head read")
    if (result := await box.run(["cat"], timeout_s=5)).timed_out:
        raise Unmet("an end of input for a command without stdin", "a timeout")
    equal(result.stdout, b"", "what cat found on an empty stdin")

"""Checks of single files: bytes, amounts, modes, and a policy that plays tricks with names."""

from __future__ import annotations

import os

from glmgym.sandbox import BoxFileError, Limits
from glmgym_sandboxes.selfcheck.check import Subject, check, equal, refused
from glmgym_sandboxes.selfcheck.observe import bash

ALL_BYTES = bytes(range(256))


@check("files", runs_commands=False)
async def a_file_comes_back_byte_for_byte(subject: Subject) -> None:
    """X3: bytes are kept; a relative path starts in the working directory."""
    box = await subject.open()
    for data in (b"", b"a\r\n\0\xff\xfe", ALL_BYTES * 3):
        await box.write("/work/deep/er/file", data)
        equal(await box.read("/work/deep/er/file"), data, "the file's content")
        equal(await box.read("deep/er/file"), data, "the content by its relative path")


@check("files", runs_commands=False)
async def an_upload_of_5_mib_and_an_overwrite(subject: Subject) -> None:
    """hazard 14: contents of any size are taken; a shorter second write leaves no old tail."""
    box, data = await subject.open(), os.urandom(5 << 20)
    await box.write("/work/big", data)
    equal(await box.read("/work/big") == data, True, "5 MiB that came back the same")
    await box.write("/work/big", b"short")
    equal(await box.read("/work/big"), b"short", "the content after a shorter write")


@check("files", runs_commands=False)
async def reading_stops_at_max_bytes(subject: Subject) -> None:
    """A file of 10 bytes is read with a limit of 10 and refused by name with 9."""
    box = await subject.open()
    await box.write("/work/ten", b"0123456789")
    for max_bytes in (10, 11):
        equal(await box.read("/work/ten", max_bytes=max_bytes), b"0123456789", f"the file read with {max_bytes=}")
    with refused(BoxFileError, "/work/ten"):
        await box.read("/work/ten", max_bytes=9)


@check("files", runs_commands=False)
async def a_missing_file_is_named(subject: Subject) -> None:
    """A file that is not there is an error naming it."""
    box = await subject.open()
    with refused(BoxFileError, "/work/nothing"):
        await box.read("/work/nothing")


@check("files", runs_commands=False)
async def a_full_disk_is_an_error_and_never_success(subject: Subject) -> None:
    """X2: writing past disk_mb is an error that says so, and the box goes on."""
    box = await subject.open(limits=Limits(disk_mb=4))
    with refused(BoxFileError, "No space left"):
        await box.write("/work/big", b"x" * (5 << 20))
    await box.write("/work/big", b"small")
    equal(await box.read("/work/big"), b"small", "what is written after the disk was full")


@check("files")
async def only_regular_files_are_read(subject: Subject) -> None:
    """hazard 12: symlinks, directories, pipes, devices and forbidden files are refused by name, without hanging."""
    box = await subject.open()
    await bash(box, "ln -s /etc/passwd link; mkdir dir; mkfifo pipe; echo secret > shut; chmod 0 shut")
    for path in ("link", "dir", "pipe", "/dev/zero", "shut"):
        with refused(BoxFileError, path):
            await box.read(path)
    for path in ("link", "dir", "pipe"):
        with refused(BoxFileError, path):
            await box.write(path, b"x")


@check("files")
async def the_mode_of_a_written_file(subject: Subject) -> None:
    """A file written with mode 0755 is a program, one without is not."""
    box, program = await subject.open(), b"#!/bin/sh\necho ran\n"
    await box.write("/work/tool", program, mode=0o755)
    await box.write("/work/text", program, mode=0o640)
    equal((await box.run(["./tool"])).stdout, b"ran\n", "the output of a written program")
    equal((await bash(box, "stat -c %a tool text")).stdout, b"755\n640\n", "the modes of the two files")


@check("files")
async def what_the_user_may_not_write_is_refused(subject: Subject) -> None:
    """The system's directories take no files, and the error names the path."""
    box = await subject.open()
    for path in ("/usr/written", "/etc/written", "/written"):
        with refused(BoxFileError, path):
            await box.write(path, b"x")
    equal((await bash(box, "touch /usr/x || touch /etc/x || touch /x")).exit_code != 0, True, "a failing touch")

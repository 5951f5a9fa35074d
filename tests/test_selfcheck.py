"""The self-check as a third party uses it: a backend that breaks a rule fails the checks of that rule, by name."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmgym.cli.app import app
from glmgym.errors import SandboxFailure, UnknownName
from glmgym.sandbox import BoxFileError, BoxSpec, CommandResult, Sandbox, SandboxProvider, Shell
from glmgym_sandboxes.bubblewrap import open_provider
from glmgym_sandboxes.fake import FakeProvider
from glmgym_sandboxes.selfcheck import (
    CHECKS,
    Check,
    NotApplicable,
    Subject,
    Unmet,
    check,
    run_check,
    run_checks,
    select,
)
from glmgym_sandboxes.selfcheck.check import equal, refused, shortened


class Relayed:
    """A box that hands everything on to a real one; a subclass breaks one rule."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.id, self.image_digest = box.id, box.image_digest

    def __getattr__(self, name: str) -> Any:
        return getattr(self.box, name)


class ForgetsExitCodes(Relayed):
    async def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        result = await self.box.run(argv, **options)
        return CommandResult(0, result.stdout, result.stderr, result.timed_out, result.dropped_bytes, result.wall_s)


class DecodesOutput(Relayed):
    async def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        result = await self.box.run(argv, **options)
        text = result.stdout.decode("utf-8", "ignore").encode()
        return CommandResult(result.exit_code, text, result.stderr, result.timed_out, result.dropped_bytes)


class LeavesTimedOutCommands(Relayed):
    async def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, **options: Any) -> CommandResult:
        self.running = asyncio.create_task(self.box.run(argv, timeout_s=300, **options))
        try:
            return await asyncio.wait_for(asyncio.shield(self.running), timeout_s)
        except TimeoutError:
            return CommandResult(124, timed_out=True, wall_s=timeout_s)


class FollowsSymlinks(Relayed):
    async def read(self, path: str, *, max_bytes: int = 1 << 24) -> bytes:
        result = await self.box.run(["cat", "--", path])
        if result.exit_code != 0:
            raise BoxFileError(result.text)
        return result.stdout


class ForgetsTheDirectory(Relayed):
    """Its shell is a new one for every command."""

    async def shell(self) -> Shell:
        return self  # type: ignore[return-value]

    async def run(self, argv: Sequence[str] | str, **options: Any) -> CommandResult:
        return await self.box.run(["bash", "-c", argv] if isinstance(argv, str) else argv, **options)

    async def close(self) -> None:
        return None


class StaysOpen(Relayed):
    async def close(self) -> None:
        return None


class EngineTalks(Relayed):
    """What cannot start becomes exit code 126 with the engine's error as output."""

    async def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        try:
            return await self.box.run(argv, **options)
        except Exception as error:  # noqa: BLE001  as such an engine does
            return CommandResult(126, str(error).encode())


class Broken:
    """A provider of real boxes, each put through ``lie``."""

    name, limits_note = "broken", ""

    def __init__(self, provider: SandboxProvider, lie: Callable[[Sandbox], Any]) -> None:
        self.provider, self.lie = provider, lie

    async def open(self, spec: BoxSpec) -> Sandbox:
        box: Sandbox = self.lie(await self.provider.open(spec))
        return box

    async def close(self) -> None:
        await self.provider.close()


@pytest.fixture
async def provider(bubblewrap_works: None) -> AsyncIterator[SandboxProvider]:
    provider = open_provider({"warm": 0})
    yield provider
    await provider.close()


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    ("lie", "among", "failing"),
    [
        (Relayed, ("commands", "files"), set()),
        (
            ForgetsExitCodes,
            ("commands", "files"),
            {
                "exit_code_streams_stdin_cwd_and_environment",
                "a_signal_is_128_plus_its_number",
                "exit_126_of_a_command_is_data",
                "what_the_user_may_not_write_is_refused",
            },
        ),
        (
            DecodesOutput,
            ("commands",),
            {"bytes_are_kept_and_the_view_is_text", "stdin_of_a_megabyte_and_a_reader_that_leaves"},
        ),
        (
            LeavesTimedOutCommands,
            (
                "a_timeout_kills_a_setsid_child",
                "a_timeout_keeps_the_output_so_far_and_spares_others",
                "no_zombies_are_left",
            ),
            {"a_timeout_kills_a_setsid_child", "a_timeout_keeps_the_output_so_far_and_spares_others"},
        ),
        (  # through cat, whose output is cut
            FollowsSymlinks,
            ("files",),
            {"only_regular_files_are_read", "reading_stops_at_max_bytes", "an_upload_of_5_mib_and_an_overwrite"},
        ),
        (
            ForgetsTheDirectory,
            ("cd_and_export_last", "the_shell_survives", "closing_a_shell_ends_its_processes"),
            {"cd_and_export_last", "the_shell_survives", "closing_a_shell_ends_its_processes"},
        ),
        (
            StaysOpen,
            ("closing_leaves_no_process", "a_closed_box_is_dead_and_closing_twice_is_fine"),
            {"closing_leaves_no_process", "a_closed_box_is_dead_and_closing_twice_is_fine"},
        ),
        (
            EngineTalks,
            ("commands", "death"),
            {
                "an_empty_command_is_refused",
                "what_cannot_start_is_a_typed_error",
                "a_closed_box_is_dead_and_closing_twice_is_fine",
                "a_killed_box_is_dead_for_the_call_under_way_and_all_later_ones",
            },
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_broken_rule_fails_its_checks_and_no_others(
    provider: SandboxProvider, lie: Callable[[Sandbox], Any], among: tuple[str, ...], failing: set[str]
) -> None:
    outcomes = await run_checks(Broken(provider, lie), select(CHECKS, among))
    assert {outcome.check.name for outcome in outcomes if outcome.verdict == "failed"} == failing
    assert all(outcome.expected and outcome.seen for outcome in outcomes if outcome.verdict == "failed")


@pytest.mark.bubblewrap
async def test_boxes_that_are_one_box_are_found(provider: SandboxProvider) -> None:
    box = await provider.open(BoxSpec())
    shared = Broken(provider, lambda fresh: box)
    (outcome,) = await run_checks(shared, select(CHECKS, ["two_boxes_share_nothing"]))
    assert (outcome.verdict, outcome.expected) == ("failed", "the same files in the other box to be b''")


async def test_a_backend_that_runs_nothing_passes_what_needs_no_command_and_nothing_else() -> None:
    """So no check can pass without having seen the box do something."""
    outcomes = await run_checks(FakeProvider(), CHECKS)
    passed = {outcome.check.name for outcome in outcomes if outcome.verdict == "passed"}
    assert passed == {each.name for each in CHECKS if not each.runs_commands}
    assert {outcome.verdict for outcome in outcomes} == {"passed", "failed"}


def test_each_check_has_a_name_a_sentence_and_a_place() -> None:
    names = [each.name for each in CHECKS]
    assert len(set(names)) == len(names) >= 43
    themes = [each.theme for each in CHECKS]
    assert [theme for theme, _ in groupby(themes)] == list(dict.fromkeys(themes))
    for each in CHECKS:
        assert len(each.says.split()) >= 5, each.name
        assert each.says.endswith("."), each.name
    proven = {id for each in CHECKS for id in each.proves}
    assert {"X1", "X2", "X3", "X4"} <= proven
    assert {f"hazard {number}" for number in (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15)} <= proven


def test_a_check_reads_its_docstring() -> None:
    @check("files")
    async def with_ids(subject: Subject) -> None:
        """X3, hazard 14: bytes are
        kept."""

    @check("files")
    async def without(subject: Subject) -> None:
        """Hazards: none."""

    assert (with_ids.name, with_ids.proves, with_ids.says) == ("with_ids", ("X3", "hazard 14"), "Bytes are kept.")
    assert (without.proves, without.says) == ((), "Hazards: none.")


def made(body: Callable[[Subject], Any]) -> Check:
    return check("files")(body)


async def test_the_four_ways_a_check_ends_early() -> None:
    async def unmet(subject: Subject) -> None:
        """One."""
        equal(1, 2, "the number")

    async def inapplicable(subject: Subject) -> None:
        """Two."""
        raise NotApplicable("no such thing here")

    async def surprised(subject: Subject) -> None:
        """Three."""
        {}["key"]

    async def slow(subject: Subject) -> None:
        """Four."""
        await asyncio.sleep(60)

    backend = FakeProvider()
    seen = [await run_check(backend, made(body), timeout_s=0.05) for body in (unmet, inapplicable, surprised, slow)]
    assert [(each.verdict, each.expected, each.seen, each.why) for each in seen] == [
        ("failed", "the number to be 2", "1", ""),
        ("not applicable", "", "", "no such thing here"),
        ("failed", "no such error", "SandboxFailure: surprised: KeyError: 'key'", ""),
        ("failed", "an end within 0.05 s", "none", ""),
    ]


async def test_every_box_is_closed_whatever_happens() -> None:
    async def opens_two_and_fails(subject: Subject) -> None:
        """One."""
        await subject.open()
        await subject.open()
        raise Unmet("a", "b")

    backend = FakeProvider()
    await run_check(backend, made(opens_two_and_fails))
    assert [bool(box._death) for box in backend.boxes] == [True, True]


def test_an_expected_error_must_come_and_name_it() -> None:
    with pytest.raises(Unmet, match="saw no error"), refused(BoxFileError, "/x"):
        pass
    with pytest.raises(Unmet, match="saw BoxFileError: /y"), refused(BoxFileError, "/x"):
        raise BoxFileError("/y: gone")
    with pytest.raises(Unmet, match="saw SandboxFailure"), refused(BoxFileError, "/x"):
        raise SandboxFailure("/x: gone")
    with refused(BoxFileError, "/x"):
        raise BoxFileError("/x: gone")


@pytest.mark.parametrize(("length", "whole"), [(300, True), (301, False)])
def test_long_values_are_shortened(length: int, whole: bool) -> None:
    assert (shortened("x" * length) == "x" * length) is whole
    assert len(shortened("x" * 100_000)) < 350


def test_selecting_keeps_the_order_and_names_what_is_near() -> None:
    wanted = select(CHECKS, ["death", "a_missing_file_is_named"])
    assert wanted[0].name == "a_missing_file_is_named"
    assert {each.theme for each in wanted} == {"files", "death"}
    assert select(CHECKS, []) == list(CHECKS)
    with pytest.raises(UnknownName, match="did you mean 'processes'"):
        select(CHECKS, ["proceses"])


PLUGIN = """
from glmgym_sandboxes.fake import FakeProvider

class Forgetful(FakeProvider):
    async def open(self, spec):
        box = await super().open(spec)
        async def read(path, *, max_bytes=0):
            return b""
        box.read = read
        return box

def open_provider(settings=None):
    return Forgetful()
"""


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Path]:
    """Somebody's own backend as an installed package offers it."""
    (tmp_path / "forgetful.py").write_text(PLUGIN)
    (tmp_path / "forgetful-1.0.dist-info").mkdir()
    (tmp_path / "forgetful-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: forgetful\nVersion: 1.0\n")
    entry = "[glmgym.sandboxes]\nforgetful = forgetful:open_provider\n"
    (tmp_path / "forgetful-1.0.dist-info/entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "forgetful", raising=False)
    return {"forgetful": tmp_path}


FILE_CHECKS = ("a_missing_file_is_named", "an_empty_command_is_refused")


def self_check(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sandbox", "self-check", *arguments])
    return result.exit_code, result.stdout


def test_the_command_examines_a_registered_backend(registered: Mapping[str, Path]) -> None:
    only = [word for name in FILE_CHECKS for word in ("--only", name)]
    code, shown = self_check("--backend", "forgetful", *only, "--json")
    report = json.loads(shown)
    assert code == 1
    assert (report["backend"], report["passed"]) == ("forgetful", False)
    assert {each["name"]: each["verdict"] for each in report["checks"]} == dict(
        zip(FILE_CHECKS, ("failed", "passed"), strict=True)
    )
    assert report["checks"][0]["seen"] == "no error"
    code, shown = self_check("--backend", "forgetful", *only)
    assert code == 1
    lines = [line.split() for line in shown.splitlines()]
    assert ["✗", "a_missing_file_is_named"] in [line[:2] for line in lines]
    assert ["✓", "an_empty_command_is_refused"] in [line[:2] for line in lines]
    assert "expected BoxFileError naming '/work/nothing', saw no error" in shown
    assert "forgetful: 1 passed, 1 failed" in shown
    assert self_check("--backend", "forgetful", "--only", FILE_CHECKS[1])[0] == 0


@pytest.mark.bubblewrap
def test_the_command_passes_on_bubblewrap(bubblewrap_works: None) -> None:
    code, shown = self_check("--backend", "bubblewrap", "--only", "files", "--only", "isolation")
    assert code == 0, shown
    assert "the_network_is_off" in shown
    assert "failed" not in shown

"""The commands as a newcomer types them, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from glmgym.cli import main
from glmgym.cli.app import app
from glmgym.errors import ConfigError

COMMANDS = ["train", "eval", "compare", "report", "export", "envs", "init", "init env", "check", "import", "inspect"]
COMMANDS += ["verify", "doctor", "gc"]
COMMANDS += ["image build", "image import", "image list", "image remove", "sandbox self-check"]


def glmgym(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from glmgym.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
    )


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from glmgym.cli import main; main()", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A background job of a shell inherits SIGINT ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must fail: one sentence on stderr, exit code 2, nothing on stdout."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["glmgym", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        assert stop.value.code == 2
        assert out == ""
        assert err.startswith("glmgym: ")
        assert err.count("\n") == 1
        return err

    return run


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory, bubblewrap_works: None) -> Path:
    """The shipped policy on eight held-out tasks."""
    out = tmp_path_factory.mktemp("eval") / "out"
    result = glmgym("eval", "--policy", "quickstart", "--suite", "terminal-basics", "--tasks", 8, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "95 % interval" in result.stdout
    return out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = glmgym(*command.split(), "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


def test_without_a_command_the_commands_are_listed() -> None:
    result = glmgym()
    assert result.returncode == 0
    assert all(name in result.stdout for name in ("train", "eval", "doctor"))
    assert glmgym("--version").stdout == f"glmgym {version('glmgym')}\n"


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_environments_are_listed_with_whole_ids(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["glmgym.cli.app"], "console", Console(width=columns))
    shown = CliRunner().invoke(app, ["envs"]).stdout
    assert "terminal-basics-v0" in shown
    assert "…" not in shown


def test_a_suite_of_many_is_one_line_until_asked_for() -> None:
    shown = CliRunner().invoke(app, ["envs"]).stdout
    assert "reasoning-gym/*" in shown
    assert "reasoning-gym/c" not in shown
    some = CliRunner().invoke(app, ["envs", "reasoning-gym/c"]).stdout
    assert "reasoning-gym/caesar_cipher-v0" in some
    assert "terminal-basics" not in some


def test_no_environment_of_that_name() -> None:
    refused = glmgym("envs", "nothing-")
    assert refused.returncode == 2
    assert "no environment's id begins with 'nothing-'" in refused.stderr


def test_a_new_environment_works_at_once(tmp_path: Path) -> None:
    made = glmgym("init", "env", "my_env", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "glmgym check my_env" in made.stdout
    assert len((tmp_path / "my_env" / "env.py").read_text().splitlines()) < 45
    checked = glmgym("check", "my_env/", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "my_env-v0" in checked.stdout
    both = glmgym("check", "my_env/", "reasoning-basics", "--tasks", "1", cwd=tmp_path)
    assert both.returncode == 0, both.stdout + both.stderr
    counted = [line.split() for line in both.stdout.splitlines() if line.strip().startswith(("my_env", "reasoning"))]
    assert [row[:4] for row in counted] == [["my_env-v0", "2", "12", "0"], ["reasoning-basics-v0", "2", "12", "0"]]
    again = glmgym("init", "env", "my_env", cwd=tmp_path)
    assert again.returncode == 2
    assert "already exists" in again.stderr


def test_an_environment_whose_oracle_fails_is_not_passed(tmp_path: Path) -> None:
    assert glmgym("init", "env", "my_env", cwd=tmp_path).returncode == 0
    file = tmp_path / "my_env" / "env.py"
    file.write_text(file.read_text().replace('assistant(task.data["answer"])', 'assistant("no idea")'))
    result = glmgym("check", "my_env", cwd=tmp_path)
    assert result.returncode == 1
    assert "✗" in result.stdout


@pytest.mark.bubblewrap
def test_an_evaluation_can_be_looked_at_and_verified(evaluation: Path, refused: Callable[..., str]) -> None:
    summary = json.loads((evaluation / "summary.json").read_text())
    assert summary["overall"]["attempts"] == 8
    assert summary["failures"] == {}
    assert "t00000008" in glmgym("inspect", evaluation).stdout
    shown = glmgym("inspect", evaluation, "t00000001").stdout
    assert "<|assistant|>" in shown
    assert "outcome: done" in shown
    assert "log-prob" in glmgym("inspect", evaluation, "t00000001", "--tokens").stdout
    verified = glmgym("verify", evaluation)
    assert verified.returncode == 0, verified.stdout
    assert "8 records" in verified.stdout
    assert "already holds a run or an evaluation" in refused(
        "eval", "--policy", "quickstart", "--suite", "terminal-basics", "--out", evaluation
    )
    assert "no trajectory 't00000099'" in refused("inspect", evaluation, "t00000099")


@pytest.mark.bubblewrap
def test_one_flipped_token_fails_verify(evaluation: Path) -> None:
    path = evaluation / "trajectories" / "store.sqlite"
    with sqlite3.connect(path) as db:
        (ids,) = db.execute("SELECT token_ids FROM records WHERE n = 3").fetchone()
        flipped = bytearray(ids)
        flipped[-4] ^= 1  # the lowest bit of the last id
        db.execute("UPDATE records SET token_ids = ? WHERE n = 3", (bytes(flipped),))
    result = glmgym("verify", evaluation)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET token_ids = ? WHERE n = 3", (ids,))
    assert result.returncode == 1
    assert "t00000003" in result.stdout
    assert "t00000002" not in result.stdout
    assert glmgym("verify", evaluation).returncode == 0


def test_doctor_speaks_json() -> None:
    findings = {entry["name"]: entry for entry in json.loads(glmgym("doctor", "--json").stdout)}
    assert findings["python"]["status"] == "ok"
    assert findings["torch"]["status"] == "ok"
    assert {"bubblewrap", "docker", "podman", "sqlite", "environments"} <= set(findings)
    assert "known once" not in findings["docker"]["text"]  # its limits are asked of a provider that has opened a box


def test_an_evaluation_on_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No table of NaN: the sentence says how to make the tasks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    refused = glmgym("eval", "--policy", "scripted:expert", "--suite", "swe-v0")
    assert refused.returncode == 2
    assert "swe-v0 has no held-out tasks" in refused.stderr
    assert "python -m glmgym_envs.swe build" in refused.stderr


def test_either_split_is_evaluated(tmp_path: Path) -> None:
    ask = ("eval", "--policy", "scripted:expert", "--suite", "search-mini", "--tasks", "3")
    told = {}
    for split in ("train", "heldout"):
        out = tmp_path / split
        assert glmgym(*ask, "--split", split, "--out", out).returncode == 0
        told[split] = json.loads((out / "summary.json").read_text())["split"]
    assert told == {"train": "train", "heldout": "heldout"}
    refused = glmgym(*ask, "--split", "train", "--out", tmp_path / "heldout", "--resume")
    assert refused.returncode == 2
    assert "split" in refused.stderr


def test_mistakes_are_one_sentence(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "did you mean 'quickstart'?" in refused("train", "quickstrat")
    assert "did you mean 'steps'?" in refused("train", "quickstart", "--set", "trainer.step=1")
    assert "give KEY=VALUE" in refused("train", "quickstart", "--set", "trainer.steps")
    assert "a truncated nucleus biases" in refused("train", "quickstart", "--set", "sampling.top_p=0.9")
    assert "did you mean 'terminal-basics-v0'?" in refused("check", "terminal-basic-v0")
    assert "there is no file" in refused("check", "no_such_env.py")
    assert "no checkpoint at 'nowhere'" in refused("eval", "--policy", "nowhere", "--suite", "terminal-basics")
    assert "holds no trajectories" in refused("inspect", tmp_path)
    assert "give a number of at least 1, or all" in refused("check", "terminal-basics", "--tasks", "0")
    assert "unknown entry" in refused("check", "terminal-basics", "--sandbox", "dockr")


@pytest.mark.parametrize(
    ("arguments", "problem", "command"),
    [
        ("trian", "'train'", "glmgym"),
        ("eval", "'--suite'", "glmgym eval"),
        ("eval --polcy x", "--policy", "glmgym eval"),
        ("eval --policy x --suite y --tasks 0", "'--tasks'", "glmgym eval"),
        ("init", "command", "glmgym init"),
        ("verify a b", "(b)", "glmgym verify"),
    ],
)
def test_mistyped_commands_are_one_sentence_too(
    arguments: str, problem: str, command: str, refused: Callable[..., str]
) -> None:
    """The wording is the parser's and varies between its versions; what it must name and the form are ours."""
    said, _, hint = refused(*arguments.split()).partition(" (see ")
    assert problem in said
    assert hint == f"{command} --help)\n"


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    said = refused("eval", "--policy", "quickstart", "--suite", "terminal-basics", "--out", out)
    assert said == f"glmgym: {out}/trajectories: Not a directory\n"


def test_an_expected_error_of_one_of_many_episodes_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    """A ``TaskGroup`` wraps it in a group, here two deep; a mistake of the program among the same is not hidden."""
    app.command(name="planted")(planted)
    try:
        assert refused("planted", "known") == "glmgym: a box is needed\n"
        monkeypatch.setattr(sys, "argv", ["glmgym", "planted", "bug"])
        with pytest.raises(ExceptionGroup):
            main()
    finally:
        app.registered_commands.pop()


def planted(kind: str) -> None:
    """Fails in one of many tasks."""

    async def fail(error: Exception) -> None:
        raise error

    async def run() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(inner())

    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ConfigError("a box is needed") if kind == "known" else ValueError("a bug")))

    asyncio.run(run())


@pytest.mark.bubblewrap
def test_an_interrupted_evaluation_keeps_what_finished(tmp_path: Path, bubblewrap_works: None) -> None:
    """Ctrl-C: exit code 130, no traceback, and every attempt that was over can be inspected and verified."""
    out = tmp_path / "out"
    process = start("eval", "--policy", "quickstart", "--suite", "terminal-basics", "--tasks", 400, "--out", out)
    path = out / "trajectories" / "store.sqlite"
    deadline = time.monotonic() + 300
    while not (path.exists() and _records(path)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in errors
    kept = _records(path)
    assert 0 < kept < 400
    assert shown == f"stopped on request; {kept} of 400 attempts are kept in {out}; go on by --resume\n"
    assert not (out / "summary.json").exists()
    assert f"{kept} records" in glmgym("verify", out).stdout
    assert "outcome: " in glmgym("inspect", out, "t00000001").stdout


def _records(path: Path) -> int:
    """Records committed so far, also while the evaluation writes them."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        try:
            return int(db.execute("SELECT count(*) FROM records").fetchone()[0])
        except sqlite3.OperationalError:  # the tables are not made yet
            return 0

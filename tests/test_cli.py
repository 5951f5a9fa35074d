"""The commands as a newcomer types them, in processes of their own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ["train", "eval", "envs", "init", "init env", "check", "inspect", "verify", "doctor"]


def glmgym(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from glmgym.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
    )


def refused(*arguments: object) -> str:
    """The one sentence of a command that must fail: exit code 2, nothing on stdout, no traceback."""
    result = glmgym(*arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.startswith("glmgym: ")
    assert len(result.stderr.strip().splitlines()) == 1
    return result.stderr


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


def test_environments_are_listed() -> None:
    assert "terminal-basics-v0" in glmgym("envs").stdout


def test_a_new_environment_works_at_once(tmp_path: Path) -> None:
    made = glmgym("init", "env", "my_env", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "glmgym check my_env" in made.stdout
    assert len((tmp_path / "my_env" / "env.py").read_text().splitlines()) < 45
    checked = glmgym("check", "my_env/", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "my_env-v0" in checked.stdout
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
def test_an_evaluation_can_be_looked_at_and_verified(evaluation: Path) -> None:
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
    assert "already holds an evaluation" in refused(
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
    assert {"bubblewrap", "docker", "sqlite", "environments"} <= set(findings)


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    assert "did you mean 'quickstart'?" in refused("train", "quickstrat")
    assert "did you mean 'steps'?" in refused("train", "quickstart", "--set", "trainer.step=1")
    assert "give KEY=VALUE" in refused("train", "quickstart", "--set", "trainer.steps")
    assert "a truncated nucleus biases" in refused("train", "quickstart", "--set", "sampling.top_p=0.9")
    assert "did you mean 'terminal-basics-v0'?" in refused("check", "terminal-basic-v0")
    assert "no checkpoint at 'nowhere'" in refused("eval", "--policy", "nowhere", "--suite", "terminal-basics")
    assert "holds no trajectories" in refused("inspect", tmp_path)
    assert "unknown entry" in refused("check", "terminal-basics", "--sandbox", "dockr")

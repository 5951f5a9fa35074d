"""The culprit is the commit that replaced the sum; the undo is one commit, and units and plurals still work."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path("/work/duration")
HEAD = "7b8e17070718feec0009d7377c6bf480ba5e33a7"
CULPRIT = "ee0aa7efdff18d3e4d60a9a73f70e811ce12b13b"
CASES = {
    "2h5m": 7500,
    "1h30m": 5400,
    "1h 1h": 7200,
    "90s": 90,
    "3ms": 180,
    "2ds": 172800,
    "1w1d": 691200,
    "2ws 3hs 4ms 5s": 1220645,
    "": 0,
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trusted_copy(tmp_path_factory.mktemp("copy"))


def test_the_culprit_is_named() -> None:
    assert Path("/work/culprit.txt").read_text().strip() == CULPRIT


def test_main_is_the_old_main_and_one_commit(repo: Path) -> None:
    assert git(repo, "rev-list", "--parents", "-1", "main").split()[1:] == [HEAD]


def test_only_the_module_changes_and_by_few_lines(repo: Path) -> None:
    changed = git(repo, "diff", "--numstat", HEAD, "main").split()
    assert changed[2::3] == ["duration.py"]
    assert int(changed[0]) <= 3
    assert int(changed[1]) <= 3


def test_durations_add_up_with_every_unit(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "duration.py").write_text(git(repo, "show", "main:duration.py"))
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import duration; "
        "print(json.dumps([duration.seconds(text) for text in json.loads(sys.argv[2])]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(tmp_path), json.dumps(list(CASES))],
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert json.loads(done.stdout) == list(CASES.values())


def trusted_copy(target: Path) -> Path:
    """The objects and refs under a configuration of our own: a repository's config and hooks run programs."""
    git(target, "init", "-q", ".")
    for name in ("objects", "refs", "packed-refs", "HEAD", "logs"):
        source = REPO / ".git" / name
        if source.is_dir():
            shutil.copytree(source, target / ".git" / name, dirs_exist_ok=True, symlinks=True)
        elif source.exists():
            shutil.copy(source, target / ".git" / name)
    return target


def git(directory: Path, *arguments: str) -> str:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "TZ": "UTC"}
    done = subprocess.run(["git", *arguments], cwd=directory, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout.rstrip("\n")

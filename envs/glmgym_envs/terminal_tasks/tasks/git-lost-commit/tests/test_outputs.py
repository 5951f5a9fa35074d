"""main is what it was plus the lost commit: the capped version, with its author, date, body and change."""

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path("/work/limiter")
BASE = "2458418f48524f742eb90752364932f0484aacfb"


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trusted_copy(tmp_path_factory.mktemp("copy"))


def test_main_has_one_commit_more_and_the_others_unchanged(repo: Path) -> None:
    assert git(repo, "rev-parse", "main~1") == BASE
    assert git(repo, "rev-list", "--parents", "-1", "main").split()[1:] == [BASE]


def test_the_message_the_author_and_the_date_are_those_of_the_lost_commit(repo: Path) -> None:
    assert git(repo, "log", "-1", "--format=%an <%ae>|%ad", "--date=raw", "main") == (
        "Tomas Lind <tomas@example.org>|1700010800 +0000"
    )
    assert git(repo, "log", "-1", "--format=%B", "main").strip() == (
        "Add token bucket limiter\n\nTokens come back at RATE per second, up to BURST.\nCloses 112."
    )


def test_the_change_is_that_of_the_last_version(repo: Path) -> None:
    assert git(repo, "rev-parse", "main:src/limiter.py", "main:src/test_limiter.py").split() == [
        "818992acb46c91f07d570591a755ca62c036e201",
        "5d19895c443573ccfcf136d6ac0a014d5065c946",
    ]
    assert git(repo, "diff", "--name-only", BASE, "main").split() == ["src/limiter.py", "src/test_limiter.py"]


def test_main_is_checked_out(repo: Path) -> None:
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"


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

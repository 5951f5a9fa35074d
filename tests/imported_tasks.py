"""The tiny repository that rows of the golden imports speak of: every run makes the same commits."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

DATA = Path(__file__).parent / "data" / "importers"


def make_repository(place: Path) -> str:
    """A repository of two commits with the sources of ``data/importers/tally``; returns the second, the base commit."""
    place.mkdir(parents=True)
    shutil.copy(DATA / "tally" / "README.md", place)
    git(place, "init", "--quiet", "--initial-branch=main", ".")
    commit(place, "start")
    shutil.copytree(DATA / "tally", place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return commit(place, "tally words")


def commit(place: Path, message: str, *, date: str = "2024-01-05T00:00:00+0000") -> str:
    """Commit everything by a fixed author at a fixed time; returns the hash."""
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message", message, date=date)
    return git(place, "rev-parse", "HEAD").strip()


def git(place: Path, *argv: str, date: str = "2024-01-05T00:00:00+0000") -> str:
    """Run git without this machine's configuration; returns what it printed."""
    facts = {"NAME": "Ada", "EMAIL": "ada@example.org", "DATE": date}
    who = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in facts.items()}
    env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", "-C", str(place), *argv], check=True, capture_output=True, text=True, env=env).stdout

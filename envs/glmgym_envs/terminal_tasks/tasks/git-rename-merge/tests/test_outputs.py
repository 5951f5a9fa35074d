"""One merge commit with the parents in order, settings merged by value, and a module that behaves as both sides."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path("/work/notifier")
PARENTS = ["049385a209569b440c52fd9d7a399ceda44e5dfb", "c5e76490c464e0b3b915605e184685a25b4a036a"]
SETTINGS = {
    "smtp_host": "smtp.example.net",
    "smtp_port": 587,
    "from_address": "noreply@example.org",
    "timeout_s": 30,
    "queues": ["alerts", "reports", "digests"],
    "quiet_hours": [22, 6],
    "retries": 4,
}
PROGRAM = """
import json, os, sys
sys.path.insert(0, os.getcwd())
import notifier
settings = notifier.load()
print(json.dumps([
    notifier.envelope(settings, "hello"),
    [notifier.retry(settings, attempt) for attempt in range(5)],
    [notifier.quiet(settings, hour) for hour in (5, 6, 21, 22)],
]))
"""


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trusted_copy(tmp_path_factory.mktemp("copy"))


def test_main_is_one_merge_commit(repo: Path) -> None:
    assert git(repo, "rev-list", "--parents", "-1", "main").split()[1:] == PARENTS


def test_exactly_the_files_of_both_sides_are_there(repo: Path) -> None:
    assert git(repo, "ls-tree", "-r", "--name-only", "main").split() == [
        "LICENCE",
        "README",
        "conf/app.json",
        "notifier.py",
    ]
    assert git(repo, "rev-parse", "main:README") == git(repo, "rev-parse", f"{PARENTS[1]}:README")
    assert git(repo, "rev-parse", "main:LICENCE") == git(repo, "rev-parse", f"{PARENTS[0]}:LICENCE")


def test_the_settings_are_merged_by_value(repo: Path) -> None:
    assert json.loads(git(repo, "show", "main:conf/app.json")) == SETTINGS


def test_the_module_does_what_both_sides_added(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/app.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "notifier.py").write_text(git(repo, "show", "main:notifier.py"))
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=10
    )
    assert json.loads(done.stdout) == [
        {"from": "noreply@example.org", "to": "smtp.example.net", "text": "hello"},
        [30, 60, 120, 240, False],
        [True, False, False, True],
    ]


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

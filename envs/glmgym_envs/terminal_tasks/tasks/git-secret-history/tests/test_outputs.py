"""The token is in no object, log or message; everything else of the history is as it was."""

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

REPO = Path("/work/mailer")
TOKEN = b"tok_9f2c7d1e5ab84063"
INES = "Ines Okafor"
MAIN = [
    ("Start", INES, 1700003600, "README.md mailer.py"),
    ("Add the environment", INES, 1700007200, ".env README.md mailer.py"),
    ("Read the token", INES, 1700010800, ".env README.md mailer.py"),
    ("Do not track the environment; REDACTED must be rotated", INES, 1700018060, ".gitignore README.md mailer.py"),
    ("Read the address", INES, 1700021720, ".gitignore README.md mailer.py"),
]
RELEASE = [*MAIN[:3], ("Describe the usage", "Jo Park", 1700014400, ".env README.md docs/usage.md mailer.py")]
FILES = {
    "main~3:.env": "API_TOKEN=REDACTED\nAPI_URL=https://api.example.org",
    "release:.env": "API_TOKEN=REDACTED\nAPI_URL=https://api.example.org",
    "release:docs/usage.md": 'Try it:\n\n    curl -H "Authorization: REDACTED" https://api.example.org',
    "main:mailer.py": 'import os\nTOKEN = os.environ["API_TOKEN"]\nURL = os.environ["API_URL"]',
    "main:.gitignore": ".env",
    "main:README.md": "# mailer",
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trusted_copy(tmp_path_factory.mktemp("copy"))


@pytest.mark.parametrize(("branch", "expected"), [("main", MAIN), ("release", RELEASE)])
def test_the_history_is_the_same_but_for_the_token(
    repo: Path, branch: str, expected: list[tuple[str, str, int, str]]
) -> None:
    rows = git(repo, "log", "--reverse", "--format=%H|%s|%an|%at|%ct|%P", branch).splitlines()
    records = [row.split("|") for row in rows]
    seen = [
        (subject, author, int(written), " ".join(git(repo, "ls-tree", "-r", "--name-only", commit).split()))
        for commit, subject, author, written, *_ in records
    ]
    assert seen == expected
    assert [record[4] for record in records] == [record[3] for record in records]
    assert [record[5] for record in records] == ["", *(record[0] for record in records[:-1])]


@pytest.mark.parametrize("path", FILES)
def test_files_change_only_where_the_token_stood(repo: Path, path: str) -> None:
    assert git(repo, "show", path) == FILES[path]


def test_the_branches_and_the_tag_are_the_only_refs(repo: Path) -> None:
    refs = git(repo, "for-each-ref", "--format=%(refname) %(objecttype)").splitlines()
    assert refs == ["refs/heads/main commit", "refs/heads/release commit", "refs/tags/v0.2 tag"]
    assert git(repo, "for-each-ref", "--format=%(contents)", "refs/tags/v0.2").strip() == (
        "Second release (token REDACTED)"
    )
    assert git(repo, "rev-parse", "v0.2^{commit}") == git(repo, "rev-parse", "release")


def test_no_object_holds_the_token(repo: Path) -> None:
    ids = git(repo, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").splitlines()
    assert len(ids) >= 10
    for row in ids:
        name, kind = row.split()
        content = subprocess.run(["git", "cat-file", kind, name], cwd=repo, capture_output=True, check=True).stdout
        assert TOKEN not in content, f"{kind} {name}"


def test_no_other_file_of_the_repository_holds_it() -> None:
    for path in (REPO / ".git").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.parent.parent.name == "objects" and len(path.parent.name) == 2:
                content = zlib.decompress(content)
            assert TOKEN not in content, str(path)


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

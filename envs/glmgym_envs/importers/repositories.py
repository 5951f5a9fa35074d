"""Repositories of tasks: a checkout without history, or the cleaning of the one an image brings.

A task must not hold its own answer: whatever is imported here has one commit, or at least no ref, remote or object
that its base commit does not need.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmgym.errors import ConfigError
from glmgym_envs.importers.directories import HEADING

WORKDIR = "/testbed"  # of every format whose rows name an image
_WHO = {
    key: value
    for who in ("AUTHOR", "COMMITTER")
    for key, value in (
        (f"GIT_{who}_NAME", "task"),
        (f"GIT_{who}_EMAIL", "task@localhost"),
        (f"GIT_{who}_DATE", "2000-01-01T00:00:00+0000"),
    )
}
_IDENTITY = "".join(f"export {key}='{value}'\n" for key, value in _WHO.items())
_SAFE = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'\n"
# The past of the base commit stays: tools and tests may read it.
_CLEAN = """\
git remote | while read -r remote; do git remote remove "$remote"; done
git checkout --quiet --detach HEAD
git for-each-ref --format='delete %(refname)' | git update-ref --stdin
rm -f "$(git rev-parse --git-dir)"/{ORIG_HEAD,FETCH_HEAD,MERGE_HEAD}
git reflog expire --expire=now --all
git -c pack.threads=1 gc --quiet --prune=now
"""
# The state before the bug is in the past, so the past goes.
_BREAK = """\
git apply --whitespace=nowarn - <<'GLMGYM_END_OF_DIFF' || exit 1
{diff}
GLMGYM_END_OF_DIFF
rm -rf .git
git init --quiet --initial-branch=main .
git add --all
git commit --quiet --message=base
git read-tree HEAD
rm -rf .git/logs .git/COMMIT_EDITMSG
"""


@dataclass(frozen=True, slots=True)
class Home:
    """What a task says of the repository it works in: tables of ``task.toml``, files and trees of its directory."""

    base: str  # the commit that test files are put back from
    environment: Mapping[str, Any]
    own: Mapping[str, Any]  # [metadata.glmgym]
    files: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[str, Path] = field(default_factory=dict)


def home_in_image(default_image: str, *, image: str, base: str, bug: str = "") -> Home:
    """The repository that an image has at ``/testbed``, cleaned, and broken by ``bug`` if that is a diff.

    Args:
        default_image: what the row names; its cleaned child is built once.
        image: takes its place if not "": a name of the image store or the engine, cleaned at every reset.
    """
    work = _BREAK.format(diff=bug.rstrip("\n")) if bug else _CLEAN
    script = f"{HEADING}set -u\n{_SAFE}{_IDENTITY}cd {WORKDIR} || exit 1\n{work}"
    base = "$(git rev-list --max-parents=0 HEAD | tail -n 1)" if bug else base
    if image:
        environment = {"docker_image": image, "workdir": WORKDIR, "network_mode": "no-network"}
        return Home(base, environment, {"setup": "setup.sh"}, {"environment/setup.sh": script})
    run = "RUN bash /tmp/setup.sh && rm /tmp/setup.sh"
    recipe = f"FROM {default_image}\nCOPY setup.sh /tmp/setup.sh\n{run}\nWORKDIR {WORKDIR}\n"
    environment = {"workdir": WORKDIR, "network_mode": "no-network"}
    return Home(base, environment, {}, {"environment/setup.sh": script, "environment/Dockerfile": recipe})


def home_in_files(repository: Path, *, image: str, commit: str, bug: str, checkout: Path, where: str) -> Home:
    """A checkout of a local repository at ``commit``, as one commit, with ``bug`` in it if that is a diff.

    Args:
        checkout: an empty directory for the checkout.

    Raises:
        ConfigError: there is no such repository or commit, no ``image`` to put it in, or the diff does not apply.
    """
    if not image:
        raise ConfigError(f"{where}: a local repository needs an image to stand in; give image='base'")
    if not repository.is_dir():
        raise ConfigError(f"{where}: there is no repository {repository}")
    if shutil.which("git") is None:
        raise ConfigError(f"{where}: a local repository needs git on this machine")
    checkout.mkdir(parents=True)
    index = {"GIT_INDEX_FILE": str(checkout.with_suffix(".index"))}  # not the repository's own
    _git(repository, "read-tree", commit, env=index, where=where)
    _git(repository, "checkout-index", "--all", f"--prefix={checkout}/", env=index, where=where)
    _git(checkout, "init", "--quiet", "--template=", "--initial-branch=main", ".", where=where)
    if bug:
        _git(checkout, "apply", "--whitespace=nowarn", "-", stdin=bug, where=f"{where}: patch")
    _git(checkout, "add", "--all", "--force", where=where)
    _git(checkout, "commit", "--quiet", "--message=base", where=where)
    base = _git(checkout, "rev-parse", "HEAD", where=where).decode().strip()
    _git(checkout, "read-tree", "HEAD", where=where)  # an index without this machine's times and inodes
    shutil.rmtree(checkout / ".git" / "logs")
    environment = {"docker_image": image, "workdir": WORKDIR, "network_mode": "no-network"}
    return Home(base, environment, {"files": "files"}, trees={"environment/files": checkout})


def _git(place: Path, *argv: str, where: str, stdin: str = "", env: Mapping[str, str] | None = None) -> bytes:
    # No configuration, hook or filter of this machine: the result is the same everywhere.
    clean = {
        **_WHO,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    clean |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    done = subprocess.run(
        ["git", "-C", str(place), *argv],
        input=stdin.encode("utf-8", "surrogateescape"),
        capture_output=True,
        env=clean | dict(env or {}),
    )
    if done.returncode != 0:
        raise ConfigError(f"{where}: git {' '.join(argv)} in {place}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout

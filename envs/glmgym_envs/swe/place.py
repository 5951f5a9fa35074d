"""Where things lie in a box of an SWE task, and how they get there."""

from __future__ import annotations

from collections.abc import Sequence

from glmgym.env import Task
from glmgym.errors import EnvFailure
from glmgym.sandbox import BoxSpec, Limits, Sandbox

REPO = "/testbed"
DEPS = "/tmp/deps"  # packages the repository imports; the box writes to nothing but REPO and /tmp
PYTEST = "python3 -m pytest -o addopts="  # what projects add by default asks for plugins that are not here
_TAR = "/tmp/incoming.tar"
_DATE = "2000-01-01T00:00:00+0000"
_NAME, _EMAIL = "glmgym", "glmgym@localhost"
_GIT = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
        (("NAME", _NAME), ("EMAIL", _EMAIL), ("DATE", _DATE))}  # fmt: skip

# One commit, nobody's history: no template hooks, no remote, no tag, and no reflog of it either.
_HISTORY = f"""
set -e
git init --quiet --template= --initial-branch=main
git config user.name {_NAME}
git config user.email {_EMAIL}
git add --all --force
git commit --quiet --message 'Initial commit'
rm -rf .git/logs
"""


def box_of(task: Task) -> BoxSpec:
    """The box of a task, for the policy and for grading."""
    return box_for(task.data["roots"])


def import_paths(roots: Sequence[str]) -> list[str]:
    """Absolute directories in a box to import from, of those relative to the repository."""
    return [*(REPO if root == "." else f"{REPO}/{root}" for root in roots), DEPS]


def box_for(roots: Sequence[str]) -> BoxSpec:
    """Debian's base, with the packages below ``roots`` and what they need importable."""
    env = {
        "PYTHONPATH": ":".join(import_paths(roots)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "GIT_PAGER": "cat",
    }
    return BoxSpec(image="base", cwd=REPO, env=env, limits=Limits(memory_mb=1024, pids=128, disk_mb=256))


async def furnish(box: Sandbox, repo: bytes | None, deps: Sequence[bytes], *, history: bool = False) -> None:
    """Put a repository and the packages it imports into a box.

    Args:
        repo: the tar of the repository, ``None`` to leave it as it is.
        deps: the tars of its packages.
        history: make it a git repository of one commit with fixed names and dates.

    Raises:
        EnvFailure: the box could not unpack it.
    """
    if repo is not None:
        await extract(box, repo, REPO)
    for tar in deps:
        await extract(box, tar, DEPS)
    if history:
        made = await box.run(["bash", "-c", _HISTORY], cwd=REPO, env=_GIT)
        if made.exit_code != 0:
            raise EnvFailure(f"the repository's history could not be made: {made.text.strip()}")


async def extract(box: Sandbox, tar: bytes, target: str) -> None:
    """Unpack a tar in a box, over what is there. Raises EnvFailure: the box could not."""
    await box.write(_TAR, tar)
    command = f"mkdir -p {target} && tar --extract --no-same-owner --file {_TAR} --directory {target} && rm {_TAR}"
    done = await box.run(["bash", "-c", command], cwd="/tmp")
    if done.exit_code != 0:
        raise EnvFailure(f"unpack into {target}: {done.text.strip()}")

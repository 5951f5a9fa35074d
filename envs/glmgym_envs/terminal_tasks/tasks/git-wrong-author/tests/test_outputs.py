"""Every commit is what it was, except for the one name; refs point into the new history and nowhere else."""

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path("/work/almanac")
INES = "Ines Okafor <ines@example.org>"
JO = "Jo Park <jo@example.org>"
MIRA = "Mira Vance <mira@example.org>"
COMMITS = {  # subject: author, committer, date, parents by subject
    "January": (INES, INES, 1700003600, ()),
    "February": (MIRA, MIRA, 1700007200, ("January",)),
    "Apples": (JO, INES, 1700010800, ("February",)),
    "Pumpkins": (MIRA, MIRA, 1700014400, ("Apples",)),
    "March": (JO, MIRA, 1700018000, ("February",)),
    "Merge the harvest": (MIRA, MIRA, 1700021600, ("March", "Pumpkins")),
    "Nuts": (MIRA, INES, 1700025260, ("Pumpkins",)),
    "April": (MIRA, MIRA, 1700028860, ("Merge the harvest",)),
}
TREES = {
    "main": "9c69e441877f5009ec65801e7d67d09d93fab71d",
    "harvest": "421406d01e12793bc67f9f48e2895a0e48c05e6c",
    "v1.0": "e8bd19bb8d26da37b5a95d21642cda14b3dba368",
}
TIPS = {"main": "April", "harvest": "Nuts", "v1.0^{commit}": "Merge the harvest"}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trusted_copy(tmp_path_factory.mktemp("copy"))


def test_the_graph_has_the_right_people_dates_and_parents(repo: Path) -> None:
    rows = git(repo, "log", "--all", "--format=%H|%P|%s|%an <%ae>|%cn <%ce>|%at|%ct").splitlines()
    records = [row.split("|") for row in rows]
    subject = {record[0]: record[2] for record in records}
    assert len(records) == len(COMMITS)
    for _, parents, name, author, committer, written, committed in records:
        date = COMMITS[name][2]
        seen = (author, committer, int(written), tuple(subject[parent] for parent in parents.split()))
        assert (*seen, int(committed)) == (*COMMITS[name][:3], COMMITS[name][3], date), name


@pytest.mark.parametrize("ref", TREES)
def test_the_files_are_unchanged(repo: Path, ref: str) -> None:
    assert git(repo, "rev-parse", f"{ref}^{{tree}}") == TREES[ref]


@pytest.mark.parametrize("ref", TIPS)
def test_refs_point_to_the_commits_of_their_name(repo: Path, ref: str) -> None:
    assert git(repo, "log", "-1", "--format=%s", ref) == TIPS[ref]


def test_the_tag_is_still_annotated(repo: Path) -> None:
    assert git(repo, "cat-file", "-t", "v1.0") == "tag"
    assert git(repo, "for-each-ref", "--format=%(contents)", "refs/tags/v1.0").strip() == "First almanac"


def test_no_ref_leads_to_the_old_name(repo: Path) -> None:
    assert "root@builder" not in git(repo, "log", "--all", "--format=%ae %ce")
    assert sorted(git(repo, "for-each-ref", "--format=%(refname)").split()) == [
        "refs/heads/harvest",
        "refs/heads/main",
        "refs/tags/v1.0",
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

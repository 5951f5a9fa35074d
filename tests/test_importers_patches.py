"""The ladder that applies a diff, on real repositories; each way on a diff that only it takes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imported_tasks import commit, git

from glmgym import BoxSpec
from glmgym.errors import ScorerFailure
from glmgym.sandbox import Sandbox
from glmgym_envs.importers import patches
from glmgym_envs.importers.patches import Applied, NotApplied, Touched, apply, touched
from glmgym_sandboxes.bubblewrap import open_provider

SCRIPT = Path(patches.__file__).with_name("apply.sh")
LINES = [f"line {number}\n" for number in range(1, 13)]


def repository(place: Path, lines: list[str] = LINES) -> Path:
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch=main", ".")
    (place / "text").write_text("".join(lines))
    (place / ".gitignore").write_text("built\n")
    commit(place, "start")
    return place


def diff_of(place: Path, lines: list[str]) -> str:
    """What takes the committed text to ``lines``; the tree stays as it was."""
    (place / "text").write_text("".join(lines))
    found = git(place, "diff")
    git(place, "checkout", "--quiet", ".")
    return found


def run(place: Path, diff: str) -> tuple[int, str]:
    file = place.parent / "diff"
    file.write_text(diff)
    done = subprocess.run(["bash", SCRIPT, place, file], capture_output=True, text=True)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    return done.returncode, last.removeprefix("applied by: ").replace(str(file), "DIFF")


def files(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): path.read_text()
        for path in sorted(place.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def changed(number: int, text: str, lines: list[str] = LINES) -> list[str]:
    return [text if place == number else line for place, line in enumerate(lines, 1)]


def test_a_diff_that_fits_is_applied_by_git(tmp_path: Path) -> None:
    place = repository(tmp_path / "repo")
    assert run(place, diff_of(place, changed(6, "six\n"))) == (0, "git apply --verbose DIFF")
    assert (place / "text").read_text() == "".join(changed(6, "six\n"))


def test_a_diff_that_is_there_already_counts(tmp_path: Path) -> None:
    place = repository(tmp_path / "repo")
    diff = diff_of(place, changed(6, "six\n"))
    (place / "text").write_text("".join(changed(6, "six\n")))
    assert run(place, diff) == (0, "being there already")
    assert (place / "text").read_text() == "".join(changed(6, "six\n"))


def test_a_diff_of_an_older_state_is_merged(tmp_path: Path) -> None:
    place = repository(tmp_path / "repo")
    diff = diff_of(place, changed(6, "six\n"))
    (place / "text").write_text("".join(changed(4, "four\n")))
    commit(place, "later")
    assert run(place, diff) == (0, "git apply --verbose --3way DIFF")
    assert (place / "text").read_text() == "".join(changed(6, "six\n", changed(4, "four\n")))


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the patch program")
def test_a_diff_without_its_blobs_is_taken_with_fuzz(tmp_path: Path) -> None:
    place = repository(tmp_path / "repo")
    diff = diff_of(place, changed(6, "six\n"))
    diff = "\n".join(line for line in diff.split("\n") if not line.startswith("index "))
    (place / "text").write_text("".join(changed(4, "four\n")))
    commit(place, "later")
    assert run(place, diff) == (0, "patch --batch --forward --fuzz=5 -p1 -i DIFF")
    assert (place / "text").read_text() == "".join(changed(6, "six\n", changed(4, "four\n")))


@pytest.mark.parametrize(
    "diff",
    [
        "",
        "not a diff\n",
        "diff --git a/text b/text\n--- a/text\n+++ b/text\n@@ -1,1 +1,1 @@\n-nothing like it\n+new\n",
        # The first hunk fits and the second does not: half of it would be worse than none.
        "diff --git a/text b/text\n--- a/text\n+++ b/text\n"
        "@@ -1,1 +1,1 @@\n-line 1\n+one\n@@ -9,1 +9,1 @@\n-ninth\n+n\n",
        "diff --git a/made b/made\nnew file mode 100644\n--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+made\n"
        "diff --git a/text b/text\n--- a/text\n+++ b/text\n@@ -9,1 +9,1 @@\n-ninth\n+n\n",
    ],
)
def test_what_cannot_be_applied_leaves_the_tree_as_it_was(tmp_path: Path, diff: str) -> None:
    place = repository(tmp_path / "repo")
    (place / "text").write_text("".join(changed(12, "twelve\n")))  # the policy's own work
    (place / "untracked").write_text("kept\n")
    (place / "built").write_text("ignored, and kept\n")
    before, status = files(place), git(place, "status", "--porcelain")
    assert run(place, diff)[0] == 1
    assert files(place) == before
    assert git(place, "status", "--porcelain") == status


def test_a_merge_with_conflicts_is_taken_back(tmp_path: Path) -> None:
    place = repository(tmp_path / "repo")
    diff = diff_of(place, changed(6, "six\n"))
    (place / "text").write_text("".join(changed(6, "sechs\n")))
    commit(place, "another")
    assert run(place, diff)[0] == 1
    assert git(place, "status", "--porcelain") == ""


@given(
    st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), min_size=1, max_size=8),
    st.lists(st.sampled_from(["a\n", "b\n", "d\n", "\n"]), min_size=1, max_size=8),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_diff_makes_what_it_was_made_from(tmp_path: Path, old: list[str], new: list[str]) -> None:
    place = tmp_path / "repo"
    shutil.rmtree(place, ignore_errors=True)
    repository(place, old)
    diff = diff_of(place, new)
    code, _ = run(place, diff)
    assert code == (1 if old == new else 0)
    assert (place / "text").read_text() == "".join(new)


def test_a_place_without_a_repository_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", "") == (3, "")


@pytest.fixture
async def box(base_works: None) -> AsyncIterator[Sandbox]:
    provider = open_provider({"warm": 0})
    yield await provider.open(BoxSpec(image="base", cwd="/testbed", user="root", writable_root=True))
    await provider.close()


@pytest.mark.bubblewrap
async def test_in_a_box(box: Sandbox, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo")
    diff = diff_of(place, changed(6, "six\n"))
    await box.put_tree(place, "/testbed")
    found = await apply(box, "/testbed", diff)
    assert isinstance(found, Applied)
    assert found.by.startswith("git apply --verbose /tmp/")
    again = await apply(box, "/testbed", diff)
    assert isinstance(again, Applied)
    assert again.by == "being there already"
    other = await apply(box, "/testbed", diff.replace("line 6", "line 66").replace("six", "sixty"))
    assert isinstance(other, NotApplied)
    assert "patch does not apply" in other.log
    with pytest.raises(ScorerFailure, match="the diff could not be tried on /tmp"):
        await apply(box, "/tmp", diff)


def test_touched_files_by_what_happens_to_them(tmp_path: Path) -> None:
    place = repository(tmp_path / "repo")
    for name in ("gone", "moved", "with space"):
        (place / name).write_text(f"{name}\n" * 9)
    commit(place, "more")
    (place / "gone").unlink()
    (place / "new").write_text("--- a/no\ndiff --git a/no b/no\n")
    (place / "with space").write_text("x\n")
    git(place, "mv", "moved", "there")
    git(place, "add", "--all")
    diff = git(place, "diff", "--cached", "-M")
    assert touched(diff) == Touched(("gone", "moved", "with space"), ("new", "there"))
    assert touched("") == Touched((), ())


@pytest.mark.parametrize(
    ("diff", "says"),
    [
        ('diff --git "a/\\303\\244" "b/\\303\\244"\n--- a\n', "only plain paths"),
        (
            "diff --git a/x.png b/x.png\nnew file mode 100644\nBinary files /dev/null and b/x.png differ\n",
            "x.png is bin",
        ),
    ],
)
def test_a_diff_that_cannot_be_read_says_why(diff: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        touched(diff)

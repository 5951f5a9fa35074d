"""R2E-Gym rows as task directories. Owns what is solution and what is test in the commit a row carries.

The reward is 1 iff the run has as many tests as the row expects, each with the expected status: a test that is
expected to fail must fail.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmgym import scratch
from glmgym_envs.importers.directories import Draft, graded_by, write_draft
from glmgym_envs.importers.repositories import WORKDIR, Home, home_in_files, home_in_image
from glmgym_envs.importers.rows import Row, read_rows
from glmgym_envs.importers.swe import TESTS_TIMEOUT_S, solution, test_script

TESTS = "r2e_tests"  # beside run_tests.sh in /root of the images; run from the repository
_TEST_FILE = re.compile(r"(^|/)(tests?|testing)/|(^|/)(test_[^/]*|[^/]*_test|tests|conftest)\.py$")


def import_r2e_gym(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """R2E-Gym rows, each as a task directory ``out/REPO_NAME.COMMIT``.

    Args:
        source: a .json, .jsonl or .parquet file, or a directory of them.
        image: stands in for ``docker_image``: a name of ``glmgym image list``, or of the engine's.
        repositories: a directory of git repositories ``REPO_NAME``; the tests are those of the row's
            ``execution_result_content``, run by pytest, since there is no ``/root/run_tests.sh`` then.

    Raises:
        ConfigError: naming the row and the key that cannot be taken.
    """
    return [_write(row, out, image, repositories) for row in read_rows(source)]


def _write(row: Row, out: Path, image: str, repositories: Path | None) -> Path:
    name, commit = row.text("repo_name"), row.json("parsed_commit_content")
    expected = row.json("expected_output_json")
    if not expected:
        raise row.wrong("expected_output_json", "is empty: without tests nothing can be graded")
    old, new = (_hash(row, commit, key) for key in ("old_commit_hash", "new_commit_hash"))
    gold = _gold(row, commit)
    tests = _hidden_tests(row)
    run = "bash /root/run_tests.sh"
    before = []
    if tests:
        # Where the image's own copy may have been rewritten, these are as the row has them.
        before = [f"rm -rf /root/{TESTS} {WORKDIR}/{TESTS}", f"cp -r /tests/{TESTS} {WORKDIR}/{TESTS}"]
    with scratch.temporary() as directory:
        if repositories is None:
            home = home_in_image(row.text("docker_image", default=image or None), image=image, base=old)
        else:
            if not tests:
                raise row.wrong("execution_result_content", "the tests must be in the row if the image has none")
            run = f"python3 -m pytest -rA {TESTS}"
            home = home_in_files(
                repositories / name,
                image=image,
                commit=old,
                bug="",
                checkout=directory / "files",
                where=row.where,
            )
        draft = Draft(
            f"{name}.{new[:12]}",
            row.text("problem_statement") + "\n",
            _config(name, home, repositories is None),
            {
                **home.files,
                **{f"tests/{TESTS}/{file}": code for file, code in tests.items()},
                "tests/test.sh": test_script(before, run),
                **graded_by({"rule": "expected", "expected": dict(expected)}),
                **solution(gold),
            },
            home.trees,
        )
        return write_draft(draft, out, where=row.where)


def _config(name: str, home: Home, in_image: bool) -> dict[str, Any]:
    log = {"witness": True, "repository": WORKDIR, "restored": ["/root/run_tests.sh"] if in_image else []}
    return {
        "schema_version": "1.4",
        "source": "r2e-gym",
        "metadata": {"category": "software-engineering", "repo": name, "glmgym": {**home.own, "log": log}},
        "verifier": {"timeout_sec": TESTS_TIMEOUT_S},
        "environment": dict(home.environment),
    }


def _hash(row: Row, commit: Mapping[str, Any], key: str) -> str:
    value = commit.get(key)
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{7,40}", value):
        raise row.wrong("parsed_commit_content", f"its {key} = {value!r} is no commit")
    return value


def _gold(row: Row, commit: Mapping[str, Any]) -> str:
    """The commit's diff without its tests, from the contents before and after."""
    diffs = []
    for entry in commit.get("file_diffs") or ():
        path = entry["header"]["file"]["path"]
        if _TEST_FILE.search(path):
            continue
        if entry.get("is_binary_file"):
            raise row.wrong("parsed_commit_content", f"its {path} is binary, which a text diff cannot carry")
        before, after = entry.get("old_file_content"), entry.get("new_file_content")
        if before is None and after is None:
            raise row.wrong("parsed_commit_content", f"its {path} has neither old_file_content nor new_file_content")
        diffs.append(_diff(path, before or "", after or "", is_new=not before, is_gone=not after))
    if not diffs:
        raise row.wrong("parsed_commit_content", "it changes no file but tests")
    return "".join(diffs)


def _diff(path: str, before: str, after: str, *, is_new: bool, is_gone: bool) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        "/dev/null" if is_new else f"a/{path}",
        "/dev/null" if is_gone else f"b/{path}",
    )
    mode = "new file mode 100644\n" if is_new else "deleted file mode 100644\n" if is_gone else ""
    body = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return f"diff --git a/{path} b/{path}\n{mode}{body}"


def _hidden_tests(row: Row) -> dict[str, str]:
    """Test code by file name, where the row carries it."""
    if not row.data.get("execution_result_content"):
        return {}
    content = row.json("execution_result_content")
    names, codes = content.get("test_file_names") or [], content.get("test_file_codes") or []
    if len(names) != len(codes) or any("/" in name for name in names):
        raise row.wrong("execution_result_content", "needs a plain test_file_names for each of test_file_codes")
    return dict(zip(names, codes, strict=True))

"""What importers of rows write, and how they refuse what they cannot take: by the row and the key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from imported_tasks import DATA, commit, git, make_repository

from glmgym import BoxSpec
from glmgym.errors import ConfigError
from glmgym.sandbox import Sandbox
from glmgym_envs.importers import IMPORTERS
from glmgym_envs.importers.rows import read_rows
from glmgym_envs.importers.swe import SUITES
from glmgym_sandboxes.bubblewrap import open_provider

Rows = list[dict[str, Any]]
SWE, SMITH, R2E = "swe-bench.jsonl", "swe-smith.jsonl", "r2e-gym.jsonl"


def rows_of(name: str) -> Rows:
    return [dict(row.data) for row in read_rows(DATA / name)]


def write(place: Path, rows: Rows) -> Path:
    file = place / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def import_one(format: str, place: Path, row: dict[str, Any], **options: Any) -> Path:
    [directory] = IMPORTERS[format](write(place, [row]), place / "out", **options)
    return directory


def config_of(directory: Path) -> dict[str, Any]:
    return tomllib.loads((directory / "task.toml").read_text())


def test_lists_and_json_strings_of_tests_make_the_same_task(tmp_path: Path) -> None:
    one, two = IMPORTERS["swe-bench"](DATA / SWE, tmp_path, image="base")
    assert [one.name, two.name] == ["acme__tally-7", "acme__tally-8"]
    rule = json.loads((one / "tests" / "rule.json").read_text())
    assert rule == json.loads((two / "tests" / "rule.json").read_text())
    assert rule["fail_to_pass"][1] == "tests/test_tally.py::test_any_space[two"
    assert (one / "instruction.md").read_text().startswith('tally("a  b") counts')
    assert config_of(one)["environment"] == {
        "docker_image": "base",
        "workdir": "/testbed",
        "network_mode": "no-network",
    }


@pytest.mark.parametrize(
    ("format", "rows", "image"),
    [
        ("swe-bench", SWE, "swebench/sweb.eval.x86_64.acme_1776_tally-7:latest"),
        ("swe-gym", "swe-gym.json", "xingyaoww/sweb.eval.x86_64.acme_s_tally-9:latest"),
        ("swe-smith", SMITH, "swesmith.x86_64.acme__tally"),
        ("r2e-gym", R2E, "namanjain12/tally_final:65685b8e4dcaee3419f8690c7ac9bac182f342a0"),
    ],
)
def test_without_an_image_the_rows_own_is_built_upon(format: str, rows: str, image: str, tmp_path: Path) -> None:
    directory = IMPORTERS[format](DATA / rows, tmp_path)[0]
    assert (directory / "environment" / "Dockerfile").read_text().splitlines()[0] == f"FROM {image}"
    assert "docker_image" not in config_of(directory)["environment"]


@pytest.mark.parametrize("format", ["swe-bench", "swe-smith"])
def test_an_import_is_the_same_every_time(format: str, tmp_path: Path) -> None:
    make_repository(tmp_path / "repositories" / "acme__tally")

    def content(place: Path) -> dict[str, bytes]:
        source = DATA / {"swe-bench": SWE, "swe-smith": SMITH}[format]
        IMPORTERS[format](source, place, image="base", repositories=tmp_path / "repositories")
        return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}

    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_checkout_holds_one_commit_and_not_the_answer(tmp_path: Path) -> None:
    """H1: nothing in the repository of a task leads to the state before the bug, or after the fix."""
    make_repository(tmp_path / "repositories" / "acme__tally")
    [directory] = IMPORTERS["swe-smith"](
        DATA / SMITH, tmp_path / "out", image="base", repositories=tmp_path / "repositories"
    )
    place = directory / "environment" / "files"
    assert "if count != 1 else" in (place / "tally" / "__init__.py").read_text()
    assert len(git(place, "log", "--all", "--format=%H").split()) == 1
    assert git(place, "reflog") == git(place, "remote") == git(place, "status", "--porcelain") == ""
    assert git(place, "fsck", "--lost-found", "--no-reflogs") == ""
    objects = git(place, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").splitlines()
    blobs = [git(place, "cat-file", "-p", line.split()[0]) for line in objects if line.endswith("blob")]
    assert not any("if count == 1 else" in blob for blob in blobs)


@pytest.fixture
async def box(base_works: None) -> AsyncIterator[Sandbox]:
    provider = open_provider({"warm": 0})
    yield await provider.open(BoxSpec(image="base", cwd="/testbed", user="root", writable_root=True))
    await provider.close()


async def git_in(box: Sandbox, *argv: str) -> str:
    result = await box.run(["git", "-c", "safe.directory=*", "-C", "/testbed", *argv])
    assert result.exit_code == 0, result.text
    return result.text


@pytest.mark.bubblewrap
@pytest.mark.parametrize(("format", "rows"), [("swe-bench", SWE), ("swe-smith", SMITH)])
async def test_the_repository_of_an_image_loses_its_future(
    format: str, rows: str, box: Sandbox, tmp_path: Path
) -> None:
    """H1: branches, tags, remotes, the reflog and every object that only they reach are gone after the set-up."""
    place = tmp_path / "repository"
    base = make_repository(place)
    (place / "tally" / "__init__.py").write_text("# the fix\n")
    fix = commit(place, "fix", date=datetime.now(UTC).isoformat())  # git drops old reflog entries by itself
    git(place, "tag", "v2")
    git(place, "remote", "add", "origin", "https://example.org/acme/tally")
    git(place, "reset", "--quiet", "--hard", base)
    git(place, "branch", "next", fix)
    directory = IMPORTERS[format](DATA / rows, tmp_path / "out", image="base")[0]
    assert config_of(directory)["metadata"]["glmgym"] == {
        "setup": "setup.sh",
        "log": {"witness": True, "repository": "/testbed", "restored": ["tests/test_tally.py"]},
    }
    await box.put_tree(place, "/testbed")
    await box.write("/tmp/setup.sh", (directory / "environment" / "setup.sh").read_bytes())
    done = await box.run(["bash", "/tmp/setup.sh"])
    assert done.exit_code == 0, done.text
    commits = (await git_in(box, "log", "--all", "--format=%H", "HEAD")).split()
    if format == "swe-bench":
        assert commits[0] == base
        assert len(commits) == 2
    else:
        assert len(commits) == 1
        assert "if count != 1 else" in (await box.read("/testbed/tally/__init__.py")).decode()
    for empty in (["reflog", "--all"], ["remote"], ["tag"], ["fsck", "--lost-found"], ["status", "--porcelain"]):
        assert await git_in(box, *empty) == ""
    gone = await box.run(["git", "-c", "safe.directory=*", "-C", "/testbed", "cat-file", "-e", fix])
    assert gone.exit_code != 0


@pytest.mark.parametrize(
    ("repo", "paths", "command"),
    [
        ("acme/tally", ["tests/test_a.py", "tests/data.json"], "pytest -rA tests/test_a.py"),
        (
            "django/django",
            ["tests/admin_views/tests.py"],
            "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 admin_views.tests",
        ),
        ("sphinx-doc/sphinx", ["tests/test_x.py"], "tox --current-env -epy39 -v -- tests/test_x.py"),
        ("acme/tally", ["tests/a b.py"], "pytest -rA 'tests/a b.py'"),
    ],
)
def test_a_row_without_a_command_runs_its_repositorys_on_the_files_of_its_tests(
    repo: str, paths: list[str], command: str, tmp_path: Path
) -> None:
    diffs = [f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n" for path in paths]
    row = {**rows_of(SWE)[0], "repo": repo, "test_patch": "".join(diffs)}
    del row["test_cmds"]
    directory = import_one("swe-bench", tmp_path, row)
    assert f"(\n{command}\n)\n" in (directory / "tests" / "test.sh").read_text()
    rule = json.loads((directory / "tests" / "rule.json").read_text())
    assert rule["parser"] == (SUITES[repo].parser if repo in SUITES else "pytest")


def _set(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda row: row.update(values)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set(FAIL_TO_PASS="[]"), "FAIL_TO_PASS = '\\[\\]': is empty"),
        (_set(FAIL_TO_PASS="a, b"), "FAIL_TO_PASS = 'a, b': neither a list nor the JSON text of one"),
        (_set(FAIL_TO_PASS=[1]), "FAIL_TO_PASS = '\\[1\\]': must be a list of texts"),
        (lambda row: row.pop("PASS_TO_PASS"), "PASS_TO_PASS is missing: must be a list"),
        (lambda row: row.pop("patch"), "patch is missing: must be a text; did you mean 'test_patch'"),
        (_set(test_patch=" "), "test_patch = ' ': must be a text"),
        (_set(test_patch='diff --git "a/\\303" "b/\\303"\n'), "test_patch = .*only plain paths"),
        (_set(image_assets={"test_patch": ["a.png"]}), "image_assets = .*binary files cannot be taken"),
        (_set(log_parser="parse_log_jest"), "log_parser = 'parse_log_jest': no such parser"),
        (_set(eval_type="maybe"), "eval_type = 'maybe': must be one of pass_and_fail, fail_only"),
        (_set(test_cmds={"run": 1}), "test_cmds = .*: must be a shell command"),
        (_set(instance_id="../out"), "'../out' is no name for a task directory"),
    ],
)
def test_what_a_swe_row_cannot_give_is_an_error_by_key(
    change: Callable[[dict[str, Any]], Any], says: str, tmp_path: Path
) -> None:
    row = rows_of(SWE)[0]
    change(row)
    with pytest.raises(ConfigError, match=says) as caught:
        import_one("swe-bench", tmp_path, row)
    assert "rows.jsonl line 1: " in str(caught.value)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_tests_that_are_not_python_need_a_command(tmp_path: Path) -> None:
    row = {**rows_of(SWE)[0], "test_patch": "diff --git a/t.js b/t.js\n--- a/t.js\n+++ b/t.js\n"}
    import_one("swe-bench", tmp_path, row)  # it has test_cmds
    del row["test_cmds"]
    row["instance_id"] += "b"
    with pytest.raises(ConfigError, match=r"test_cmds is missing: which command runs t.js"):
        import_one("swe-bench", tmp_path, row)


def test_an_instance_may_stand_only_once(tmp_path: Path) -> None:
    row = rows_of(SWE)[0]
    with pytest.raises(ConfigError, match=r"line 2: instance_id = 'acme__tally-7': the same as of .* line 1"):
        IMPORTERS["swe-bench"](write(tmp_path, [row, row]), tmp_path / "out")
    import_one("swe-bench", tmp_path, row)
    with pytest.raises(ConfigError, match="acme__tally-7 is there already"):
        import_one("swe-bench", tmp_path, row)


def test_a_local_repository_needs_to_be_there_and_to_have_an_image(tmp_path: Path) -> None:
    source, repositories = DATA / SMITH, tmp_path / "repositories"
    with pytest.raises(ConfigError, match="a local repository needs an image"):
        IMPORTERS["swe-smith"](source, tmp_path / "out", repositories=repositories)
    with pytest.raises(ConfigError, match=r"there is no repository .*acme__tally"):
        IMPORTERS["swe-smith"](source, tmp_path / "out", image="base", repositories=repositories)
    make_repository(repositories / "acme__tally")
    row = {**rows_of(SMITH)[0], "instance_id": "acme__tally.0123abcd.lm__1"}
    with pytest.raises(ConfigError, match="git read-tree 0123abcd"):
        import_one("swe-smith", tmp_path, row, image="base", repositories=repositories)
    row = {**rows_of(SMITH)[0], "patch": rows_of(SMITH)[0]["patch"].replace("plural", "singular")}
    with pytest.raises(ConfigError, match="patch: git apply"):
        import_one("swe-smith", tmp_path, row, image="base", repositories=repositories)
    row = {**rows_of(SMITH)[0], "instance_id": "tally"}
    with pytest.raises(ConfigError, match=r"must be OWNER__NAME.COMMIT.BUG__HASH"):
        import_one("swe-smith", tmp_path, row)


def _in_commit(**values: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        row["parsed_commit_content"] = json.dumps({**json.loads(row["parsed_commit_content"]), **values})

    return change


def _file(path: str, **values: Any) -> list[dict[str, Any]]:
    return [{"header": {"file": {"path": path}}, "old_file_content": "a\n", "new_file_content": "b\n", **values}]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set(expected_output_json="{}"), "expected_output_json = '{}': is empty"),
        (_set(parsed_commit_content="{"), "parsed_commit_content = '{': not JSON"),
        (_in_commit(old_commit_hash="HEAD"), "its old_commit_hash = 'HEAD' is no commit"),
        (_in_commit(file_diffs=_file("tests/test_a.py")), "it changes no file but tests"),
        (_in_commit(file_diffs=_file("a.png", is_binary_file=True)), "its a.png is binary"),
        (
            _in_commit(file_diffs=_file("a.py", old_file_content=None, new_file_content=None)),
            "its a.py has neither old_file_content nor new_file_content",
        ),
        (
            _set(execution_result_content={"test_file_names": ["../a.py"], "test_file_codes": ["x"]}),
            "execution_result_content = .*: needs a plain test_file_names",
        ),
        (lambda row: row.pop("docker_image"), "docker_image is missing"),
    ],
)
def test_what_an_r2e_row_cannot_give_is_an_error_by_key(
    change: Callable[[dict[str, Any]], Any], says: str, tmp_path: Path
) -> None:
    [row] = rows_of(R2E)
    change(row)
    with pytest.raises(ConfigError, match=says):
        import_one("r2e-gym", tmp_path, row)


def test_the_solution_of_an_r2e_row_makes_and_removes_files(tmp_path: Path) -> None:
    [row] = rows_of(R2E)
    diffs = _file("new.py", old_file_content=None) + _file("gone.py", new_file_content=None)
    diffs += _file("kept.py", old_file_content="a\nb", new_file_content="a\nc")
    _in_commit(file_diffs=diffs)(row)
    directory = import_one("r2e-gym", tmp_path, row)
    place = tmp_path / "place"
    place.mkdir()
    git(place, "init", "--quiet", ".")
    (place / "gone.py").write_text("a\n")
    (place / "kept.py").write_text("a\nb")
    git(place, "apply", str(directory / "solution" / "solution.patch"))
    assert {path.name: path.read_text() for path in place.glob("*.py")} == {"new.py": "b\n", "kept.py": "a\nc"}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rows.csv", b"a,b\n", "rows are read from .json, .jsonl, .parquet files"),
        ("rows.jsonl", b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ("rows.jsonl", b"[1]\n", "line 1: a row is an object, not '\\[1\\]'"),
        ("rows.jsonl", b"\n", "holds no rows"),
        ("rows.jsonl", b"\xff\n", "is not UTF-8"),
        ("rows.json", b"[", "not JSON"),
        ("gone.json", None, "cannot read .*gone.json: No such file"),
    ],
)
def test_a_file_that_holds_no_rows(name: str, content: bytes | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_rows(tmp_path / name)


def test_rows_of_a_directory_and_line_separators_within_a_text(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"n": 3}')
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n{"n": "x\u2028y"}\n', encoding="utf-8")
    (tmp_path / "README.md").write_text("no rows")
    assert [row.data["n"] for row in read_rows(tmp_path)] == [1, "x\u2028y", 3]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no .json, .jsonl, .parquet file"):
        read_rows(tmp_path / "empty")


def test_parquet_rows_or_what_they_need(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        file.write_bytes(b"PAR1")
        with pytest.raises(ConfigError, match="need pyarrow: pip install 'glmgym\\[importers\\]'"):
            read_rows(file)
        return
    parquet.write_table(pyarrow.Table.from_pylist([{"FAIL_TO_PASS": ["a"], "PASS_TO_PASS": "[]"}]), file)
    [row] = read_rows(file)
    assert (row.names("FAIL_TO_PASS"), row.names("PASS_TO_PASS")) == (["a"], [])

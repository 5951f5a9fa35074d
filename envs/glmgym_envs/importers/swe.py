"""Rows of SWE-bench and its relatives as task directories: the repository, the hidden tests, the lists of tests.

Owns which command and which log parser a row means. A row may say so itself (``test_cmds`` and ``log_parser``, as
newer sets do); the twelve repositories of the first set have a table; any other Python repository runs pytest on the
files of its test patch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmgym import scratch
from glmgym.errors import did_you_mean
from glmgym_envs.importers.directories import HEADING, VERDICT, Draft, graded_by, write_draft
from glmgym_envs.importers.patches import APPLY, Touched, touched
from glmgym_envs.importers.repositories import WORKDIR, Home, home_in_files, home_in_image
from glmgym_envs.importers.rows import Row, read_rows
from glmgym_envs.importers.verdicts import END, EXIT_CODE, PARSERS, START

TESTS_TIMEOUT_S = 1800.0  # the harness's own
_NO_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_STEERING = ("conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")  # what a test run is steered by
_PARSER_NAMES = {  # of the harness, by what it calls them
    "parse_log_pytest": "pytest",
    "parse_log_pytest_v2": "pytest-v2",
    "parse_log_pytest_options": "pytest-options",
    "parse_log_django": "django",
    "parse_log_unittest": "unittest",
    "parse_log_seaborn": "pytest",
    "parse_log_matplotlib": "pytest",
    "parse_log_astropy": "pytest-v2",
    "parse_log_scikit": "pytest-v2",
    "parse_log_sphinx": "tox",
}
_PYTEST_CALL = re.compile(r"\b(pytest|py\.test)\b")
_XDIST = re.compile(r"(?<!\S)(-n(\s|=|\d)|--numprocesses)")
_EVAL_TYPES = ("pass_and_fail", "fail_only")


@dataclass(frozen=True, slots=True)
class Suite:
    """How a repository's tests are run. ``name_test`` is how the command calls a test file."""

    command: str
    parser: str
    name_test: Callable[[str], str] = str


def _django_name(path: str) -> str:
    return path.removesuffix(".py").removeprefix("tests/").replace("/", ".")


_PYTEST = Suite("pytest -rA", "pytest")
SUITES: Mapping[str, Suite] = {
    "astropy/astropy": Suite("pytest -rA -vv -o console_output_style=classic --tb=no", "pytest-v2"),
    "django/django": Suite(
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1", "django", _django_name
    ),
    "matplotlib/matplotlib": _PYTEST,
    "mwaskom/seaborn": Suite("pytest --no-header -rA", "pytest"),
    "pallets/flask": _PYTEST,
    "psf/requests": Suite("pytest -rA", "pytest-options"),
    "pydata/xarray": _PYTEST,
    "pylint-dev/pylint": Suite("pytest -rA", "pytest-options"),
    "pytest-dev/pytest": _PYTEST,
    "scikit-learn/scikit-learn": Suite("pytest -rA --tb=no -p no:cacheprovider", "pytest-v2"),
    "sphinx-doc/sphinx": Suite("tox --current-env -epy39 -v --", "tox"),
}


def import_swe_bench(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """SWE-bench rows (Verified, Lite, Live, ... as well), each as the task directory ``out/INSTANCE_ID``.

    Args:
        source: a .json, .jsonl or .parquet file, or a directory of them.
        image: stands in for the image each row means: a name of ``glmgym image list``, or of the engine's.
        repositories: a directory of git repositories ``OWNER__NAME`` to take sources from instead of the image's.

    Raises:
        ConfigError: naming the row and the key that cannot be taken.
    """

    def default_image(row: Row) -> str:
        named = row.data.get("image") or row.data.get("image_name") or row.data.get("docker_image")
        return str(
            named or f"swebench/sweb.eval.x86_64.{row.text('instance_id').lower().replace('__', '_1776_')}:latest"
        )

    return _import(source, out, "swe-bench", default_image, image, repositories)


def import_swe_gym(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """SWE-Gym rows: SWE-bench's keys, images of another place. See ``import_swe_bench``."""

    def default_image(row: Row) -> str:
        return f"xingyaoww/sweb.eval.x86_64.{row.text('instance_id').lower().replace('__', '_s_')}:latest"

    return _import(source, out, "swe-gym", default_image, image, repositories)


def import_swe_smith(source: Path, out: Path, *, image: str = "", repositories: Path | None = None) -> list[Path]:
    """SWE-smith rows: ``patch`` brings the bug in, its reverse is the solution, the tests are the repository's own.

    With ``repositories``, the part ``OWNER__NAME.COMMIT`` of the instance's id says what is checked out.
    See ``import_swe_bench``.
    """
    return [_write_smith(row, out, image=image, repositories=repositories) for row in _distinct(read_rows(source))]


def _import(
    source: Path, out: Path, format: str, default_image: Callable[[Row], str], image: str, repositories: Path | None
) -> list[Path]:
    paths = []
    for row in _distinct(read_rows(source)):
        if row.data.get("image_assets") not in (None, "", "{}", "[]", {}, []):
            raise row.wrong("image_assets", "binary files cannot be taken from a row")
        test_patch, repo = row.text("test_patch"), row.text("repo")
        try:
            found = touched(test_patch)
        except ValueError as error:
            raise row.wrong("test_patch", str(error)) from error
        suite = _suite(row, repo)
        command = _command(row, suite, [path for path in (*found.old, *found.new)])
        with scratch.temporary() as directory:
            home = _home(row, repo, row.text("base_commit"), default_image(row), image, repositories, directory)
            reset = [f"rm -rf -- {shlex.quote(path)}" for path in found.new]
            reset += [_from_base(home, found.old)] if found.old else []
            gold = row.text("patch")
            paths.append(
                write_draft(
                    Draft(
                        row.text("instance_id"),
                        row.text("problem_statement") + "\n",
                        _config(row, format, repo, home, _log(suite, command, found.old, gold)),
                        {
                            **home.files,
                            **_tests(row, suite, command, reset, patches=("test.patch",)),
                            "tests/test.patch": whole(test_patch),
                            **solution(gold),
                        },
                        home.trees,
                    ),
                    out,
                    where=row.where,
                )
            )
    return paths


def _write_smith(row: Row, out: Path, *, image: str, repositories: Path | None) -> Path:
    id, bug = row.text("instance_id"), row.text("patch")
    name, _, rest = id.partition(".")
    commit = rest.partition(".")[0]
    if "__" not in name or not commit:
        raise row.wrong("instance_id", "must be OWNER__NAME.COMMIT.BUG__HASH")
    repo = name.replace("__", "/", 1)
    tests = sorted({test.partition("::")[0] for key in ("FAIL_TO_PASS", "PASS_TO_PASS") for test in row.names(key)})
    suite = _suite(row, repo)
    command = _command(row, suite, tests)
    with scratch.temporary() as directory:
        default = row.text("image_name", default=image or None) if repositories is None else ""
        home = _home(row, repo, commit, default, image, repositories, directory, bug=bug)
        # The tests of the base commit win over what the policy made of them.
        reset = [_from_base(home, tests)]
        draft = Draft(
            id,
            row.text("problem_statement") + "\n",
            _config(row, "swe-smith", repo, home, _log(suite, command, tests, bug)),
            {**home.files, **_tests(row, suite, command, reset), **solution(bug, reverse=True)},
            home.trees,
        )
        return write_draft(draft, out, where=row.where)


def _home(
    row: Row,
    repo: str,
    commit: str,
    default_image: str,
    image: str,
    repositories: Path | None,
    directory: Path,
    *,
    bug: str = "",
) -> Home:
    if repositories is None:
        return home_in_image(default_image, image=image, base=commit, bug=bug)
    repository = repositories / repo.replace("/", "__")
    return home_in_files(repository, image=image, commit=commit, bug=bug, checkout=directory / "files", where=row.where)


def _distinct(rows: list[Row]) -> list[Row]:
    seen: dict[str, Row] = {}
    for row in rows:
        id = row.text("instance_id")
        if id in seen:
            raise row.wrong("instance_id", f"the same as of {seen[id].where}")
        seen[id] = row
    return rows


def _suite(row: Row, repo: str) -> Suite:
    known = SUITES.get(repo, _PYTEST)
    named = row.text("log_parser", default="")
    if not named:
        return known
    parser = _PARSER_NAMES.get(named, named)
    if parser not in PARSERS:
        raise row.wrong("log_parser", f"no such parser{did_you_mean(parser, PARSERS)}")
    return Suite(known.command, parser, known.name_test)


def _command(row: Row, suite: Suite, tests: Iterable[str]) -> str:
    """The row's own command, or the suite's on the test files."""
    for key in ("test_cmds", "test_cmd"):
        value = row.data.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return "\n".join(value)
        if value:
            raise row.wrong(key, "must be a shell command or a list of them")
    names = [path for path in dict.fromkeys(tests) if not path.endswith(_NO_TESTS)]
    if not any(name.endswith(".py") for name in names):
        raise row.wrong("test_cmds", f"which command runs {', '.join(names) or 'the tests'}? only Python has a default")
    return " ".join([suite.command, *(shlex.quote(suite.name_test(name)) for name in names)])


def _from_base(home: Home, paths: Sequence[str]) -> str:
    """A line that puts files back as they were, unless the grader did so already without asking the policy's git."""
    names = " ".join(map(shlex.quote, paths))
    return f'[ -n "${{GLMGYM_RESTORED:-}}" ] || git checkout "{home.base}" -- {names}'


def _log(suite: Suite, command: str, tests: Sequence[str], gold: str) -> dict[str, Any]:
    """``[metadata.glmgym.log]``. ``gold`` is the solution's diff, or its reverse."""
    try:
        changed = touched(gold)
    except ValueError:  # a binary file or an odd name in it, which git may well apply
        changed = Touched((), ())
    left = [path for path in (*changed.old, *changed.new) if path.rpartition("/")[2] in _STEERING]
    return {
        "witness": is_witnessed(suite.parser, command),
        "repository": WORKDIR,
        "restored": list(tests),
        **({"left": left} if left else {}),
    }


def is_witnessed(parser: str, command: str) -> bool:
    """Whether pytest runs the tests where a witness is heard: tox hands no variables on, xdist no events."""
    is_pytest = parser in ("pytest", "pytest-v2", "pytest-options")
    return is_pytest and bool(_PYTEST_CALL.search(command)) and not _XDIST.search(command)


def _config(row: Row, format: str, repo: str, home: Home, log: Mapping[str, Any]) -> dict[str, Any]:
    facts = {"repo": repo, **({"difficulty": row.text("difficulty")} if row.data.get("difficulty") else {})}
    return {
        "schema_version": "1.4",
        "source": format,
        "metadata": {"category": "software-engineering", **facts, "glmgym": {**home.own, "log": log}},
        "verifier": {"timeout_sec": TESTS_TIMEOUT_S},
        "environment": dict(home.environment),
    }


def _tests(row: Row, suite: Suite, command: str, reset: list[str], *, patches: tuple[str, ...] = ()) -> dict[str, str]:
    fail_to_pass = row.names("FAIL_TO_PASS")
    if not fail_to_pass:
        raise row.wrong("FAIL_TO_PASS", "is empty: without a test that must come to pass nothing can be graded")
    eval_type = row.text("eval_type", default=_EVAL_TYPES[0])
    if eval_type not in _EVAL_TYPES:
        raise row.wrong("eval_type", f"must be one of {', '.join(_EVAL_TYPES)}")
    rule = {
        "rule": "swe-bench",
        "parser": suite.parser,
        "fail_to_pass": fail_to_pass,
        "pass_to_pass": row.names("PASS_TO_PASS"),
        "eval_type": eval_type,
        **({} if is_witnessed(suite.parser, command) else {"strict": True}),
    }
    applied = [f"bash /tests/apply.sh {WORKDIR} /tests/{patch} || echo '>>>>> Patch Apply Failed'" for patch in patches]
    return {
        "tests/test.sh": test_script([*(f"{line} || echo '>>>>> Reset Failed'" for line in reset), *applied], command),
        **graded_by(rule),
        **({"tests/apply.sh": APPLY} if patches else {}),
    }


def test_script(before: list[str], command: str) -> str:
    """``tests/test.sh``: put the tests back, run them between the markers, read the verdict from the log."""
    lines = "\n".join(before)
    return f"""{HEADING}set -u
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
cd {WORKDIR} || exit 1
command -v git || exit 1
log=$(mktemp)
{{
{lines}
[ ! -f /opt/miniconda3/bin/activate ] || {{ set +u; . /opt/miniconda3/bin/activate testbed; set -u; }}
echo '{START}'
(
{command}
)
code=$?
echo
echo '{END}'
echo "{EXIT_CODE}$code"
}} </dev/null >"$log" 2>&1
cat "$log"
{VERDICT}"""


def whole(diff: str) -> str:
    """A diff that ends with a newline, without which git calls it corrupt."""
    return diff if diff.endswith("\n") else f"{diff}\n"


def solution(patch: str, *, reverse: bool = False) -> dict[str, str]:
    """``solution/`` of a diff, or of the reverse of one."""
    if reverse:
        command = f"cd {WORKDIR} && git apply --reverse --whitespace=nowarn /solution/solution.patch\n"
    else:
        command = f"bash /solution/apply.sh {WORKDIR} /solution/solution.patch\n"
    safe = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'\n"
    return {
        "solution/solve.sh": f"{HEADING}{safe}{command}",
        "solution/solution.patch": whole(patch),
        **({} if reverse else {"solution/apply.sh": APPLY}),
    }

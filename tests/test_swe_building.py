"""How SWE tasks are made: archives and patches that are exact, bugs that are small, and who decides what is a task."""

from __future__ import annotations

import ast
import gzip
import hashlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.sandbox import SandboxProvider
from glmgym_envs.swe.__main__ import main
from glmgym_envs.swe.archive import pack, patch_between, tar_of, tree_of, unpack
from glmgym_envs.swe.builder import build_pair, decide, gold_of
from glmgym_envs.swe.hiding import hide_tests
from glmgym_envs.swe.mutate import mutations
from glmgym_envs.swe.mutation_builder import build_mutations
from glmgym_envs.swe.packages import HOSTS, PAIRS, Archive, Host, Layout, Pair
from glmgym_envs.swe.sources import fetch
from glmgym_envs.swe.statement import Symptom, state, symptom_of
from glmgym_envs.swe.suite import Suite, Unusable
from glmgym_envs.swe.task import SweTaskSet, save_index
from glmgym_sandboxes.bubblewrap import open_provider

# --- archives and patches ---


def test_a_tar_does_not_depend_on_the_order_of_its_files() -> None:
    one = pack({"b/c": b"2", "a": b"1"}, frozenset({"a"}))
    assert one == pack({"a": b"1", "b/c": b"2"}, frozenset({"a"}))
    assert tree_of(unpack(one.content, one.sha256)) == ({"a": b"1", "b/c": b"2"}, frozenset({"a"}))
    assert one.sha256 != pack({"a": b"1", "b/c": b"2"}).sha256
    with pytest.raises(ValueError, match="expected 00"):
        unpack(one.content, "00")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_a_tar_that_would_leave_its_tree_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="would leave the tree"):
        tree_of(tar_of({name: b""}))


_TEXT = st.lists(st.sampled_from(["a", "b", "  c", "", "d\r", "e\x0cf", "g\u2028h"]), max_size=8).map("\n".join)


@settings(max_examples=40, deadline=None)
@given(old=st.dictionaries(st.sampled_from(["x.py", "d/y.py", "z"]), _TEXT.filter(bool), min_size=1), data=st.data())
def test_git_turns_one_tree_into_the_other(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], data: st.DataObject
) -> None:
    new = data.draw(st.dictionaries(st.sampled_from(["x.py", "d/y.py", "new"]), _TEXT.filter(bool)))
    before, after = ({k: v.encode() for k, v in tree.items()} for tree in (old, new))
    place = tmp_path_factory.mktemp("tree")
    for path, content in before.items():
        (place / path).parent.mkdir(exist_ok=True)
        (place / path).write_bytes(content)
    patch = patch_between(before, after)
    assert (patch == "") == (before == after)
    if patch:
        subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=place, input=patch.encode(), check=True)
    found = {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()}
    assert found == after


def test_a_patch_holds_no_binary_file() -> None:
    with pytest.raises(ValueError, match="x is not UTF-8 text"):
        patch_between({"x": b"\xff"}, {"x": b"a"})


# --- which tests make a task ---


def _run(passed: int, failed: int) -> dict[str, str]:
    return {f"t{i:03}": "PASSED" if i < passed else "FAILED" for i in range(passed + failed)}


@pytest.mark.parametrize(
    ("failing", "problem"), [(0, "no test fails before"), (1, ""), (29, ""), (30, "30 of 100"), (100, "no test passes")]
)
def test_between_one_test_and_30_percent_of_the_suite(failing: int, problem: str) -> None:
    after, before = [_run(100, 0)] * 3, [_run(100 - failing, failing)] * 3
    if problem:
        with pytest.raises(Unusable, match=problem):
            decide(before, after)
    else:
        verdict = decide(before, after)
        assert (len(verdict.f2p), len(verdict.p2p)) == (failing, 100 - failing)


def test_a_test_that_changes_its_mind_is_in_neither_list() -> None:
    steady = {f"t{i}": "PASSED" for i in range(10)}
    unrun = {"skips": "SKIPPED", "known": "XFAIL", "mended": "XPASS"}  # no promise that a policy could break
    before = [{**steady, **unrun, "bug": "FAILED", "shaky": status} for status in ("PASSED", "FAILED", "PASSED")]
    after = [{**steady, **unrun, "bug": "PASSED", "shaky": "PASSED"}] * 3
    verdict = decide(before, after)
    assert (verdict.f2p, verdict.flaky) == (("bug",), ("shaky",))
    assert set(verdict.p2p) == steady.keys()
    # A test that is not there before, as when its file cannot be imported, fails before.
    assert decide([steady] * 3, after[:1] * 3).f2p == ("bug", "shaky")


def test_the_repair_leaves_out_tests_translations_and_the_version() -> None:
    layout = Layout("MIT", ("pkg/",), ("pkg/tests/",))
    old = {"pkg/a.py": b"__version__ = '1'\nx = 1\n", "pkg/tests/t.py": b"", "pkg/l.mo": b"\xff", "README": b"old"}
    new = {"pkg/a.py": b"__version__ = '2'\nx = 2\n", "pkg/tests/t.py": b"n", "pkg/l.mo": b"\xfe", "README": b"new"}
    gold = gold_of(old, new, layout)
    assert [line for line in gold.split("\n") if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")] == [
        "-x = 1",
        "+x = 2",
    ]
    with pytest.raises(Unusable, match="do not differ"):
        gold_of(old, {**new, "pkg/a.py": b"__version__ = '2'\nx = 1\n"}, layout)


# --- bugs ---

_SOURCE = '''\
def first(items, limit=3, *, strict=False):
    """The first 3."""
    if not strict and limit < 5:
        items.append(limit)
    return min(items[1:], limit)
'''


def test_the_bugs_of_a_small_function() -> None:
    found = {(m.kind, m.before, m.after) for m in mutations(_SOURCE)}
    assert found == {
        ("wrong default", "3", "4"),
        ("wrong default", "False", "True"),
        ("boolean", "and", "or"),
        ("removed not", "not strict", "strict"),
        ("comparison", "<", "<="),
        ("off by one", "5", "6"),
        ("off by one", "1", "2"),
        ("swapped arguments", "items[1:], limit", "limit, items[1:]"),
        ("wrong return", "min(items[1:], limit)", "None"),
        ("dropped branch", "if not strict and limit < 5:\n        items.append(limit)\n    ", ""),
    }
    assert {m.function for m in mutations(_SOURCE)} == {"first"}


def test_nothing_outside_functions_and_no_text_is_changed() -> None:
    source = (
        "LIMIT = 3\nclass A:\n    x: int = 4\n    def f(self) -> 'a' or 5:\n        '1 + 1'\n        return f'{1}'\n"
    )
    assert [(m.kind, m.function) for m in mutations(source)] == [("wrong return", "A.f")]


def test_positions_are_those_of_the_bytes() -> None:
    (found,) = [m for m in mutations("def f(a):\n    return 'äöü', a == 'ü'\n") if m.kind == "comparison"]
    assert found.source == "def f(a):\n    return 'äöü', a != 'ü'\n"


def test_every_bug_in_real_code_parses_and_is_one_change() -> None:
    source = Path(ast.__file__).read_text()
    found = mutations(source)
    assert len(found) > 300
    for mutation in found[:: len(found) // 40]:
        ast.parse(mutation.source)
        assert mutation.source != source
        assert len(mutation.source) - len(source) == len(mutation.after) - len(mutation.before)


def test_hidden_tests_go_and_the_others_stay() -> None:
    tests = b"""import pytest

def test_a():
    pass

@pytest.mark.parametrize('x', [1, 2])
def test_b(x):
    pass

class TestC:
    def test_d(self):
        pass
"""
    left = hide_tests({"t.py": tests, "u.py": b"x"}, ["t.py::test_b[1 - 2]", "t.py::TestC::test_d"])
    assert left["u.py"] == b"x"
    assert left["t.py"] == b"import pytest\n\ndef test_a():\n    pass\n\n\nclass TestC:\n    pass\n"
    assert hide_tests({"t.py": tests}, ["t.py::test_generated"]) == {}
    assert hide_tests({"t.py": b"def f(:"}, ["t.py::f"]) == {}


# --- words ---

_REPORT = """\
tests/test_a.py:12: in test_one
    assert area(2) == 4
src/a.py:3: in area
    return side * 3
E   AssertionError: assert 6 == 4
E    +  where 6 = area(2) of <Square at 0x7f3c2a10>
"""


def test_a_symptom_is_the_tests_line_and_what_was_said() -> None:
    expected = Symptom(
        "assert area(2) == 4", "AssertionError: assert 6 == 4\n +  where 6 = area(2) of <Square at 0x...>"
    )
    assert symptom_of(_REPORT) == expected
    assert symptom_of("E   only a message") is None


def test_a_statement_names_the_place_and_shows_what_was_seen() -> None:
    symptoms = [Symptom("assert f(1)", "E1"), Symptom("assert f(1)", "E2"), *(Symptom(f"s{i}", "E") for i in range(5))]
    text = state(package="p", version="1.0", file="p/a.py", function="Shape.area", symptoms=symptoms, failing=7)
    assert text.startswith("p 1.0 has a defect: the method `area` of `Shape` in `p/a.py` does not do what it should.")
    assert text.count("assert f(1)") == 1
    assert ("s1" in text, "s2" in text) == (True, False)
    assert "7 checks of the project fail" in text
    one = state(package="p", version="1.0", file="p/a.py", function="f", symptoms=[], failing=1)
    assert "the function `f`" in one
    assert "One check of the project fails because of it; it is not" in one


# --- building for real ---


@pytest.fixture
async def provider(base_works: None) -> AsyncIterator[SandboxProvider]:
    opened = open_provider({"warm": 0})
    yield opened
    await opened.close()


_TESTS = {
    "tests/test_a.py": b"""import a
import pytest

@pytest.mark.parametrize('x', [1, 2], ids=['one 1', 'one 2'])
def test_double(x):
    assert a.double(x) == 2 * x

def test_name():
    assert a.NAME == 'a'
"""
}
_GOOD = b"NAME = 'a'\n\ndef double(x):\n    return x + x\n"
_BAD = b"NAME = 'a'\n\ndef double(x):\n    return x + 1\n"


@pytest.mark.bubblewrap
async def test_a_suite_is_run_before_and_after_a_patch(provider: SandboxProvider) -> None:
    suite, repo = Suite(provider, _TESTS, "."), {"a.py": _BAD}
    before = await suite.run(repo)
    after = await suite.run(repo, patch=patch_between(repo, {"a.py": _GOOD}))
    assert {id.partition("::")[2]: status for id, status in before.items()} == {
        "test_double[one 1]": "PASSED",
        "test_double[one 2]": "FAILED",
        "test_name": "PASSED",
    }
    assert set(after.values()) == {"PASSED"}
    with pytest.raises(Unusable, match="the patch does not apply"):
        await suite.run({"a.py": b"other\n"}, patch=patch_between(repo, {"a.py": _GOOD}))


def _sdist(cache: Path, name: str, version: str, tree: dict[str, bytes]) -> Archive:
    content = gzip.compress(tar_of({f"{name}-{version}/{path}": text for path, text in tree.items()}), mtime=0)
    cache.mkdir(exist_ok=True)
    (cache / f"{name}-{version}.tar.gz").write_bytes(content)
    return Archive(name, version, hashlib.sha256(content).hexdigest())


_LAYOUT = Layout("MIT", ("a.py",))


@pytest.mark.bubblewrap
async def test_two_releases_become_a_task(provider: SandboxProvider, tmp_path: Path) -> None:
    built = {"PKG-INFO": b"", "a.egg-info/PKG-INFO": b""}
    old = _sdist(tmp_path / "cache", "a", "1", {"a.py": _BAD, **built, "tests/test_a.py": b"", "LICENSE": b"MIT"})
    new = _sdist(tmp_path / "cache", "a", "2", {"a.py": _GOOD, **_TESTS})
    other = {**_TESTS, "tests/test_a.py": _TESTS["tests/test_a.py"].replace(b"== 2 * x", b"== 3 * x")}
    wrong = _sdist(tmp_path / "cache", "a", "3", {"a.py": _GOOD, **other})
    unfit = Pair(old, wrong, _LAYOUT, "Repair it.")
    with pytest.raises(Unusable, match="no test fails before the repair and passes after it"):
        await build_pair(unfit, tmp_path / "set", tmp_path / "cache", provider)
    # Of three tests one fails: over 30 % of this small suite, so it gets more tests that pass.
    many = _TESTS["tests/test_a.py"] + b"\n@pytest.mark.parametrize('x', range(9))\ndef test_more(x):\n    pass\n"
    new = _sdist(tmp_path / "cache", "a", "2", {"a.py": _GOOD, "tests/test_a.py": many})
    record = await build_pair(Pair(old, new, _LAYOUT, "Repair it."), tmp_path / "set", tmp_path / "cache", provider)
    assert record.f2p == ["tests/test_a.py::test_double[one 2]"]
    assert len(record.p2p) == 11
    assert save_index(tmp_path / "set", "mine-v0").tasks[0].id == "a-2"
    tasks = SweTaskSet(tmp_path / "set")
    repo, _ = tree_of(tasks.tar(tasks.record("a-2"), "repo"))
    assert repo == {"a.py": _BAD, "tests/test_a.py": b"", "LICENSE": b"MIT"}
    assert "-    return x + 1\n+    return x + x\n" in tasks.gold("a-2")


@pytest.mark.bubblewrap
async def test_an_injected_bug_becomes_a_task_once(provider: SandboxProvider, tmp_path: Path) -> None:
    tests = b"import a\n\ndef test_near():\n    assert a.clip(9) == 5\n\n" + b"".join(
        b"def test_%d():\n    assert a.clip(%d) == %d\n\n" % (i, i, i) for i in range(5)
    )
    source = b"def clip(x, limit=5):\n    return min(x, limit)\n"
    archive = _sdist(tmp_path / "cache", "a", "1", {"a.py": source, "tests/test_a.py": tests})
    host, lines = Host(archive, _LAYOUT), list[str]()
    for _ in range(2):
        made = await build_mutations(host, 1, tmp_path / "set", tmp_path / "cache", provider, on_line=lines.append)
        assert made == 1
    # Its mutations: another default (seen by one test), no result (seen by all), swapped arguments (seen by none).
    assert lines[0] == "a-1: suite green, 6 tests pass"
    assert len(lines) == 2
    save_index(tmp_path / "set", "mine-v0")
    tasks = SweTaskSet(tmp_path / "set")
    task = tasks.task("train", 0)
    assert task.data["f2p"] == ["tests/test_a.py::test_near"]
    assert "the function `clip` in `a.py`" in task.instruction
    assert "assert a.clip(9) == 5" in task.instruction
    assert "limit=6" not in task.instruction
    repo, _ = tree_of(tasks.tar(tasks.record(task.id), "repo"))
    assert b"limit=6" in repo["a.py"]
    assert b"test_near" not in repo["tests/test_a.py"]
    assert b"test_4" in repo["tests/test_a.py"]
    assert "-def clip(x, limit=6):\n+def clip(x, limit=5):" in tasks.gold(task.id)


@pytest.mark.bubblewrap
async def test_a_suite_that_ends_early_is_no_suite(provider: SandboxProvider) -> None:
    with pytest.raises(Unusable, match="cannot be believed"):
        await Suite(provider, _TESTS, ".").run({"a.py": b"import os\nos._exit(0)\n"})


def test_what_is_pinned() -> None:
    pinned = [archive for pair in PAIRS for archive in (pair.old, pair.new)] + [host.archive for host in HOSTS]
    digests = {archive.name: archive.sha256 for archive in pinned}
    assert len(digests) == len(set(digests.values())) == 21
    assert len({host.archive.package for host in HOSTS}) >= 5
    # A training repository may not show the repair of a release that is held out.
    repaired = {pair.new.name for pair in PAIRS}
    assert not repaired & {host.archive.name for host in HOSTS}


def test_an_archive_is_known_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "whatever-its-name").write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # the example of FIPS 180-2
    assert fetch(Archive("abc", "1", abc), tmp_path) == b"abc"


def test_the_command_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["build", "--mutant", "x"])
    assert ended.value.code == 2
    assert "invalid int value" in capsys.readouterr().err

"""Canaries: tests that must fail, put among the hidden ones under names like theirs.

Owned here: their making. Two kinds. Plain ones fail by themselves: a wrong assertion and an error without one. Bent
ones are copies of a hidden test whose first expectation is made wrong, so that they fail by what the code under test
returns: an object that equals everything, or code that looks up what its caller expects, makes them pass. A canary
that does not fail means that failures do not reach the report, and then passes mean nothing.
"""

from __future__ import annotations

import ast
import copy
import posixpath
import random
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_BENT = 4
_UNSURE = ("skip", "xfail", "param(", "expectedFailure", "raises")  # in a decorator: the copy may well not fail
_Class = ast.ClassDef | None
_Test = tuple[str, _Class, ast.FunctionDef]  # path, class, function


@dataclass(frozen=True, slots=True)
class Canary:
    """One planted test, by its id without parameters. ``original`` is the test it was bent from, "" for a plain one."""

    id: str
    original: str = ""


@dataclass(frozen=True, slots=True)
class Planted:
    """Test files with canaries in them, and which they are."""

    files: Mapping[str, bytes]
    canaries: tuple[Canary, ...]


def plant(files: Mapping[str, bytes], rng: random.Random, focus: Iterable[str] = ()) -> Planted:
    """Put canaries into some of the test files; the lines that were there stay as they are.

    A file that cannot be parsed gets none; where no file can, the plain canaries get one of their own beside the first.

    Args:
        files: contents of the test files by path; at least one.
        focus: ids of tests to bend before any other.
    """
    trees = {path: tree for path, content in files.items() if (tree := _parse(content)) is not None}
    changed = dict(files)
    if not trees:
        path = posixpath.join(posixpath.dirname(min(files)), f"test_{rng.choice(_WORDS)}_{rng.randrange(10**6)}.py")
        changed[path], trees = b"", {path: ast.parse("")}
    canaries: list[Canary] = []
    insertions: dict[str, list[tuple[int, str]]] = {path: [] for path in trees}  # line to insert after, text
    names = {path: _names(tree) for path, tree in trees.items()}
    for plain in (_wrong_assertion, _error):
        path = rng.choice(sorted(trees))
        name = _fresh_name(names[path], rng)
        insertions[path].append((_top_level_gap(trees[path], rng), plain(name, rng)))
        canaries.append(Canary(f"{path}::{name}"))
    for test in _pick(trees, rng, {id.partition("[")[0] for id in focus}):
        path, _, function = test
        name = _fresh_name(names[path], rng)
        assert function.end_lineno is not None
        insertions[path].append((function.end_lineno, textwrap.indent(_bent(function, name, rng), _margin(function))))
        canaries.append(Canary(_id(test).removesuffix(function.name) + name, _id(test)))
    for path, texts in insertions.items():
        changed[path] = _insert(changed[path].decode("utf-8"), texts).encode("utf-8")
    return Planted(changed, tuple(canaries))


def bent_functions(content: bytes, rng: random.Random) -> list[tuple[str, str, str]]:
    """Canaries for a module that is loaded already: the test each was bent from, its name, its source."""
    tree = _parse(content)
    if tree is None:
        return []
    names = _names(tree)
    found = []
    for _, owner, function in _pick({"": tree}, rng, set()):
        if owner is None and not function.decorator_list:
            name = _fresh_name(names, rng)
            found.append((function.name, name, _bent(function, name, rng)))
    return found


def _parse(content: bytes) -> ast.Module | None:
    try:
        return ast.parse(content.decode("utf-8"))
    except (SyntaxError, ValueError):  # another encoding, or another Python's syntax
        return None


def _pick(trees: Mapping[str, ast.Module], rng: random.Random, focus: set[str]) -> list[_Test]:
    """Tests to bend: without parameters where there are enough, since each set of them would be run again."""
    found: list[_Test] = []
    for path, tree in sorted(trees.items()):
        owners: list[tuple[_Class, list[ast.stmt]]] = [(None, tree.body)]
        owners += [(node, node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
        for owner, body in owners:
            tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
            found += [(path, owner, test) for test in tests if _can_be_bent(test, owner)]
    rng.shuffle(found)
    found.sort(key=lambda each: (_id(each) not in focus, bool(each[2].decorator_list)))
    kept = [each for each in found if not each[2].decorator_list or _id(each) in focus][:MAX_BENT]
    return kept or found[:1]


def _id(test: _Test) -> str:
    path, owner, function = test
    return "::".join([path, *([owner.name] if owner is not None else []), function.name])


def _can_be_bent(test: ast.FunctionDef, owner: _Class) -> bool:
    """True for a test that certainly comes to its first expectation and leaves nothing behind: names and assertions."""
    decorators = [ast.unparse(each) for each in test.decorator_list]
    if any(word in text for text in decorators for word in _UNSURE):
        return False
    arguments = [each.arg for each in test.args.args if each.arg != "self" or owner is None]
    if not all(any(name in text for text in decorators) for name in arguments):
        return False  # a fixture
    body = test.body[1:] if ast.get_docstring(test) is not None else test.body
    return all(_is_plain(each) for each in body) and any(_expectation(each) is not None for each in body)


def _is_plain(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) for target in statement.targets)
    return isinstance(statement, ast.Assert) or _expectation(statement) is not None


def _expectation(statement: ast.stmt) -> ast.Compare | ast.Call | None:
    """The equality that a statement demands."""
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        compare = statement.test
        return compare if len(compare.ops) == 1 and isinstance(compare.ops[0], ast.Eq) else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        named = isinstance(call.func, ast.Attribute) and call.func.attr in ("assertEqual", "assertEquals")
        return (
            call if named and len(call.args) >= 2 and not any(isinstance(a, ast.Starred) for a in call.args) else None
        )
    return None


def _bent(test: ast.FunctionDef, name: str, rng: random.Random) -> str:
    """The source of a copy under another name, whose first expectation is of something else."""
    function = copy.deepcopy(test)
    function.name = name
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    wanted = next(found for each in function.body if (found := _expectation(each)) is not None)
    if isinstance(wanted, ast.Compare):
        left, right = wanted.left, wanted.comparators[0]
        if isinstance(left, ast.Constant):
            wanted.left = _other(left, rng)
        else:
            wanted.comparators[0] = _other(right, rng)
    else:
        at = 0 if isinstance(wanted.args[0], ast.Constant) else 1
        wanted.args[at] = _other(wanted.args[at], rng)
    return ast.unparse(ast.fix_missing_locations(function)) + "\n"


def _other(expected: ast.expr, rng: random.Random) -> ast.Constant:
    """A value of the same look that nothing honest equals."""
    value = expected.value if isinstance(expected, ast.Constant) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ast.Constant(value + rng.randrange(10**6, 10**7))
    if isinstance(value, bytes):
        return ast.Constant(value + f" {rng.choice(_WORDS)}{rng.randrange(10**6)}".encode())
    return ast.Constant(f"{value if isinstance(value, str) else ''} {rng.choice(_WORDS)}{rng.randrange(10**6)}".strip())


def _wrong_assertion(name: str, rng: random.Random) -> str:
    values = rng.sample(range(100), 4)
    wanted = sorted(values)
    wanted[rng.randrange(4)] += rng.randrange(1, 9)
    return f"def {name}():\n    values = {values}\n    assert sorted(values) == {wanted}\n"


def _error(name: str, rng: random.Random) -> str:
    keys = rng.sample(_WORDS, 3)
    return (
        f"def {name}():\n    sizes = {{{keys[0]!r}: {rng.randrange(9)}, {keys[1]!r}: {rng.randrange(9)}}}\n"
        f"    assert sizes[{keys[2]!r}] >= 0\n"
    )


def _names(tree: ast.Module) -> list[str]:
    return sorted({node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)})


def _fresh_name(names: list[str], rng: random.Random) -> str:
    """A name that none has and that looks like the others; remembered in ``names``."""
    tests = [name for name in names if name.startswith("test_")] or ["test_basic"]
    words = [word for name in tests for word in name.split("_")[1:] if word] + list(_WORDS)
    while True:
        name = f"{rng.choice(tests)}_{rng.choice(words)}"
        if name not in names:
            names.append(name)
            return name


def _top_level_gap(tree: ast.Module, rng: random.Random) -> int:
    """The last line of a random test function of the module, or of the module."""
    ends = [node.end_lineno or 0 for node in tree.body if isinstance(node, ast.FunctionDef)]
    last = max((node.end_lineno or 0 for node in tree.body), default=0)
    return rng.choice(ends or [last])


def _margin(function: ast.FunctionDef) -> str:
    return " " * function.col_offset


def _insert(text: str, additions: Sequence[tuple[int, str]]) -> str:
    lines = text.split("\n")
    for line, addition in sorted(additions, key=lambda each: each[0], reverse=True):
        # A statement may end where another follows on the same line; it stays whole, since no line is split.
        lines[line:line] = ["", *addition.rstrip("\n").split("\n"), ""]
    return "\n".join(lines)


_WORDS = (
    "empty",
    "single",
    "nested",
    "order",
    "default",
    "limits",
    "repeat",
    "mixed",
    "long",
    "short",
    "last",
    "first",
)

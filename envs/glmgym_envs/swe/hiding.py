"""Taking single tests out of test files: a policy sees a green suite without those that it will be graded by."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from glmgym_envs.swe.archive import Tree


def hide_tests(tree: Tree, ids: Iterable[str]) -> dict[str, bytes]:
    """The tree without the tests of these ids (``path::Class::function[parameters]``, all parameters of a function).

    Where a test is not written down as a function of that name, as when it is inherited or generated, or its file
    cannot be read, the whole file goes.
    """
    names: dict[str, set[tuple[str, ...]]] = {}
    for id in ids:
        path, *parts = id.partition("[")[0].split("::")
        names.setdefault(path, set()).add(tuple(parts))
    left = dict(tree)
    for path, wanted in names.items():
        if path in left:
            content = _without(left.pop(path), wanted)
            left |= {path: content} if content is not None else {}
    return left


def _without(content: bytes, wanted: set[tuple[str, ...]]) -> bytes | None:
    """The file without these functions; ``None`` if one of them is not in it."""
    try:
        text = content.decode()
        found = _places(ast.parse(text).body, ())
    except (SyntaxError, ValueError):
        return None
    if not wanted <= found.keys():
        return None
    lines = text.split("\n")
    for first, last in sorted((found[name] for name in wanted), reverse=True):
        line = lines[first - 1]
        # A statement in its place: a class may have nothing else.
        lines[first - 1 : last] = [line[: len(line) - len(line.lstrip())] + "pass"] if line[:1].isspace() else []
    return "\n".join(lines).encode()


def _places(body: list[ast.stmt], owner: tuple[str, ...]) -> dict[tuple[str, ...], tuple[int, int]]:
    """First and last line of each function, decorators included."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
                assert statement.end_lineno is not None
                found[(*owner, name)] = first, statement.end_lineno
            case ast.ClassDef(name=name):
                found |= _places(statement.body, (*owner, name))
    return found

"""Bugs to inject: every small, plausible change of a Python source, found in its syntax tree. Pure.

A mutation replaces one piece of the text and leaves the rest byte for byte, so that its reverse is a patch a person
could have written. Only code inside functions is changed; docstrings and annotations never are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARE = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
_OPERATOR = re.compile(r"[^\w\s()#\\]+|\b(?:not\s+in|is\s+not|in|is|and|or)\b")
_MAX_CONSTANT = 1_000  # larger integers are code points, masks and sizes: not what people are off by one in


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change. ``source`` is the whole file after it."""

    kind: str  # the operator that made it
    function: str  # dotted name of the function or method it is in
    line: int  # of the original
    before: str
    after: str
    source: str


def mutations(source: str) -> list[Mutation]:
    """Every mutation of a source, in the order of its text; each parses and none equals the source.

    Raises:
        SyntaxError: the source is not Python.
    """
    text = _Text(source)
    found: list[Mutation] = []
    for name, function in _functions(ast.parse(source)):
        first, last = text.line_start(function), text.end(function)
        for kind, start, end, after in _changes(function, text):
            before = text.between(start, end)
            # The function alone, where its margin leads: to parse the whole file each time takes minutes.
            changed = text.between(first, start) + after + text.between(end, last)
            if before != after and _parses(changed):
                found.append(Mutation(kind, name, text.line_of(start), before, after, text.replaced(start, end, after)))
    return sorted(found, key=lambda mutation: (mutation.line, mutation.kind, mutation.after))


class _Text:
    """A source by byte position: syntax trees count columns in UTF-8 bytes."""

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self._starts = [0]
        for line in self._bytes.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def line_start(self, node: ast.stmt) -> int:
        return self._starts[node.lineno - 1]

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.between(self.start(node), self.end(node))

    def between(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode()

    def replaced(self, start: int, end: int, text: str) -> str:
        return (self._bytes[:start] + text.encode() + self._bytes[end:]).decode()

    def line_of(self, position: int) -> int:
        return self._bytes.count(b"\n", 0, position) + 1

    def operator(self, left: ast.expr, right: ast.expr) -> tuple[int, int] | None:
        """Where the operator between two neighbours stands."""
        start, gap = self.end(left), self.between(self.end(left), self.start(right))
        match = _OPERATOR.search(gap) if "#" not in gap else None
        if match is None:
            return None
        before = len(gap[: match.start()].encode())
        return start + before, start + before + len(match[0].encode())


_Change = tuple[str, int, int, str]  # kind, start, end, new text


def _changes(function: ast.FunctionDef | ast.AsyncFunctionDef, text: _Text) -> Iterator[_Change]:
    yield from _defaults(function.args, text)
    for node in _body_nodes(function):
        yield from _expression(node, text)
        yield from _statement(node, text)
        if isinstance(node, ast.stmt):
            yield from _dropped(node, text)


def _expression(node: ast.AST, text: _Text) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=[op, *_], comparators=[right, *_]) if type(op) in _COMPARE:
            if (place := text.operator(left, right)) is not None:
                yield "comparison", *place, _COMPARE[type(op)]
        case ast.BoolOp(op=op, values=[left, right, *_]):
            # With three operands one changed operator would bind differently: that is a bug of its own kind.
            if len(node.values) == 2 and (place := text.operator(left, right)) is not None:
                yield "boolean", *place, "or" if isinstance(op, ast.And) else "and"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC and not _is_text(left, right):
            if (place := text.operator(left, right)) is not None:
                yield "arithmetic", *place, _ARITHMETIC[type(op)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "removed not", text.start(node), text.end(node), text.of(operand)
        case ast.Constant(value=bool(value)):
            yield "flag", text.start(node), text.end(node), str(not value)
        case ast.Constant(value=int(value)) if value <= _MAX_CONSTANT:
            yield "off by one", text.start(node), text.end(node), str(value + 1)
        case ast.Call(args=[first, second, *_]) if not _starred(first, second) and text.of(first) != text.of(second):
            between = text.between(text.end(first), text.start(second))
            swapped = text.of(second) + between + text.of(first)
            yield "swapped arguments", text.start(first), text.end(second), swapped
        case ast.IfExp(body=body, orelse=orelse, test=test):
            swapped = f"{text.of(orelse)} if {text.of(test)} else {text.of(body)}"
            yield "swapped branches", text.start(node), text.end(node), swapped


def _statement(node: ast.AST, text: _Text) -> Iterator[_Change]:
    match node:
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp | ast.BoolOp):
            yield "negated condition", text.start(test), text.end(test), f"not ({text.of(test)})"
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _ARITHMETIC and not _is_text(value):
            if (place := text.operator(target, value)) is not None:
                yield "arithmetic", *place, _ARITHMETIC[type(op)] + "="
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "wrong return", text.start(value), text.end(value), "None"
        case ast.Break():
            yield "continue for break", text.start(node), text.end(node), "continue"


def _dropped(node: ast.stmt, text: _Text) -> Iterator[_Change]:
    """Statements that may be left out of a block of several, with the line they stand on."""
    for _, block in ast.iter_fields(node):
        if isinstance(block, list) and len(block) > 1 and isinstance(block[0], ast.stmt):
            yield from _drops(block, text)


def _drops(block: list[ast.stmt], text: _Text) -> Iterator[_Change]:
    for before, statement, after in zip([None, *block], block, [*block[1:], None], strict=False):
        is_branch = isinstance(statement, ast.If) and not statement.orelse
        is_effect = isinstance(statement, ast.AugAssign) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        )
        if not (is_branch or is_effect):
            continue
        kind = "dropped branch" if is_branch else "dropped statement"
        if after is not None:
            yield kind, text.start(statement), text.start(after), ""
        elif before is not None:
            yield kind, text.end(before), text.end(statement), ""


def _defaults(arguments: ast.arguments, text: _Text) -> Iterator[_Change]:
    for default in (*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)):
        match default:
            case ast.Constant(value=bool(value)):
                yield "wrong default", text.start(default), text.end(default), str(not value)
            case ast.Constant(value=int(value)) if value <= _MAX_CONSTANT:
                yield "wrong default", text.start(default), text.end(default), str(value + 1)


def _functions(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods by dotted name; those inside functions belong to the outer one."""
    pending: list[tuple[str, ast.stmt]] = [("", statement) for statement in reversed(module.body)]
    while pending:
        prefix, statement = pending.pop()
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name, statement
            case ast.ClassDef(name=name, body=body):
                pending += [(f"{prefix}{name}.", inner) for inner in reversed(body)]
            case ast.If(body=body, orelse=orelse) | ast.Try(body=body, orelse=orelse):
                pending += [(prefix, inner) for inner in reversed([*body, *orelse])]


def _body_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The function and all below its body, without docstrings, annotations and pieces of f-strings."""
    yield function
    pending: list[ast.AST] = list(reversed(function.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.JoinedStr):
            continue  # positions inside are not those of the file before Python 3.12
        yield node
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in ("annotation", "returns"))
        children = [child for _, value in fields for child in (value if isinstance(value, list) else [value])]
        pending += [child for child in reversed(children) if isinstance(child, ast.AST)]


def _is_text(*nodes: ast.expr) -> bool:
    """Whether one is a string literal: ``+`` and ``%`` mean something else there."""
    return any(isinstance(node, ast.JoinedStr | ast.Constant) and not _is_number(node) for node in nodes)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _starred(*nodes: ast.expr) -> bool:
    return any(isinstance(node, ast.Starred) for node in nodes)


def _parses(source: str) -> bool:
    try:
        ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
    except (SyntaxError, ValueError):
        return False
    return True

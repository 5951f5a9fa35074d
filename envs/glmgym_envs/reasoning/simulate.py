"""What Python prints for the few forms of code that scripted policies of the suite write, without a box.

A test plays the same demonstrations in a real box and compares every observation; other code is refused, never run.
"""

from __future__ import annotations

import ast

_KNOWN = {function.__name__: function for function in (max, min, sum, sorted)}
_FORMS = (
    ast.Expression, ast.Constant, ast.List, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Subscript, ast.Slice,
    ast.Call, ast.Name, ast.Attribute, ast.expr_context,
)  # fmt: skip


def simulate(code: str) -> str:
    """What ``print(EXPRESSION)`` shows.

    Raises:
        ValueError: the code is anything else, or the expression is not one of the imitated forms.
    """
    if not (code.startswith("print(") and code.endswith(")")):
        raise ValueError(f"not simulated: {code!r}")
    expression = ast.parse(code.removeprefix("print(").removesuffix(")"), mode="eval")
    if not all(_is_imitated(node) for node in ast.walk(expression)):
        raise ValueError(f"not simulated: {code!r}")
    return str(eval(compile(expression, "<demonstration>", "eval"), {"__builtins__": _KNOWN}))


def _is_imitated(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _KNOWN
    if isinstance(node, ast.Attribute):
        return node.attr == "count"
    return isinstance(node, _FORMS)

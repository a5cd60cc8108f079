"""Amounts, which are numbers or texts over sizes: arithmetic on them, and Python functions that compute many at once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from math import prod

_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub,
)  # fmt: skip


def plus(*amounts: int | str) -> int | str:
    number = sum(a for a in amounts if isinstance(a, int))
    texts = [f"({a})" for a in amounts if isinstance(a, str)]
    return " + ".join([*texts, *([str(number)] if number else [])]) if texts else number


def times(*amounts: int | str) -> int | str:
    number = prod(a for a in amounts if isinstance(a, int))
    texts = [f"({a})" for a in amounts if isinstance(a, str)]
    return " * ".join([*texts, *([str(number)] if number != 1 else [])]) if texts and number else number


def largest(*amounts: int | str) -> int | str:
    number = max((a for a in amounts if isinstance(a, int)), default=0)
    texts = [a for a in amounts if isinstance(a, str)]
    return f"max({', '.join(texts)}, {number})" if texts else number


def divided_up(amount: int | str, by: int) -> int | str:
    """The quotient, rounded up."""
    return f"-(-({amount}) // {by})" if isinstance(amount, str) else -(-amount // by)


def rounded_up(amount: int | str, to: int) -> int | str:
    """The next multiple."""
    return times(divided_up(amount, to), to)


def function(
    amounts: Sequence[int | str], sizes: Sequence[str], before: Mapping[str, int | str] | None = None
) -> Callable[..., tuple[int, ...]]:  # fmt: skip
    """A function of the sizes' numbers, which computes all amounts by straight-line code. `before`: amounts that have names in
    those after them. Raises ValueError for what is no text of an amount."""
    for amount in (*amounts, *(before or {}).values()):
        if not _computes(ast.parse(str(amount), mode="eval").body):
            raise ValueError(f"`{amount}` is no amount over sizes")
    lines = [f"    {name} = {amount}" for name, amount in (before or {}).items()]
    text = [f"def amounts({', '.join(sizes)}):", *lines, f"    return ({''.join(f'{a}, ' for a in amounts)})"]
    made: dict[str, Callable[..., tuple[int, ...]]] = {}
    exec("\n".join(text), {"__builtins__": {"min": min, "max": max}}, made)
    return made["amounts"]


def _computes(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
        return named and not node.keywords and all(map(_computes, node.args))
    return isinstance(node, _ALLOWED) and all(map(_computes, ast.iter_child_nodes(node)))

"""The places at which elements are read: how subscripts depend on an index."""

from __future__ import annotations

from math import gcd

from tilec.analysis.affine_conditions import expanded, linear
from tilec.analysis.expression import Expr


def subscripts(x: Expr) -> tuple[Expr, ...]:
    """The subscripts of an element."""
    return x.args or tuple(Expr("index", own_dims=(d,), type="index") for d in x.own_dims)


def step(x: Expr, d: int) -> int | None:
    """By how much an integer expression grows from one number of dimension `d` to the next; None where that varies."""
    if d not in x.dims:
        return 0
    steps = [step(a, d) for a in x.args]
    match x.op:
        case "index":
            return 1
        case "arith.index_cast" | "arith.extsi":
            return steps[0]
        case "arith.addi" | "arith.subi":
            first, second = steps
            if first is None or second is None:
                return None
            return first + (second if x.op == "arith.addi" else -second)
        case "arith.muli":
            for number, other in zip((a.number for a in x.args), reversed(steps)):
                if number is not None:
                    return None if other is None else other * int(number)
            return None
        case "affine.apply":
            return step(expanded(x), d)
    return None


_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci")
_REMAINDERS = ("arith.remsi", "arith.remui")
_QUOTIENTS = ("arith.floordivsi", "arith.divsi", "arith.divui")  # of indices, which are not negative


def granule(d: int, *factors: Expr) -> int:
    """A number such that the factors are the same for as many elements along dimension `d`, from each multiple of it on; 0 where
    they depend on `d` otherwise than through quotients."""
    found = [_quotient(p, d) for x in factors for p in subscripts(x) if d in p.dims]
    return gcd(*found) if found and all(found) else 0


def _quotient(x: Expr, d: int) -> int:
    """What divides both n and `more`, where an expression depends on `d` through (d + more) // n."""
    while x.op in _CASTS:
        x = x.args[0]
    x = expanded(x) if x.op == "affine.apply" else x
    if x.op in _QUOTIENTS and x.args[1].number:
        leaves, number = linear(x.args[0]) or ({}, 0)
        own = next((leaf for leaf in leaves if leaf.op == "index" and leaf.own_dims == (d,)), None)
        more = [f for leaf, f in leaves.items() if leaf is not own]
        alone = own is not None and leaves[own] == 1 and not any(d in leaf.dims for leaf in leaves if leaf is not own)
        return gcd(int(x.args[1].number), number, *more) if alone else 0
    if x.op not in ("arith.addi", "arith.muli"):
        return 0
    found = {_quotient(a, d) for a in x.args if d in a.dims}
    return found.pop() if len(found) == 1 else 0


def page(subscript: Expr, d: int) -> int:
    """n where a subscript is the remainder of an index by n; 0 where it is not."""
    x = subscript
    while x.op in _CASTS:
        x = x.args[0]
    x = expanded(x) if x.op == "affine.apply" else x
    if x.op not in _REMAINDERS or not x.args[1].number:
        return 0
    return int(x.args[1].number) if linear(x.args[0]) == ({Expr("index", own_dims=(d,), type="index"): 1}, 0) else 0


def period(x: Expr, d: int) -> int:
    """The number by whose quotient alone an expression depends on dimension `d`: 1 where it is another one for every element, 0
    where it does not depend on it."""
    if d not in x.dims:
        return 0
    return _quotient(x, d) or (gcd(*(period(a, d) for a in x.args)) if x.args else 1)


def base_multiple(subscript: Expr) -> int:
    """A number that divides a subscript where its last index is 0: 0 for a bare index, which is then 0 itself."""
    if subscript.op == "index":
        return 0
    found = linear(subscript)
    if found is None:
        return 1
    leaves, number = found
    last = min(leaves, key=lambda leaf: abs(leaves[leaf]), default=None)
    return gcd(number, *(f for leaf, f in leaves.items() if leaf is not last))

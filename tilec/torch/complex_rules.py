"""Operations on complex tensors as operations on their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import fx

from tilec.torch.aliases import arguments, function, node_at
from tilec.torch.aten.table import op_name, words
from tilec.torch.builder import Builder

if TYPE_CHECKING:
    from torch.fx.node import Argument

aten = torch.ops.aten
Part: TypeAlias = fx.Node | float | None  # None for 0
Pair: TypeAlias = tuple[Part, Part]
KINDS = {torch.complex64: torch.float32, torch.complex128: torch.float64}

COMPONENTWISE = words(
    "view _unsafe_view reshape expand permute transpose t unsqueeze squeeze slice select alias detach clone flip roll repeat index "
    "index_select gather sum mean diagonal cumsum tril triu select_backward slice_backward unfold "
    "slice_scatter select_scatter index_put _unsafe_index_put index_add scatter_add diagonal_scatter"
)
"""What is done to a complex tensor as it is to its parts."""
JOINS = words("cat stack")


def kind_of(node: object) -> torch.dtype | None:
    """The type of the parts of a complex tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return KINDS.get(value.dtype) if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def side_by_side(build: Builder, pair: Pair, like: torch.Tensor) -> fx.Node:
    """The parts along a last dimension, in the order of memory of a complex tensor."""
    order = sorted(range(like.dim()), key=lambda d: -like.stride()[d])
    if order == list(range(like.dim())):
        return build(aten.stack.default, list(pair), -1)
    made = build(aten.stack.default, [build(aten.permute.default, p, order) for p in pair], -1)
    return build(aten.permute.default, made, [*(order.index(d) for d in range(like.dim())), like.dim()])


class Call:
    """An operation on complex tensors: its arguments as pairs, and arithmetic on parts of the type `kind`."""

    def __init__(self, of: Callable[[fx.Node, Builder], Pair], node: fx.Node, kind: torch.dtype):
        self.of, self.node, self.kind, self.build = of, node, kind, Builder(node.graph, node)
        self.value = node.meta["val"]
        self.named = arguments(node)

    def pair(self, name: str) -> Pair:
        return self.parts(self.named[name])

    def parts(self, given: Argument) -> Pair:
        if isinstance(given, complex):
            return given.real, given.imag or None
        if not isinstance(given, fx.Node):
            assert given is None or isinstance(given, int | float), given
            return given, None
        if not isinstance(given.meta.get("val"), torch.Tensor):
            return given, None
        if kind_of(given) is None:
            return self.cast(given), None
        re, im = self.of(given, self.build)
        return self.cast(re), self.cast(im)

    def cast(self, part: Part) -> Part:
        if isinstance(part, fx.Node) and part.meta["val"].dtype != self.kind:
            return self.build(aten._to_copy.default, part, dtype=self.kind)
        return part

    def whole(self, pair: Pair) -> Pair:
        """Parts of the result's shape."""
        return self.full(pair[0]), self.full(pair[1])

    def full(self, part: Part) -> fx.Node:
        shape = list(self.value.shape)
        if not isinstance(part, fx.Node):
            return self.build(aten.full.default, shape, float(part or 0), dtype=self.kind, device=self.value.device)
        if part.meta["val"].shape != self.value.shape:
            part = self.build(aten.expand.default, part, shape)
        return part

    # arithmetic, in which None is 0

    def add(self, a: Part, b: Part, sign: int = 1) -> Part:
        if b is None:
            return a
        if a is None:
            return b if sign == 1 else self.neg(b)
        if not isinstance(a, fx.Node) and not isinstance(b, fx.Node):
            return a + sign * b
        if not isinstance(a, fx.Node):
            return self.build(aten.add.Tensor, b if sign == 1 else self.neg(b), a)
        return self.build(aten.add.Tensor if sign == 1 else aten.sub.Tensor, a, b)

    def sub(self, a: Part, b: Part) -> Part:
        return self.add(a, b, -1)

    def mul(self, a: Part, b: Part) -> Part:
        if a is None or b is None:
            return None
        if not isinstance(a, fx.Node) and not isinstance(b, fx.Node):
            return a * b
        return self.build(aten.mul.Tensor, *((a, b) if isinstance(a, fx.Node) else (b, a)))

    def div(self, a: Part, b: Part) -> Part:
        if a is None:
            return None
        if isinstance(a, fx.Node):
            return self.build(aten.div.Tensor, a, b)
        if isinstance(b, fx.Node):
            return self.mul(self.build(aten.reciprocal.default, b), a)
        assert b is not None
        return a / b

    def neg(self, a: Part) -> Part:
        return None if a is None else self.build(aten.neg.default, a) if isinstance(a, fx.Node) else -a

    def times(self, a: Pair, b: Pair) -> Pair:
        return self.sub(self.mul(a[0], b[0]), self.mul(a[1], b[1])), self.add(self.mul(a[0], b[1]), self.mul(a[1], b[0]))

    def where(self, condition: fx.Node, a: Part, b: Part) -> fx.Node:
        return self.build(aten.where.self, condition, self.tensor(a), self.tensor(b))

    def tensor(self, part: Part) -> fx.Node:
        if isinstance(part, fx.Node):
            return part
        return self.build(aten.full.default, [], float(part or 0), dtype=self.kind, device=self.value.device)

    def by_type(self) -> dict[str, Argument]:
        """The keywords, for the parts."""
        return {k: KINDS.get(v, v) if isinstance(v, torch.dtype) else v for k, v in self.node.kwargs.items()}


# ---- rules -----------------------------------------------------------------------------------------------------------


def _componentwise(call: Call) -> Pair:
    """Each complex argument by its part; the others are positions and sizes."""
    target = aten.reshape.default if op_name(call.node) in ("view", "_unsafe_view") else function(call.node)
    pairs = {n: call.parts(n) for n in call.node.all_input_nodes if kind_of(n)}
    part = lambda k: fx.map_arg(call.node.args, lambda n: call.tensor(pairs[n][k]) if n in pairs else n)  # noqa: E731
    re, im = (call.build(target, *part(k), **call.by_type()) for k in (0, 1))
    return re, im


def _joined(call: Call) -> Pair:
    _, *rest = call.node.args
    many = [[_full_like(call, t, p) for p in call.parts(t)] for t in call.named["tensors"]]
    re, im = (call.build(function(call.node), [pair[k] for pair in many], *rest) for k in (0, 1))
    return re, im


def _full_like(call: Call, tensor: fx.Node, part: Part) -> fx.Node:
    if isinstance(part, fx.Node):
        return part
    shape = list(tensor.meta["val"].shape)
    return call.build(aten.full.default, shape, 0.0, dtype=call.kind, device=call.value.device)


def _view_as_complex(call: Call) -> Pair:
    re, im = (call.build(aten.select.int, call.node.args[0], -1, k) for k in (0, 1))
    return re, im


def _view_as_real(call: Call) -> fx.Node:
    re, im = map(call.tensor, call.pair("self"))
    return side_by_side(call.build, (re, im), node_at(call.node).meta["val"])


def _complex(call: Call) -> Pair:
    return call.whole((call.pair("real")[0], call.pair("imag")[0]))


def _polar(call: Call) -> Pair:
    size, angle = call.pair("abs")[0], call.pair("angle")[0]
    re, im = (call.mul(size, call.build(f, angle)) for f in (aten.cos.default, aten.sin.default))
    return call.whole((re, im))


def _conj(call: Call) -> Pair:
    re, im = call.pair("self")
    return re, call.neg(im)


def _neg(call: Call) -> Pair:
    re, im = call.pair("self")
    return call.neg(re), call.neg(im)


def _add(call: Call) -> Pair:
    a, b = call.pair("self"), call.times(call.pair("other"), call.parts(call.named.get("alpha", 1)))
    if op_name(call.node) == "rsub":
        a, b = call.pair("other"), call.times(call.pair("self"), call.parts(call.named.get("alpha", 1)))
    sign = 1 if op_name(call.node) == "add" else -1
    return call.whole((call.add(a[0], b[0], sign), call.add(a[1], b[1], sign)))


def _mul(call: Call) -> Pair:
    return call.whole(call.times(call.pair("self"), call.pair("other")))


def _power(call: Call) -> Pair | None:
    exponent = call.named.get("exponent", 2)
    if isinstance(exponent, fx.Node) or exponent not in (1, 2, 3):
        return None
    made = z = call.pair("self")
    for _ in range(int(exponent) - 1):
        made = call.times(made, z)
    return made


def _div(call: Call) -> Pair | None:
    if call.named.get("rounding_mode") is not None:
        return None
    return _quotient(call, call.pair("self"), call.pair("other"))


def _reciprocal(call: Call) -> Pair:
    return _quotient(call, (1.0, None), call.pair("self"))


def _quotient(call: Call, a: Pair, b: Pair) -> Pair:
    """By the larger part of the divisor, so that no square overflows (Smith, "Algorithm 116: complex division", 1962)."""
    if b[1] is None:
        return call.whole((call.div(a[0], b[0]), call.div(a[1], b[0])))
    c, d = call.tensor(b[0]), call.tensor(b[1])
    size = [call.build(aten.abs.default, p) for p in (c, d)]
    first = call.build(aten.ge.Tensor, *size)
    large, small = call.where(first, c, d), call.where(first, d, c)
    none = call.build(aten.eq.Scalar, large, 0.0)
    ratio = call.where(none, 0.0, call.div(small, large))
    scale = call.build(aten.reciprocal.default, call.add(large, call.mul(small, ratio)))
    scale = call.where(none, inf, scale)
    x, y = call.tensor(a[0]), call.tensor(a[1])
    re = call.add(call.where(first, x, y), call.mul(call.where(first, y, x), ratio))
    im = call.where(first, call.sub(y, call.mul(x, ratio)), call.sub(call.mul(y, ratio), x))
    return call.whole((call.mul(re, scale), call.mul(im, scale)))


def _abs(call: Call) -> fx.Node:
    return call.build(aten.hypot.default, *map(call.tensor, call.pair("self")))


def _angle(call: Call) -> fx.Node:
    re, im = map(call.tensor, call.pair("self"))
    return call.build(aten.atan2.default, im, re)


def _sgn(call: Call) -> Pair:
    re, im = map(call.tensor, call.pair("self"))
    size = call.build(aten.hypot.default, re, im)
    none = call.build(aten.eq.Scalar, size, 0.0)
    return call.where(none, 0.0, call.div(re, size)), call.where(none, 0.0, call.div(im, size))


def _exp(call: Call) -> Pair:
    re, im = map(call.tensor, call.pair("self"))
    size = call.build(aten.exp.default, re)
    return call.mul(size, call.build(aten.cos.default, im)), call.mul(size, call.build(aten.sin.default, im))


def _where(call: Call) -> Pair | None:
    if call.named.get("self") is None or call.named.get("other") is None:
        return None
    (a, b), condition = (call.pair(n) for n in ("self", "other")), call.named["condition"]
    return call.whole((call.where(condition, a[0], b[0]), call.where(condition, a[1], b[1])))


def _equal(call: Call) -> fx.Node:
    a, b = call.pair("self"), call.pair("other")
    same = [call.build(aten.eq.Tensor, call.tensor(x), call.tensor(y)) for x, y in zip(a, b)]
    made = call.build(aten.logical_and.default, *same)
    return made if op_name(call.node) == "eq" else call.build(aten.logical_not.default, made)


def _pad(call: Call) -> Pair:
    padding, outside = call.named["pad"], call.parts(call.named.get("value", 0))
    re, im = (call.build(aten.constant_pad_nd.default, call.tensor(p), padding, v or 0) for p, v in zip(call.pair("self"), outside))
    return re, im


def _to_copy(call: Call) -> Pair | None:
    if kind_of(call.node.args[0]) is None and not isinstance(call.node.args[0], fx.Node):
        return None
    return call.whole(call.pair("self"))


def _filled(call: Call) -> Pair | None:
    value = {"zeros_like": 0, "ones_like": 1}.get(op_name(call.node), call.named.get("fill_value"))
    return None if isinstance(value, fx.Node) or value is None else call.whole(call.parts(value))


def _scalar(call: Call) -> Pair:
    return call.whole(call.parts(call.node.args[0]))


RULES: dict[str, Callable[[Call], Pair | fx.Node | None]] = {
    "view_as_complex": _view_as_complex, "view_as_real": _view_as_real, "complex": _complex, "polar": _polar,
    **dict.fromkeys(words("_conj conj_physical _conj_physical"), _conj),
    **dict.fromkeys(words("add sub rsub"), _add), **dict.fromkeys(words("square pow"), _power), "neg": _neg, "mul": _mul,
    "div": _div, "reciprocal": _reciprocal, "abs": _abs, "angle": _angle, "sgn": _sgn, "exp": _exp, "where": _where,
    **dict.fromkeys(words("eq ne"), _equal), "_to_copy": _to_copy,
    **dict.fromkeys(words("full full_like zeros_like ones_like"), _filled), "zeros": lambda call: call.whole((0, None)),
    "scalar_tensor": _scalar, "constant_pad_nd": _pad,
}  # fmt: skip
RULES |= dict.fromkeys(COMPONENTWISE, _componentwise) | dict.fromkeys(JOINS, _joined)
REAL = words("view_as_real abs angle eq ne")
"""Operations on complex tensors whose results are real."""

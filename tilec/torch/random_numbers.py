"""Random operations of a graph as functions of seeds: the one draw from PyTorch's generator is that of the seeds.

    seeds = randint(-2**63, 2**63 - 1, [n])                 one draw of each call for each device, by PyTorch
    kept = tilec::rand(seeds, k, shape) >= p                what was native_dropout(x, p, True): a partition takes all of it
    y = x * kept * (1 / (1 - p))

Each operation has seeds of its own. What follows from seeds alone is marked to be computed again by backward: forward saves seeds.
An operation with a generator of its own stays, and so does one whose numbers do not follow from few uniform ones.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from contextlib import suppress
from math import factorial, log1p, pi
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from tilec.torch import philox
from tilec.torch.aliases import arguments
from tilec.torch.builder import Builder
from tilec.torch.concrete import SYMBOLS, UNDECIDED, hint, hints

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.fx.node import Target

aten = torch.ops.aten
SEEDS = "tilec_seeds"
"""Of the nodes that draw seeds: what PyTorch runs, but no operation of the model."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
STEP = 2.0**-24  # of uniform numbers
DIGITS = {torch.float16: 11, torch.bfloat16: 8}  # of the uniform numbers of narrow types, as PyTorch has them
MOST_INTEGERS = 1 << 32  # of a remainder of 48 bits no number then comes up more often than another by 2^-16
SINE = [(-1) ** k * (2 * pi) ** (2 * k + 1) / factorial(2 * k + 1) for k in range(7)]
"""Of 2 pi x, by odd powers of x; of a quarter of a circle, exact to 1e-9."""
Result: TypeAlias = fx.Node | tuple[fx.Node, ...] | None  # None where PyTorch is to run the operation


def eager(chosen: bool) -> bool:
    """Whether random operations stay PyTorch's: by the option, or by Inductor's."""
    config = sys.modules.get("torch._inductor.config")
    return chosen or bool(getattr(config, "fallback_random", False))


def replace(graph: fx.Graph, training: bool = False) -> int:
    """Changes the graph; returns how many operations are functions of seeds now. `training`: it is a joint graph of forward and
    backward."""
    seeds = _Seeds(graph)
    count = 0
    for node in list(graph.nodes):
        rule = RULES.get(node.target) if node.op == "call_function" else None
        if rule is None or not _is_plain(node):
            continue
        draw = _Draw(node, seeds)
        made = None
        with suppress(Unsized):
            made = rule(draw) if draw.arguments.get("generator") is None else None
        if made is None or not _put(node, made):
            for n in reversed(draw.build.made):
                graph.erase_node(n)
            seeds.give_back(draw)
            continue
        count += 1
        if training:
            _mark(node, draw.build.made)
        graph.erase_node(node)
    seeds.complete()
    if count:
        graph.eliminate_dead_code()
    return count


def _is_plain(node: fx.Node) -> bool:
    """Whether the operation makes tensors of ordinary memory, of sizes that no data decide."""
    values = pytree.tree_leaves(node.meta.get("val"))
    if node.kwargs.get("pin_memory") or not all(type(v).__name__ == "FakeTensor" for v in values):
        return False
    usual = all(v.layout is torch.strided and v.device.type in ("cpu", "cuda") for v in values)
    return usual and not any(hint(n) is UNDECIDED or hint(n) == 0 for v in values for n in v.shape)


class _Seeds:
    """The draws of seeds that a graph begins with, by device."""

    def __init__(self, graph: fx.Graph):
        self.graph, self.nodes, self.counts = graph, dict[torch.device, fx.Node](), dict[torch.device, int]()

    def next(self, build: Builder, device: torch.device) -> tuple[fx.Node, int]:
        """The tensor of seeds, and the number of one that nothing else has."""
        if device not in self.nodes:
            first = next(n for n in self.graph.nodes if n.op not in ("placeholder", "get_attr"))
            with self.graph.inserting_before(first):
                made = self.graph.call_function(aten.randint.low, (-(2**63), 2**63 - 1, [1]), {"device": device})
            with build.mode:
                value = torch.empty([1], dtype=torch.int64, device=device)
            made.meta = {"val": value, SEEDS: True, "recompute": CheckpointPolicy.MUST_SAVE}
            self.nodes[device], self.counts[device] = made, 0
        self.counts[device] += 1
        return self.nodes[device], self.counts[device] - 1

    def give_back(self, draw: _Draw) -> None:
        """Those of the latest draw, which does not take place."""
        for device in draw.taken:
            self.counts[device] -= 1

    def complete(self) -> None:
        for device, node in self.nodes.items():
            if not node.users:
                self.graph.erase_node(node)
                continue
            node.args = (*node.args[:2], [self.counts[device]])
            with node.meta["val"].fake_mode:
                node.meta["val"] = torch.empty([self.counts[device]], dtype=torch.int64, device=device)


class Unsized(Exception):
    """Of a result, a size that nothing tells which the operation reads."""


class _Draw:
    """One operation: its arguments by name, and the numbers that it is to be made of."""

    def __init__(self, node: fx.Node, seeds: _Seeds):
        self.build, self.seeds, self.taken = Builder(seeds.graph, node), seeds, list[torch.device]()
        self.like = pytree.tree_leaves(node.meta["val"])[0]
        self.arguments = arguments(node)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def number(self, name: str) -> float:
        """An argument that is a number, or NaN for one that is known when the graph runs."""
        value = self.arguments[name]
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")

    def uniform(self) -> fx.Node:
        """From [0, 1) in steps of 2^-24, where the result has its elements."""
        value, device = self.like, self.like.device
        seeds, number = self.seeds.next(self.build, device)
        self.taken.append(device)
        shape, strides = hints(value.shape) or [], hints(value.stride()) or []
        order = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d]))
        made = self.build(philox.operator(), seeds, number, [self._size(d) for d in order])
        if order != sorted(order):
            made = self.build(aten.permute.default, made, [order.index(d) for d in range(len(order))])
        return made

    def _size(self, d: int) -> int | fx.Node:
        """A size of the result, by one of what the operation reads if it is a symbol."""
        size = self.like.shape[d]
        if not isinstance(size, SYMBOLS):
            return size
        given = self.arguments.get("size")
        if given is not None:
            return given[d]
        for read in self.build.before.all_input_nodes:  # which may have one element there, for all of the result's
            value = read.meta["val"]
            own = d - self.like.dim() + value.dim() if isinstance(value, torch.Tensor) else -1
            if own >= 0 and isinstance(n := value.shape[own], SYMBOLS) and n.node.expr == size.node.expr:
                return self.build(aten.sym_size.int, read, own)
        raise Unsized

    def fine(self, dtype: torch.dtype) -> fx.Node:
        """From [0, 1), in as many digits as are to be computed with: of f64, 48."""
        made = self.uniform()
        if dtype is not torch.float64:
            return made
        high, low = (self.cast(n, dtype) for n in (made, self.uniform()))
        return self.build(aten.add.Tensor, high, self.build(aten.mul.Tensor, low, STEP))

    def fraction(self, dtype: torch.dtype) -> fx.Node:
        """From [0, 1) in a type: rounded down, since 1 is not in it."""
        made = self.fine(dtype)
        if dtype in DIGITS:
            steps = 2.0 ** DIGITS[dtype]
            whole = self.build(aten.floor.default, self.build(aten.mul.Tensor, made, steps))
            made = self.build(aten.mul.Tensor, whole, 1 / steps)
        return self.cast(made, dtype)

    def normal(self, dtype: torch.dtype) -> fx.Node:
        """Of mean 0 and deviation 1, by the method of Box and Muller; unrounded."""
        build, first, second = self.build, self.fine(dtype), self.fine(dtype)
        logarithm = build(aten.log.default, build(aten.rsub.Scalar, first, 1))
        length = build(aten.sqrt.default, build(aten.mul.Tensor, logarithm, -2.0))
        return build(aten.mul.Tensor, length, self._cosine(second))

    def _cosine(self, angle: fx.Node) -> fx.Node:
        """Of an angle in circles, from 0 to 1: of f32 by the series of a sine of at most a quarter. The function `cos` takes any
        argument, and is not computed in vectors beside a generator of numbers."""
        build = self.build
        if angle.meta["val"].dtype is torch.float64:
            return build(aten.cos.default, build(aten.mul.Tensor, angle, 2 * pi))
        x = build(aten.sub.Tensor, build(aten.abs.default, build(aten.sub.Tensor, angle, 0.5)), 0.25)
        square, lower = build(aten.mul.Tensor, x, x), SINE[-2::-1]
        made = build(aten.mul.Tensor, square, SINE[-1])
        for factor in lower[:-1]:
            made = build(aten.mul.Tensor, build(aten.add.Tensor, made, factor), square)
        return build(aten.mul.Tensor, build(aten.add.Tensor, made, lower[-1]), x)

    def cast(self, x: fx.Node, dtype: torch.dtype | None = None) -> fx.Node:
        dtype = dtype or self.like.dtype
        return x if x.meta["val"].dtype == dtype else self.build(aten._to_copy.default, x, dtype=dtype)


def _put(node: fx.Node, made: Result) -> bool:
    """Has what is made read in the place of a node's results. False, and nothing done, where it does not lie as they do."""
    results = [made] if isinstance(made, fx.Node) else list(made or ())
    for mine, theirs in zip(results, pytree.tree_leaves(node.meta["val"]), strict=True):
        value = mine.meta["val"]
        if value.dtype != theirs.dtype or [hint(n) for n in value.stride()] != [hint(n) for n in theirs.stride()]:
            return False
    if isinstance(made, fx.Node):
        node.replace_all_uses_with(made)
        return True
    for user in list(node.users):
        assert user.target is operator.getitem, user
        number = user.args[1]
        assert isinstance(number, int)
        user.replace_all_uses_with(results[number])
        user.graph.erase_node(user)
    return True


def _mark(node: fx.Node, made: list[fx.Node]) -> None:
    """What backward computes again: all that follows from seeds, but for results of the program; in a region of a checkpoint, also
    what its policy says of the operation."""
    of_seeds = set[fx.Node]()
    for n in made:
        if "recompute" in node.meta:
            n.meta["recompute"] = node.meta["recompute"]
        read = [m for m in n.all_input_nodes if isinstance(m.meta["val"], torch.Tensor)]
        if read and all(m in of_seeds or SEEDS in m.meta for m in read):
            of_seeds.add(n)
            if not any(u.op == "output" for u in n.users):
                n.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


# ---- operations ------------------------------------------------------------------------------------------------------

def _holds(dtype: torch.dtype, *numbers: float) -> bool:
    """Whether numbers are in the range of a type. Of others PyTorch's operation says what is wrong."""
    if dtype is torch.bool:
        return all(0 <= n <= 1 for n in numbers)
    of = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return all(of.min <= n <= of.max for n in numbers)


Rule = Callable[[_Draw], Result]
RULES: dict[Target, Rule] = {}


def _rule(*targets: OpOverload) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return add


@_rule(aten.native_dropout.default)
def _dropout(draw: _Draw) -> Result:
    """A NaN stays one, dropped or not, as in PyTorch."""
    p, build = draw.number("p"), draw.build
    if not 0 <= p <= 1 or draw["train"] is False or draw.like.dtype not in FLOATS:
        return None
    kept = build(aten.ge.Scalar, draw.uniform(), p)
    return build(aten.mul.Tensor, build(aten.mul.Tensor, draw["input"], kept), 0.0 if p == 1 else 1 / (1 - p)), kept


@_rule(aten.rand.default, aten.rand_like.default)
def _rand(draw: _Draw) -> Result:
    return draw.fraction(draw.like.dtype) if draw.like.dtype in FLOATS else None


@_rule(aten.randn.default, aten.randn_like.default)
def _randn(draw: _Draw) -> Result:
    return draw.cast(draw.normal(draw.like.dtype)) if draw.like.dtype in FLOATS else None


@_rule(aten.bernoulli.p, aten.bernoulli.Tensor)
def _bernoulli(draw: _Draw) -> Result:
    p = draw["p"]
    if isinstance(p, fx.Node):
        tensor = isinstance(p.meta["val"], torch.Tensor) and p.meta["val"].dtype in FLOATS
        return draw.cast(draw.build(aten.lt.Tensor, draw.uniform(), p)) if tensor else None
    return draw.cast(draw.build(aten.lt.Scalar, draw.uniform(), p)) if 0 <= draw.number("p") <= 1 else None


@_rule(aten.uniform.default)
def _uniform(draw: _Draw) -> Result:
    return _between(draw, draw.number("from"), draw.number("to"))


def _between(draw: _Draw, first: float, last: float) -> fx.Node | None:
    """From [first, last). What would be rounded to the last number is the first one."""
    build, dtype = draw.build, draw.like.dtype
    if not first <= last or dtype not in FLOATS or not _holds(dtype, first, last, last - first):
        return None
    scaled = build(aten.mul.Tensor, draw.fraction(dtype), last - first)
    made = build(aten.add.Tensor, scaled, first)
    return build(aten.where.ScalarSelf, build(aten.ge.Scalar, made, last), first, made)


@_rule(aten.normal_functional.default, aten.normal.float_float, aten.normal.Tensor_float, aten.normal.float_Tensor,
       aten.normal.Tensor_Tensor)  # fmt: skip
def _normal(draw: _Draw) -> Result:
    std, mean, build = draw["std"], draw["mean"], draw.build
    if draw.like.dtype not in FLOATS or (not isinstance(std, fx.Node) and not draw.number("std") >= 0):
        return None
    made = draw.normal(draw.like.dtype)
    return draw.cast(build(aten.add.Tensor, build(aten.mul.Tensor, made, std), mean))


@_rule(aten.log_normal.default)
def _log_normal(draw: _Draw) -> Result:
    if draw.like.dtype not in FLOATS or not draw.number("std") > 0:
        return None
    build, made = draw.build, draw.normal(draw.like.dtype)
    made = build(aten.add.Tensor, build(aten.mul.Tensor, made, draw["std"]), draw["mean"])
    return draw.cast(build(aten.exp.default, made))


@_rule(aten.exponential.default)
def _exponential(draw: _Draw) -> Result:
    """More than 0 in any case: categories are drawn by quotients by it."""
    dtype, build = draw.like.dtype, draw.build
    if dtype not in FLOATS or not draw.number("lambd") > 0:
        return None
    least = STEP**2 / 2 if dtype is torch.float64 else max(STEP / 2, torch.finfo(dtype).smallest_normal * 2**-10)
    negative = build(aten.neg.default, build(aten.clamp.default, draw.fine(dtype), least))
    return draw.cast(build(aten.mul.Tensor, build(aten.log1p.default, negative), -1 / draw["lambd"]))


@_rule(aten.cauchy.default)
def _cauchy(draw: _Draw) -> Result:
    dtype, build = draw.like.dtype, draw.build
    if dtype not in FLOATS or not draw.number("sigma") > 0:
        return None
    angle = build(aten.mul.Tensor, build(aten.sub.Tensor, draw.fine(dtype), 0.5), pi)
    made = build(aten.mul.Tensor, build(aten.tan.default, angle), draw["sigma"])
    return draw.cast(build(aten.add.Tensor, made, draw["median"]))


@_rule(aten.geometric.default)
def _geometric(draw: _Draw) -> Result:
    """How many trials the first success takes: at least one."""
    p, build = draw.number("p"), draw.build
    if not 0 < p < 1:
        return None
    made = build(aten.log.default, build(aten.rsub.Scalar, draw.fine(draw.like.dtype), 1))
    whole = build(aten.ceil.default, build(aten.mul.Tensor, made, 1 / log1p(-p)))
    return draw.cast(build(aten.clamp.default, whole, 1))


@_rule(aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype)
def _randint(draw: _Draw) -> Result:
    low, high = draw.arguments.get("low", 0), draw["high"]
    known = isinstance(low, int) and isinstance(high, int) and not draw.like.is_complex()
    if not known or not 0 < high - low <= MOST_INTEGERS or not _holds(draw.like.dtype, low, high - 1):
        return None
    build = draw.build
    first, second = (draw.cast(build(aten.mul.Tensor, draw.uniform(), 1 / STEP), torch.int64) for _ in range(2))
    whole = build(aten.add.Tensor, build(aten.mul.Tensor, first, int(1 / STEP)), second)
    return draw.cast(build(aten.add.Tensor, build(aten.remainder.Scalar, whole, high - low), low))


@_rule(aten.rrelu_with_noise_functional.default)
def _rrelu(draw: _Draw) -> Result:
    """Slopes below 0 are drawn; the noise is the slope of each element."""
    x, build = draw["self"], draw.build
    if draw["training"] is not True or (slope := _between(draw, draw.number("lower"), draw.number("upper"))) is None:
        return None
    below = build(aten.le.Scalar, x, 0)
    made = build(aten.where.self, below, build(aten.mul.Tensor, x, slope), x)
    return made, build(aten.where.ScalarOther, below, slope, 1)

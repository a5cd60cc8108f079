"""A partition with symbols as one program whose sizes vary, for all sizes in the ranges of PyTorch's symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch.fx.node import Argument

from tilec.core.varying import Varying
from tilec.process.interrupts import pass_on
from tilec.torch.aliases import returns
from tilec.torch.concrete import NUMBERS, SYMBOLS, Expression
from tilec.torch.extents import HIGH, Extent, Scope, scope
from tilec.torch.layout import Layout
from tilec.torch.types import Size, Value
from tilec.torch.unsupported import Unsupported
from tilec.torch.write import Written, write

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

MOST_PROGRAMS = 8
"""Programs of one partition, for sizes that give different answers to comparisons."""
_made: WeakKeyDictionary[fx.Graph, Programs] = WeakKeyDictionary()


@dataclass(frozen=True)
class Varied:
    """`origins`: for each size, the number of the value that has it, and of which dimension, or None where it is the value itself.
    `guards`: what PyTorch's own rules for shapes assume of the sizes, as functions of them."""

    graph: fx.Graph
    written: Written
    scope: Scope
    origins: Mapping[str, tuple[int, int | None]]
    env: ShapeEnv
    symbols: Mapping[str, Expression]

    def at(self, values: Sequence[Value]) -> Written | None:
        """The program for the sizes of these values; None where it is not one for them."""
        sizes = {name: _number(values[k], d) for name, (k, d) in self.origins.items()}
        if not self.scope.holds(sizes) or not self._allowed(sizes):
            return None
        number = lambda n: n.at(sizes, self.scope) if isinstance(n, Extent) else n  # noqa: E731
        shaped = lambda ns: tuple(map(number, ns))  # noqa: E731

        def laid(of: Layout | None) -> Layout | None:
            return of and Layout(shaped(of.shape), shaped(of.strides), of.order)

        arguments = tuple(
            replace(a, shape=shaped(a.shape), strides=shaped(a.strides), layout=laid(a.layout)) for a in self.written.arguments
        )
        for a in arguments:
            value = values[a.number]
            assert isinstance(value, torch.Tensor)
            if (tuple(value.shape), value.stride()) != (a.shape, a.strides):
                return None
        results = tuple(
            replace(r, shape=shaped(r.shape), strides=shaped(r.strides), layout=laid(r.layout), made=shaped(r.made))
            for r in self.written.results
        )
        return replace(self.written, arguments=arguments, results=results, varies=self.scope.varies, sizes=sizes)

    def _allowed(self, sizes: Mapping[str, int]) -> bool:
        given = {self.symbols[name]: n for name, n in sizes.items()}
        return all(g.expr.subs(given) == True for g in self.env.guards)  # noqa: E712 - sympy's own truth


def _number(value: Value, dim: int | None) -> int:
    if dim is None:
        assert isinstance(value, int)
        return value
    assert isinstance(value, torch.Tensor)
    return value.shape[dim]


@dataclass
class Programs:
    """The programs of a partition with symbols, each for the sizes that its `Scope` holds for. One more is written for sizes that
    none is for; `why` is the reason where that cannot be."""

    graph: fx.Graph
    made: list[Varied] = field(default_factory=list)
    why: str = ""

    def at(self, values: Sequence[Value]) -> tuple[Written, fx.Graph] | None:
        """The program for the sizes of these values, and the graph that it is of; None where there is none for them."""
        for of in self.made:
            if (written := of.at(values)) is not None:
                return written, of.graph
        if len(self.made) >= MOST_PROGRAMS:
            self.why = f"sizes beyond what {MOST_PROGRAMS} programs are for"
            return None
        try:
            made = _of(self.graph, values)
            written = made.at(values)
        except Exception as error:  # of any kind: the partition is written for sizes that are numbers
            pass_on(error)
            self.why = str(error) or type(error).__name__
            return None
        if written is None:
            self.why = "PyTorch's rules for shapes assume other sizes"
            return None
        self.made.append(made)
        return written, made.graph


def varied(graph: fx.Graph) -> Programs:
    """The programs of a partition with symbols."""
    if (found := _made.get(graph)) is None:
        found = _made[graph] = Programs(graph)
    return found


def _of(graph: fx.Graph, values: Sequence[Value]) -> Varied:
    """A program for sizes like those of these values: comparisons of sizes that are not proved have the answers that these give."""
    from torch.utils._sympy.value_ranges import ValueRanges

    given = [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]
    theirs, origins = _symbols(given)
    numbers = {symbol: _number(values[k], d) for symbol, (k, d) in origins.items()}
    own = _Symbols(numbers)
    varies, named = dict[str, Varying](), dict[str, tuple[int, int | None]]()
    for symbol, number in numbers.items():
        name, range = f"S{len(varies)}", theirs.var_to_range[symbol]
        varies[name] = v = _range(int(max(range.lower, 0)), int(min(range.upper, HIGH)), _multiple(theirs, symbol))
        if not v.has(number):
            raise Unsupported(f"a size of {number}")
        own.add(symbol, name)
        own.env.var_to_range[own.symbols[symbol]] = ValueRanges(v.low, v.high)
        named[name] = origins[symbol]
    made = own.copied(graph)
    symbols = dict(zip(varies, own.symbols.values()))
    traced = dict(zip(varies, numbers.values()))
    of = Scope(varies, traced, {symbols[name]: v.term(name) for name, v in varies.items()})
    with scope(of):
        written = write(made)
    if own.env.replacements:
        raise Unsupported("sizes that are equal")
    return Varied(made, written, of, named, own.env, symbols)


def _range(low: int, high: int, multiple: int) -> Varying:
    return Varying(-(-low // multiple) * multiple, high // multiple * multiple, multiple)


def _multiple(env: ShapeEnv, symbol: Expression) -> int:
    """What PyTorch knows all numbers of a symbol to be multiples of."""
    known = (e.args[1] for e in env.divisible if e.args[0] == symbol and e.args[1].is_Integer)
    return lcm(*(int(str(n)) for n in known))


def _symbols(given: Sequence[Value]) -> tuple[ShapeEnv, dict[Expression, tuple[int, int | None]]]:
    """What knows the ranges of a partition's symbols, and where each of them is a value, or an extent of one."""
    seen, free, env = dict[Expression, tuple[int, int | None]](), dict[Expression, None](), None
    for k, value in enumerate(given):
        is_tensor = isinstance(value, torch.Tensor)
        for d, n in enumerate((*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)):
            if isinstance(n, SYMBOLS) and not isinstance(n, torch.SymInt):
                raise Unsupported("a number that is no integer")
            if isinstance(n, torch.SymInt):
                env, expression = n.node.shape_env, n.node.expr
                free |= dict.fromkeys(sorted(expression.free_symbols, key=str))
                if expression.is_Symbol and (not isinstance(value, torch.Tensor) or d < value.dim()):
                    seen.setdefault(expression, (k, d if is_tensor else None))
    if env is None or free.keys() - seen.keys():
        raise Unsupported("a size that no dimension of an argument is")
    return env, {symbol: seen[symbol] for symbol in free}


class _Symbols:
    """Symbols for a program's sizes, apart from those that the graph was traced with, whose questions would be guards."""

    def __init__(self, numbers: Mapping[Expression, int]) -> None:
        """`numbers` of the graph's symbols."""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.env, self.symbols, self.numbers = ShapeEnv(), dict[Expression, Expression](), numbers
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)

    def add(self, symbol: Expression, name: str) -> None:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        made = self.env.create_symbol(self.numbers[symbol], ConstantSource(name), DimDynamic.DYNAMIC, None)
        if not made.is_Symbol:
            raise Unsupported(f"a size of {self.numbers[symbol]}")
        self.symbols[symbol] = made

    def copied(self, graph: fx.Graph) -> fx.Graph:
        """The graph with values of these symbols."""
        made, became = fx.Graph(), dict[fx.Node, Argument]()
        for node in graph.nodes:
            if node.op == "output":
                made.output(tuple(became[n] for n in returns(graph) if isinstance(n, fx.Node)))
                break
            value = self.value(node.meta.get("val"))
            if node.op != "placeholder" and isinstance(value, NUMBERS):
                became[node] = value
                continue
            became[node] = new = made.node_copy(node, became.__getitem__)
            new.meta = {**node.meta, "val": value}
        return made

    def value(self, value: Value) -> Value:
        """A value of the graph, with these symbols."""
        if isinstance(value, tuple | list):
            return tuple(map(self.value, value))
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        with self.mode:
            shape, strides = (tuple(map(self._size, sizes)) for sizes in (value.shape, value.stride()))
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

    def _size(self, size: Size) -> Size:
        if not isinstance(size, torch.SymInt):
            return size
        expression = size.node.expr
        if not expression.free_symbols <= self.numbers.keys():
            raise Unsupported("a size that depends on data")
        known = int(expression.subs(self.numbers))
        if expression.is_Integer:
            return known
        found = self.env.create_symintnode(expression.xreplace(self.symbols), hint=known)
        assert isinstance(found, torch.SymInt)
        return found

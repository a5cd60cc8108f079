"""A partition with symbols as one program whose sizes vary, for all sizes in the ranges of PyTorch's symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import fx

from tilec.core.varying import Varying
from tilec.torch.aliases import returns
from tilec.torch.concrete import SYMBOLS, Expression, concrete, hint
from tilec.torch.extents import HIGH, Extent, Scope, scope
from tilec.torch.layout import Layout
from tilec.torch.types import Size, Value
from tilec.torch.unsupported import Unsupported
from tilec.torch.write import Written, write

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_made: WeakKeyDictionary[fx.Graph, Varied | str] = WeakKeyDictionary()


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


def varied(graph: fx.Graph) -> Varied | str:
    """The program of a partition with symbols; or why it is compiled for each of its sizes."""
    if (found := _made.get(graph)) is None:
        try:
            found = _of(graph)
        except Exception as error:  # of any kind: the partition is written for sizes that are numbers
            found = str(error) or type(error).__name__
        _made[graph] = found
    return found


def _of(graph: fx.Graph) -> Varied:
    from torch.utils._sympy.value_ranges import ValueRanges

    given = [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]
    theirs, origins = _symbols(given)
    own = _Symbols()
    varies, traced, named = dict[str, Varying](), dict[str, int](), dict[str, tuple[int, int | None]]()
    for symbol, (k, d) in origins.items():
        name, found, range = f"S{len(varies)}", _hint_at(given[k], d), theirs.var_to_range[symbol]
        varies[name] = v = Varying(max(int(max(range.lower, 0)), 0), int(min(range.upper, HIGH)))
        if not v.has(found):
            raise Unsupported(f"a size of {found}")
        own.add(symbol, name, found)
        own.env.var_to_range[own.symbols[symbol]] = ValueRanges(v.low, v.high)
        traced[name], named[name] = found, (k, d)
    made, became = concrete(graph, [own.value(v) for v in given], own.mode, lambda name: None)
    results = [became[n] for n in returns(graph) if isinstance(n, fx.Node)]
    made.output(tuple(n for n in results if isinstance(n, fx.Node)))
    if len(made.output_node().all_input_nodes) < len({*results}):
        raise Unsupported("a result whose size depends on data")
    symbols = dict(zip(varies, own.symbols.values()))
    of = Scope(varies, traced, {symbols[name]: v.term(name) for name, v in varies.items()})
    with scope(of):
        written = write(made)
    if own.env.replacements:
        raise Unsupported("sizes that are equal")
    return Varied(made, written, of, named, own.env, symbols)


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


def _hint_at(value: Value, dim: int | None) -> int:
    found = hint(value.shape[dim] if isinstance(value, torch.Tensor) and dim is not None else value)
    if not isinstance(found, int):
        raise Unsupported("a size that depends on data")
    return found


class _Symbols:
    """Symbols for a program's sizes, apart from those that the graph was traced with, whose questions would be guards."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.env, self.symbols = ShapeEnv(), dict[Expression, Expression]()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)

    def add(self, symbol: Expression, name: str, number: int) -> None:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        self.symbols[symbol] = self.env.create_symbol(number, ConstantSource(name), DimDynamic.DYNAMIC, None)

    def value(self, value: Value) -> Value:
        """A value of a placeholder, with these symbols."""
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if not isinstance(value, torch.Tensor):
            return value
        with self.mode:
            shape, strides = (tuple(map(self._size, sizes)) for sizes in (value.shape, value.stride()))
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

    def _size(self, size: Size) -> Size:
        if not isinstance(size, torch.SymInt):
            return size
        made, known = size.node.expr.xreplace(self.symbols), hint(size)
        assert isinstance(known, int)
        if made.is_Integer:
            return known
        found = self.env.create_symintnode(made, hint=known)
        assert isinstance(found, torch.SymInt)
        return found

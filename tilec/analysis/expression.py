"""The scalar expressions that operations of a kernel compute, read through the tensors between them.

    m = generic max(s)                 total 0: max of s[i, j] over j
    e = generic exp(s - m)       ->    exp(s[i, j] - total 0)
    l = generic sum(e)                 total 1: sum of exp(s[i, j] - total 0) over j

Dimensions are kernel dimensions, so that equal expressions are equal objects, whichever operation they were read from.
Results that `tilec.analysis.online_reduction` derives from them hold for tensors and, after bufferization, for their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilec.core import mlir
from tilec.core.mlir import ir

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Expr:
    """A scalar. Leaves are "element" (`key` is the tensor), "index" (of a dimension), "constant" (`key` is
    its number), "outer" (`key` is a value from outside of the operations) and "total" (`key` is its number in
    `Reader.totals`), at `own_dims`; other `op`s are upstream's names. An element at computed subscripts has these as `args`.

    `template` is an operation to copy attributes from; it does not take part in equality, `key` has their text. An operation of
    another that no program has is made of that text.
    """

    op: str
    args: tuple[Expr, ...] = ()
    key: Any = None
    own_dims: Dims = ()
    type: str = "f32"
    template: ir.Operation | None = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Kept, as parts are shared: in the rounds of `rand` so often that their paths are thousands."""
        return hash((self.op, self.args, self.key, self.own_dims, self.type))

    @cached_property
    def dims(self) -> frozenset[int]:
        """The kernel dimensions that it depends on."""
        return frozenset(self.own_dims).union(*(a.dims for a in self.args))

    @cached_property
    def totals(self) -> frozenset[int]:
        """The reductions that it reads, by number."""
        own = [self.key] if self.op == "total" else []
        return frozenset(own).union(*(a.totals for a in self.args))

    def replace(self, swap: Callable[[Expr], Expr | None]) -> Expr:
        """A copy in which every part that `swap` gives a value for is that value; outer parts are asked first, each once."""
        known: dict[int, Expr] = {}  # by identity, as parts are shared

        def replaced(x: Expr) -> Expr:
            if (found := known.get(id(x))) is None:
                if (found := swap(x)) is None:
                    args = tuple(map(replaced, x.args))
                    same = all(a is b for a, b in zip(args, x.args))
                    found = x if same else Expr(x.op, args, x.key, x.own_dims, x.type, x.template)
                known[id(x)] = found
            return found

        return replaced(self)

    @property
    def leaves(self) -> Iterator[Expr]:
        """The parts that have no operands."""
        return (x for x in parts_of(self) if not x.args)

    @property
    def number(self) -> float | None:
        """The number that a constant is."""
        return self.key if self.op == "constant" else None


def parts_of(x: Expr) -> Iterator[Expr]:
    """An expression and all that it is made of, each part once."""
    seen, waiting = set[int](), [x]
    while waiting:
        if id(part := waiting.pop()) not in seen:
            seen.add(id(part))
            yield part
            waiting += reversed(part.args)


def constant(value: float, type_: str = "f32") -> Expr:
    return Expr("constant", key=value, type=type_)


def operation(x: Expr, arguments: list[ir.Value]) -> ir.Value:
    """What `x` computes of its arguments' values, at the insertion point; `x` is no leaf."""
    if x.template is None:
        attributes = {a.name: a.attr for a in ir.DictAttr(ir.Attribute.parse(f"{{{x.key or ''}}}"))}
        return ir.Operation.create(x.op, results=[mlir.type_of(x.type)], operands=arguments, attributes=attributes).results[0]
    copy = x.template.clone()
    for n, value in enumerate(arguments):
        copy.operands[n] = value
    return copy.results[0]


POSITION = "position"
_BEYOND = {2: "arith.maximumf", 4: "arith.minimumf"}  # cmpf x, best: ogt, olt


@dataclass(frozen=True)
class Total:
    """A reduction: `combine` ("arith.addf", ...) of `term` over the dimensions `reduced`; one for each `dims`.

    `POSITION` of the index `term`: the least one of an element that is the extreme of reduction `extreme`. One of a
    number below 0 is carried beside one of the `operation`, and no result.
    """

    number: int
    name: str
    combine: str
    term: Expr
    reduced: frozenset[int]
    dims: Dims
    operation: ir.Operation = field(compare=False, repr=False)
    extreme: int | None = None

    def same_as(self, other: Total) -> bool:
        """Whether it has the value of another one."""
        mine, theirs = ((t.combine, t.term, t.reduced, t.dims, t.extreme) for t in (self, other))
        return mine == theirs


Maker = Callable[[ir.Value], tuple[ir.Operation, int] | None]


class Unreadable(Exception):
    """The operations are no chain of expressions and reductions; the text says why."""


class Reader:
    """Reads results of operations as expressions. `dims` has the kernel dimension of each of an operation's dimensions;
    those without an entry are computed where they are read. `maker` says which operation made a value, and as which
    of its results; None for values from outside. `totals` come in an order in which each follows those it reads; equal
    ones are one. `computed`: elements may be read at subscripts that indices alone decide, and argmax and argmin are read.
    """

    def __init__(self, dims: Mapping[ir.Operation, Dims], maker: Maker, computed: bool = False):
        self.dims, self.maker, self.computed = dims, maker, computed
        self.totals: list[Total] = []
        self._known: dict[tuple[ir.Operation, int], Expr] = {}

    def element(self, value: ir.Value, dims: Dims) -> Expr:
        """What `value` holds at a place. Raises Unreadable."""
        made = self.maker(value)
        if made is None:
            return Expr("element", key=value, own_dims=dims, type=str(ir.ShapedType(value.type).element_type))
        operation, number = made
        if operation not in self.dims:
            out = mlir.maps_of(operation)[len(mlir.inputs_of(operation)) + number]
            found = dict(zip(mlir.map_dims(out), dims))
            return self._read(operation, number, tuple(found[d] for d in range(out.n_dims)))
        return self.result(operation, number, dims)

    def result(self, operation: ir.Operation, number: int, dims: Dims | None = None) -> Expr:
        """One result of an operation of the kernel, at its own dimensions."""
        if dims is not None and dims != self.result_dims(operation, number):
            raise Unreadable(f"{_name(operation)} is read at other subscripts than it is computed at")
        if (operation, number) not in self._known:
            self._known[operation, number] = self._read(operation, number, self.dims[operation])
        return self._known[operation, number]

    def result_dims(self, operation: ir.Operation, number: int) -> Dims:
        """The kernel dimensions of one result of an operation of the kernel, in the order of its tensor's."""
        out = mlir.maps_of(operation)[len(mlir.inputs_of(operation)) + number]
        return tuple(self.dims[operation][d] for d in mlir.map_dims(out))

    def value(self, operation: ir.Operation, value: ir.Value) -> Expr:
        """A value of the body of an operation of the kernel, at its own dimensions. Raises Unreadable."""
        return _Body(self, operation, self.dims[operation]).expression(value)

    def checks(self, operation: ir.Operation) -> Iterator[tuple[Expr, str]]:
        """Conditions of an operation's run-time checks, with the message of each."""
        body = _Body(self, operation, self.dims[operation])
        for op in [o.operation for o in body.block.operations if o.operation.name == "cf.assert"]:
            yield body.expression(op.operands[0]), ir.StringAttr(op.attributes["msg"]).value

    def _read(self, operation: ir.Operation, number: int, own: Dims) -> Expr:
        block, inputs = mlir.body_of(operation), mlir.inputs_of(operation)
        out = mlir.map_dims(mlir.maps_of(operation)[len(inputs) + number])
        reduction = {d for d, kind in enumerate(mlir.iterators_of(operation)) if kind == "reduction"} - set(out)
        if "tilec.scan" in operation.attributes:
            raise Unreadable(f"{_name(operation)} is a scan")
        body = _Body(self, operation, own)
        value = mlir.yielded(operation)[number]
        if not reduction:
            return body.expression(value)
        state = list(block.arguments)[len(inputs) + number]
        update = mlir.definition(value)
        if self.computed and update is not None and update.name == "arith.select":
            return self._extreme(operation, number, own, body)
        if update is None or len(update.operands) != 2 or state not in list(update.operands):
            raise Unreadable(f"{_name(operation)} is not a reduction by a single operation")
        a, b = update.operands
        term = body.expression(b if a == state else a)
        return self._total(operation, number, own, update.name, term)

    def _extreme(self, operation: ir.Operation, number: int, own: Dims, body: _Body) -> Expr:
        """The value or the position of an argmax or argmin: both are selected by one comparison of the value."""
        states = list(body.block.arguments)[len(mlir.inputs_of(operation)) :]
        updates = [mlir.definition(v) for v in mlir.yielded(operation)]
        condition = updates[number].operands[0]
        chosen = [n for n, u in enumerate(updates) if _chooses(u, condition, states[n])]
        values = [n for n in chosen if isinstance(states[n].type, ir.FloatType)]
        beyond = [
            _BEYOND.get(ir.IntegerAttr(o.attributes["predicate"]).value)
            for o in mlir.slice_of(body.block, condition)
            for n in values
            if o.name == "arith.cmpf" and list(o.operands) == [updates[n].operands[1], states[n]]
        ]
        kinds = [k for k in beyond if k is not None]
        if len(chosen) != 2 or len(values) != 1 or len(kinds) != 1 or number not in chosen:
            raise Unreadable(f"{_name(operation)} is not a reduction by a single operation")
        (n,) = values
        value = self._total(operation, n, own, kinds[0], body.expression(updates[n].operands[1]))
        if number == n:
            return value
        return self._total(operation, number, own, POSITION, body.expression(updates[number].operands[1]), value.key)

    def _total(
        self, operation: ir.Operation, number: int, own: Dims, combine: str, term: Expr, extreme: int | None = None
    ) -> Expr:
        """The reduction that one result of an operation is."""
        out = mlir.map_dims(mlir.maps_of(operation)[len(mlir.inputs_of(operation)) + number])
        reduction = {d for d, kind in enumerate(mlir.iterators_of(operation)) if kind == "reduction"} - set(out)
        dims, reduced = tuple(own[d] for d in out), frozenset(own[d] for d in reduction)
        names = (mlir.get_string(operation, "tilec.name") or "reduction").split(",")
        total = Total(
            len(self.totals), names[min(number, len(names) - 1)], combine, term, reduced, dims, operation, extreme
        )
        same = (t for t in self.totals if t.same_as(total)) if self.computed else iter(())
        if (known := next(same, None)) is None:
            self.totals.append(known := total)
        return Expr("total", key=known.number, own_dims=dims, type=term.type)


def _chooses(update: ir.Operation | None, condition: ir.Value, state: ir.Value) -> bool:
    """Whether an update is the condition's choice between something of the element and the state."""
    if update is None or update.name != "arith.select":
        return False
    return update.operands[0] == condition and update.operands[2] == state


class _Body:
    """The values of one operation's body as expressions."""

    def __init__(self, reader: Reader, operation: ir.Operation, own: Dims):
        self.reader, self.operation, self.own = reader, operation, own
        self.block = mlir.body_of(operation)
        self.operands = list(operation.operands)
        self.maps = mlir.maps_of(operation)
        self.known: dict[ir.Value, Expr] = {}

    def expression(self, value: ir.Value) -> Expr:
        if value not in self.known:
            self.known[value] = self._expression(value)
        return self.known[value]

    def _expression(self, value: ir.Value) -> Expr:
        made = mlir.definition(value)
        if isinstance(value.owner, ir.Block) and value.owner != self.block:
            return Expr("outer", key=value, type=str(value.type))
        if made is None:
            number = ir.BlockArgument(value).arg_number
            if number >= len(mlir.inputs_of(self.operation)):
                raise Unreadable(f"{_name(self.operation)} reads its own state")
            dims = tuple(self.own[d] for d in mlir.map_dims(self.maps[number]))
            return self.reader.element(self.operands[number], dims)
        type_ = str(value.type)
        match made.name:
            case "arith.constant":
                # before the next case: constants stand outside of bodies
                return Expr("constant", key=mlir.constant_value(value), type=type_, template=made)
            case _ if made.block != self.block:
                return Expr("outer", key=value, type=type_)
            case "linalg.index":
                return Expr("index", own_dims=(self.own[mlir.index_dim(made)],), type="index")
            case "tensor.extract" | "memref.load" if self.reader.computed:
                return self._extract(made)
            case "tensor.extract" | "scf.if" | "memref.load":
                raise Unreadable(f"{_name(self.operation)} reads at computed subscripts")
        if len(made.results) != 1 or len(made.regions):
            raise Unreadable(f"{_name(self.operation)} has a '{made.name}'")
        args = tuple(self.expression(v) for v in made.operands)
        return Expr(made.name, args, attributes_of(made), type=type_, template=made)

    def _extract(self, made: ir.Operation) -> Expr:
        """An element at computed subscripts of what comes from outside."""
        value, *subscripts = made.operands
        args = tuple(self.expression(v) for v in subscripts)
        if self.reader.maker(value) is not None or any(not _is_known(a) for a in args):
            raise Unreadable(f"{_name(self.operation)} reads what its kernel computes, or at subscripts that depend on that")
        return Expr("element", args, value, type=str(made.results[0].type))


def _is_known(x: Expr) -> bool:
    """Whether indices and what is known before the operations decide it."""
    return x.op != "total" and all(map(_is_known, x.args))


def attributes_of(op: ir.Operation) -> str:
    """Attributes by name, without fast-math flags, which say nothing about a value."""
    return " ".join(f"{key}={op.attributes[key]}" for key in sorted(op.attributes) if key != "fastmath")


def _name(op: ir.Operation) -> str:
    return mlir.get_string(op, "tilec.name") or "an operation"

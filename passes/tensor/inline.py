"""Inlining of elementwise operations: an operation marked `tilec.inline` is computed inside each of its readers.

    %e = generic(x) { exp }                 ->    %s = generic(x) { exp; add }
    %s = generic(%e) { add }

Each reader is rebuilt once, together with all operations that are inlined into it. It contains a producer once for each
subscript at which it is read. The time of the pass is proportional to its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from tilec.core import extents, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir, linalg
from tilec.kernels.attributes import carry_over
from tilec.passes.emit import Body
from tilec.passes.tensor.merge import clone_with_indices


def refuse_inline(producer: ir.Operation) -> str | None:
    """Why `producer` cannot be computed inside its readers, or None where it can."""
    if "reduction" in mlir.iterators_of(producer):
        return "it is a reduction, which is complete only after its last element"
    if len(producer.results) != 1:
        return "it has several results"
    for user in mlir.uses(producer.results[0]):
        if user.name == "func.return":
            return "it is returned"
        if not mlir.is_generic(user):
            return "a reader has computed subscripts, so it must be in memory"
    return None


def inline_all(function: ir.Operation) -> None:
    ops = [
        _Op(number, op.operation) for number, op in enumerate(mlir.entry(function).operations) if mlir.is_generic(op)
    ]
    inlined = {o.op.results[0]: o for o in ops if "tilec.inline" in o.op.attributes}
    for producer in inlined.values():
        if why := refuse_inline(producer.op):
            raise InternalError(f"the plan inlines {mlir.get_string(producer.op, 'tilec.name')}, but {why}", "fuse")
    for consumer in ops:
        if "tilec.inline" not in consumer.op.attributes and any(v in inlined for v, _ in consumer.inputs):
            _Expansion(consumer, inlined).carry_out()
    for producer in reversed(inlined.values()):
        producer.op.erase()


class _Op:
    """An operation, with the values that it reads and their dimensions."""

    def __init__(self, number: int, op: ir.Operation):
        self.number, self.op = number, op

    @cached_property
    def maps(self) -> list[tuple[int, ...]]:
        return [tuple(mlir.map_dims(m)) for m in mlir.maps_of(self.op)]

    @cached_property
    def inputs(self) -> list[tuple[ir.Value, tuple[int, ...]]]:
        return list(zip(mlir.inputs_of(self.op), self.maps))

    @cached_property
    def rank(self) -> int:
        return mlir.maps_of(self.op)[0].n_dims


class _Instance(NamedTuple):
    """An operation where it is computed: `dims` are the reader's dimensions that its own ones are there."""

    number: int
    dims: tuple[int, ...]


class _Expansion:
    """A reader with the producers that are computed in it."""

    def __init__(self, consumer: _Op, inlined: dict[ir.Value, _Op]):
        self.consumer, self.inlined = consumer, inlined
        self.ops = {consumer.number: consumer}
        self.read: dict[_Instance, list[_Instance | tuple[ir.Value, tuple[int, ...]]]] = {}
        self.root = _Instance(consumer.number, tuple(range(consumer.rank)))

    def read_by(self, instance: _Instance) -> list[_Instance | tuple[ir.Value, tuple[int, ...]]]:
        """For each input of an operation the producer that makes it there, or else the tensor and where it is read."""
        if instance not in self.read:
            self.read[instance] = [
                self._read(value, tuple(instance.dims[d] for d in dims))
                for value, dims in self.ops[instance.number].inputs
            ]
        return self.read[instance]

    def _read(self, value: ir.Value, dims: tuple[int, ...]) -> _Instance | tuple[ir.Value, tuple[int, ...]]:
        if (producer := self.inlined.get(value)) is None:
            return value, dims
        self.ops[producer.number] = producer
        made = dict(zip(producer.maps[-1], dims))
        return _Instance(producer.number, tuple(made[d] for d in range(producer.rank)))

    def producers(self, instance: _Instance) -> list[_Instance]:
        """In the order of the program."""
        found = [p for p in self.read_by(instance) if isinstance(p, _Instance)]
        return sorted(dict.fromkeys(found), key=lambda p: p.number)

    def readers_first(self) -> Iterator[_Instance]:
        seen, pending = set(), [self.root]
        while pending:
            instance = pending.pop()
            if instance not in seen:
                seen.add(instance)
                yield instance
                pending += reversed(self.producers(instance))

    def producers_first(self) -> Iterator[_Instance]:
        """Where either may come first: the later one in the program."""
        done, pending = set(), [(self.root, False)]
        while pending:
            instance, entered = pending.pop()
            if instance in done:
                continue
            if entered:
                done.add(instance)
                yield instance
                continue
            order = sorted(self.producers(instance), key=lambda p: -p.number)
            pending += [(instance, True), *((p, False) for p in reversed(order))]

    def carry_out(self) -> None:
        op, instances = self.consumer.op, list(self.readers_first())
        inputs = list(
            dict.fromkeys(r for instance in instances for r in self.read_by(instance) if not isinstance(r, _Instance))
        )
        outputs, out_maps = mlir.outputs_of(op), self.consumer.maps[len(self.consumer.inputs) :]
        rank = self.consumer.rank
        covered = {d for dims in (*(dims for _, dims in inputs), *out_maps) for d in dims}
        locations = dict.fromkeys(self.ops[instance.number].op.location for instance in instances)
        with ir.InsertionPoint(op), ir.Location.fused(list(locations)):
            if missing := [
                d for d in range(rank) if d not in covered
            ]:  # a producer's result alone had their extents
                loops = extents.loops_of(op)
                shape = extents.empty([loops[d] for d in missing], mlir.type_of("i1"))
                inputs.append((shape, tuple(missing)))
            made, block = mlir.generic(
                [r.type for r in op.results],
                [value for value, _ in inputs],
                outputs,
                [mlir.projection(rank, dims) for dims in (*(dims for _, dims in inputs), *out_maps)],
                mlir.iterators_of(op),
            )
            carry_over(op, made)
            with ir.InsertionPoint(block):
                linalg.YieldOp(self._body(dict(zip(inputs, block.arguments)), list(block.arguments)[len(inputs) :]))
        for before, after in zip(op.results, made.results):
            before.replace_all_uses_with(after)
        op.erase()

    def _body(self, known: dict, states: list[ir.Value]) -> list[ir.Value]:
        """Copies the operations; `known` are the elements of inputs, and becomes those of producers too."""
        for instance in self.producers_first():
            body = mlir.body_of(self.ops[instance.number].op)
            arguments = [known[r] for r in self.read_by(instance)]
            if instance == self.root:
                return Body(body, [*arguments, *states].__getitem__, lambda d: linalg.IndexOp(d).result).values()
            (known[instance],) = clone_with_indices(body, dict(zip(body.arguments, arguments)), instance.dims)
        raise InternalError("an operation without its own body", "fuse")

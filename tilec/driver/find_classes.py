"""Which classes of sizes an op has on a target.

A GPU moves up to 16 bytes at a time, from addresses that are multiples of that. So where the length of a tensor's rows varies,
its multiples of 16 bytes are a class apart: their kernels have wide loads and stores and tensor maps, and no factor is copied to
rows of other lengths first. They are no class apart where the planner finds the program as fast at
other numbers, since such rows have a small part of its time. It is not asked where such rows have so few of the arguments' bytes
that accesses of single bytes would not matter. A CPU reads from any address.

Neighbouring intervals are one class where one plan loses little at both ends, by the cost model. That takes some three plans for
each question, whose answer the disk cache has from then on. It pays where kernels take long to compile: a GPU's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import lcm, prod
from typing import TYPE_CHECKING

from tilec.core.diagnostics import TileError
from tilec.core.dtypes import DTYPES, DType
from tilec.core.target import Target, from_dict
from tilec.core.varying import Varies, Varying
from tilec.driver.classes import LARGEST_UNIT, Classes, intervals, multiples, typical, typical_sizes, varying_from
from tilec.dsl import ast
from tilec.dsl.check_scope import Report
from tilec.dsl.check_sizes import declared_shape
from tilec.dsl.given_sizes import inputs_at
from tilec.dsl.specialise import Argument, Specialised, choose_op, specialise
from tilec.index.questions import multiple
from tilec.index.terms import Term, size, term
from tilec.process.collection import uncollected
from tilec.runtime import cache

if TYPE_CHECKING:
    from tilec.plan.model import Plan

WIDEST = LARGEST_UNIT
"""Bytes of an access. They are 8 elements of f32, too: its products are made of parts in bf16."""


CPU_ENDS = (0, 1, 16, 128, 512, 2048, 16384)
"""The intervals on a CPU, which are not joined: kernels compile in the time that a few plans take."""

MOST_LOSS = 0.05
"""The part of its time that a kernel may lose at an end of its class."""


def find_classes(
    program: ast.Program, op: str | None, inputs: Sequence[Argument] | None, fixed: Mapping[str, int],
    varies: Mapping[str, Varying], target: Target, digest: str | None = None,
    elsewhere: Callable[[dict[str, object]], Mapping[str, object] | None] = lambda wanted: None,
) -> Classes:  # fmt: skip
    """The classes of an op whose other sizes are `fixed`. `inputs`: types, and shapes where the op declares none. `digest`: the
    program's, under which the disk cache has what was found. `elsewhere`: asks a process that compiles programs."""
    if target.kind != "cuda":
        return Classes(varies, {}, ends=CPU_ENDS)
    chosen = choose_op(program, op)
    units = row_units(chosen, inputs, fixed, varies)
    at = typical_sizes({name: multiples(v, units[name]) or v for name, v in varies.items()}, fixed.values())
    plans = Plans(program, chosen.name, inputs, target, {**fixed, **at})
    fields = plans.fields()

    def asked(question: Question) -> bool:
        if digest is None:
            return plans.answer(question)
        key = cache.make_key("classes", digest, json.dumps(question), fields)
        if (known := cache.load(key)) is not None and "answer" in known[0]:
            return bool(known[0]["answer"])
        reply = elsewhere({"question": question, "plans": fields})
        found = bool(reply["answer"]) if reply is not None and "answer" in reply else plans.answer(question)
        cache.save(key, {"op": chosen.name, "answer": found}, {})
        return found

    def joined(name: str, v: Varying) -> bool:
        return asked(("joined", name, asdict(multiples(v, units[name]) or v), 1))

    for name, unit in units.items():
        if unit > 1 and (
            share_of_rows(chosen, inputs, name, varies, fixed, plans.typical) * WIDEST < MOST_LOSS
            or not asked(("multiples", name, asdict(varies[name]), unit))
        ):
            units[name] = 1
    return Classes(varies, units, joined)


def possible(v: Varying) -> list[Varying]:
    """The numbers of a size that may be a class on some target."""
    found: dict[Varying, None] = {}
    for parts in (intervals(v, CPU_ENDS), intervals(v)):
        for n, first in enumerate(parts):
            for last in parts[n:] if first.low > 1 else [first]:
                whole = replace(first, high=last.high)
                found |= dict.fromkeys(
                    m for k in range(LARGEST_UNIT.bit_length()) if (m := multiples(whole, 2**k)) is not None
                )
    return list(found)


Question = tuple[str, str, Mapping[str, int], int]
"""What is asked: `joined` or `multiples`, of which size, of which of its numbers, and of multiples of which number."""


Fields = tuple[str, list[tuple[str, list[int]]] | None, dict[str, object], dict[str, int]]


@dataclass
class Plans:
    """Plans of an op at several sizes; `typical` stand for all."""

    program: ast.Program
    op: str
    inputs: Sequence[Argument] | None
    target: Target
    typical: Mapping[str, int]
    made: dict[tuple[int, ...], tuple[Specialised, Plan]] = field(default_factory=dict)

    def fields(self) -> str:
        """All but the program and the plans, for `plans_from`, as JSON."""
        inputs = None
        if self.inputs is not None:  # shapes that the op declares are those of its sizes
            tensors = zip(choose_op(self.program, self.op).inputs, self.inputs)
            inputs = [(dtype.name, list(shape) if t.shape is None else []) for t, (dtype, shape) in tensors]
        return json.dumps([self.op, inputs, self.target.to_dict(), dict(self.typical)])

    def answer(self, question: Question) -> bool:
        """Whether one plan serves all of a size's numbers, or whether the program is faster at multiples of a number."""
        what, name, numbers, unit = question
        v, others = varying_from(numbers), {n: number for n, number in self.typical.items() if n != name}
        return self.one_serves(name, v, others) if what == "joined" else self.faster_in_multiples(unit, name, v, others)

    def one_serves(self, name: str, v: Varying, others: Mapping[str, int]) -> bool:
        """Whether the plan for a class of numbers of a size loses little at the least and the greatest. Where their own plans have
        other kernels, it is not made; nor of contraction chains, whose plans take long, and which had no intervals that could be
        joined. Whether there are any is asked once, at the typical sizes. Nothing serves sizes that the program or the
        planner refuses."""
        from tilec.driver.class_loss import planned, same_kernels, time_at
        from tilec.plan.varying import steadied

        try:
            if steadied(self._at(self.typical)[1]):
                return False
            least = self._at({**others, name: v.low})
            greatest = self._at({**others, name: v.high})
            if not same_kernels(least[1], greatest[1]):
                return False
            with uncollected():
                plan = planned(self._specialised(others, {name: v}), self.target, at=typical_sizes({name: v}, others.values()))
            for special, exact in (least, greatest):
                time_us = time_at(plan, special, exact, self.target) if same_kernels(plan, exact) else None
                if time_us is None or time_us > exact.time_us * (1 + MOST_LOSS):
                    return False
        except (TileError, Varies, OverflowError):  # of bytes of tensors that no machine holds
            return False
        return True

    def faster_in_multiples(self, unit: int, name: str, v: Varying, others: Mapping[str, int]) -> bool:
        """Whether the program is faster at the range's typical multiple of a number than at the next size that is none."""
        if (whole := multiples(v, unit)) is None:
            return False
        number = typical(whole)
        odd = next((n for n in (number + v.multiple, number - v.multiple) if v.has(n) and n % unit), None)
        if odd is None:
            return False
        try:
            plans = [self._at({**others, name: n})[1] for n in (number, odd)]
        except (TileError, Varies, OverflowError):  # of bytes of tensors that no machine holds
            return True
        return plans[1].time_us > plans[0].time_us * (1 + MOST_LOSS)

    def _at(self, sizes: Mapping[str, int]) -> tuple[Specialised, Plan]:
        from tilec.driver.class_loss import planned

        key = tuple(n for _, n in sorted(sizes.items()))
        if key not in self.made:
            special = self._specialised(sizes, {})
            with uncollected():
                self.made[key] = special, planned(special, self.target)
        return self.made[key]

    def _specialised(self, sizes: Mapping[str, int], varies: Mapping[str, Varying]) -> Specialised:
        given = inputs_at(self.program, self.op, self.inputs, sizes, varies)
        return specialise(self.program, self.op, given, sizes, checked=True, varies=varies)


def plans_from(program: ast.Program, fields: Fields) -> Plans:
    """The plans of a program, from what `Plans.fields` tells."""
    op, inputs, target, typical = fields
    given = None if inputs is None else [(DTYPES[name], tuple(shape)) for name, shape in inputs]
    return Plans(program, op, given, from_dict(target), typical)


def row_units(
    op: ast.Op, inputs: Sequence[Argument] | None, fixed: Mapping[str, int], varies: Mapping[str, Varying]
) -> dict[str, int]:  # fmt: skip
    """Of each size, the number whose multiples make all rows multiples of 16 bytes, where those of other sizes do their part."""
    tensors = _arguments(op, inputs)
    return {name: max([1, *(_row_unit(t, dtype, name, fixed, varies) for t, dtype in tensors)]) for name in varies}


def share_of_rows(
    op: ast.Op, inputs: Sequence[Argument] | None, name: str, varies: Mapping[str, Varying], fixed: Mapping[str, int],
    sizes: Mapping[str, int],
) -> float:  # fmt: skip
    """The part of the bytes of an op's arguments and results, at some `sizes`, in rows whose length depends on the size `name`."""
    terms, mine, all_ = {n: term(k) for n, k in sizes.items()}, 0, 0
    for tensor, dtype in _arguments(op, inputs):
        shape = declared_shape(tensor, terms, Report(), False)
        if shape is not None and None not in (extents := [e.constant for e in shape]):
            size = dtype.bytes * prod(n for n in extents if n is not None)
            all_ += size
            mine += size if _row_unit(tensor, dtype, name, fixed, varies) > 1 else 0
    return mine / all_ if all_ else 1.0


def _arguments(op: ast.Op, inputs: Sequence[Argument] | None) -> list[tuple[ast.Tensor, DType]]:
    """The inputs and outputs whose types and shapes are declared, and their types."""
    types = [dtype for dtype, _ in inputs] if inputs is not None else [t.dtype for t in op.inputs]
    named = zip((*op.inputs, *op.outputs), (*types, *(t.dtype for t in op.outputs)))
    return [(tensor, dtype) for tensor, dtype in named if tensor.shape and dtype is not None]


def _row_unit(
    tensor: ast.Tensor, dtype: DType, name: str, fixed: Mapping[str, int], varies: Mapping[str, Varying]
) -> int:  # fmt: skip
    """The number for one tensor; 1 where it is a multiple at all numbers of the size, or at none."""
    elements = WIDEST // min(dtype.bytes, 2)
    others = {n: _size(n, v, elements) for n, v in varies.items()} | {n: term(k) for n, k in fixed.items()}
    for unit in (2**n for n in range(elements.bit_length())):
        shape = declared_shape(tensor, {**others, name: _size(name, varies[name], unit)}, Report(), False)
        if shape is not None and multiple(shape[-1]) % elements == 0:
            return unit
    return 1


def _size(name: str, v: Varying, unit: int) -> Term:
    """A size of which only multiples of a number are numbers."""
    by = lcm(v.multiple, unit)
    return size(name, 0, max(v.high // by, 1) * by, by)

"""Which classes of sizes an op has on a target.

A GPU moves up to 16 bytes at a time, from addresses that are multiples of that. So where the length of a tensor's rows varies,
its multiples of 16 bytes are a class apart: their kernels have wide loads and stores and tensor maps, and no factor is copied to
rows of other lengths first. A CPU reads from any address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

from tilec.core.dtypes import DType
from tilec.core.target import Target
from tilec.core.varying import Varying
from tilec.driver.classes import LARGEST_UNIT, Classes
from tilec.dsl import ast
from tilec.dsl.check_scope import Report
from tilec.dsl.check_sizes import declared_shape
from tilec.dsl.specialise import Argument, choose_op
from tilec.index.questions import multiple
from tilec.index.terms import Term, size, term

WIDEST = LARGEST_UNIT
"""Bytes of an access. They are 8 elements of f32, too: its products are made of parts in bf16."""


def find_classes(
    program: ast.Program, op: str | None, inputs: Sequence[Argument] | None, fixed: Mapping[str, int],
    varies: Mapping[str, Varying], target: Target,
) -> Classes:  # fmt: skip
    """The classes of an op whose other sizes are `fixed`. `inputs`: types, and shapes where the op declares none."""
    return Classes(varies, _units(choose_op(program, op), inputs, fixed, varies) if target.kind == "cuda" else {})


def _units(
    op: ast.Op, inputs: Sequence[Argument] | None, fixed: Mapping[str, int], varies: Mapping[str, Varying]
) -> dict[str, int]:  # fmt: skip
    """Of each size, the number whose multiples make all rows multiples of 16 bytes, where those of other sizes do their part."""
    types = [dtype for dtype, _ in inputs] if inputs is not None else [t.dtype for t in op.inputs]
    rows: list[tuple[ast.Tensor, DType]] = []
    for tensor, dtype in zip((*op.inputs, *op.outputs), (*types, *(t.dtype for t in op.outputs))):
        if tensor.shape and dtype is not None:
            rows.append((tensor, dtype))
    found = dict.fromkeys(varies, 1)
    for tensor, dtype in rows:
        elements = WIDEST // min(dtype.bytes, 2)
        others = {name: _size(name, v, elements) for name, v in varies.items()} | {name: term(n) for name, n in fixed.items()}
        for name, v in varies.items():
            for unit in (2**n for n in range(elements.bit_length())):
                shape = declared_shape(tensor, {**others, name: _size(name, v, unit)}, Report(), False)
                if shape is not None and multiple(shape[-1]) % elements == 0:
                    found[name] = max(found[name], unit)
                    break
    return found


def _size(name: str, v: Varying, unit: int) -> Term:
    """A size of which only multiples of a number are numbers."""
    by = lcm(v.multiple, unit)
    return size(name, 0, max(v.high // by, 1) * by, by)

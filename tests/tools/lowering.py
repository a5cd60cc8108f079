"""A program's text down to a stage: the start of a test of plans, passes or printed kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilec.core import mlir
from tilec.core.diagnostics import Source
from tilec.core.dtypes import from_numpy
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.core.target import Target
from tilec.core.targets import load
from tilec.driver.lowering import Lowered, lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import Specialised, specialise
from tilec.plan.model import Plan
from tilec.runtime.program import Emitted

Given = Mapping[str, int] | Mapping[str, np.ndarray] | Sequence[np.ndarray] | None
"""Sizes by name, or arrays by name or in the op's order, from whose types and shapes the sizes follow."""


def specialised(
    source: str | Path | Source, op: str | None = None, given: Given = None, sizes: dict[str, int] | None = None
) -> Specialised:
    """`sizes` are those that arrays do not tell."""
    program = parse(source if isinstance(source, Source) else read_source(source))
    values = list(given.values() if isinstance(given, Mapping) else given or ())
    if isinstance(given, Mapping) and not any(isinstance(v, np.ndarray | np.generic) for v in values):
        return specialise(program, op, None, dict(given))
    return specialise(program, op, [(from_numpy(a.dtype), a.shape) for a in values] or None, sizes)


def lowered(
    source: str | Path | Source | Specialised, op: str | None = None, given: Given = None, schedule: Any = None,
    target: str | Target = "h200", texts: bool | None = None, locations: bool = False, **options: Any,
) -> tuple[Specialised, Lowered]:  # fmt: skip
    """The specialised program, and its IR, plan and printed kernels; `options` are those of `tilec.driver.lowering.lower`.

    The IR is that after the last stage alone. With `texts` it is that after every stage, each pass of which is verified; that
    takes a fifth longer. `texts=False` leaves all of it out.
    """
    special = source if isinstance(source, Specialised) else specialised(source, op, given)
    machine = load(target) if isinstance(target, str) else target
    with mlir.context(), ir.Location.unknown():
        module = build(special)
        result = lower(module, machine, schedule=schedule, texts=bool(texts), locations=locations, **options)
        if texts is None:
            result.texts[options.get("end", "map")] = module.operation.get_asm(enable_debug_info=locations)
    return special, result


def planned(
    source: str | Path | Source | Specialised, op: str | None = None, given: Given = None, target: str | Target = "h200"
) -> Plan:
    """The plan alone, which takes a third of the time."""
    return lowered(source, op, given, target=target, texts=False, end="plan", emit=False)[1].plan


def assert_reads_back(result: Lowered, stage: str = "map") -> None:
    """The IR after a stage is valid, and what is read from its text prints as the same text."""
    text = result.texts[stage]
    with mlir.reading_context(), ir.Location.unknown():
        again = mlir.parse(text).operation
        assert again.verify() and again.get_asm(enable_debug_info="loc(" in text) == text


def emitted(
    source: str | Path | Source, op: str | None = None, given: Given = None, target: str | Target = "h200"
) -> Emitted:
    """The printed kernels."""
    found = lowered(source, op, given, target=target, texts=False)[1].emitted
    assert isinstance(found, Emitted)
    return found

"""Printed CUDA kernels run by the emulator, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilec.core.target import Target
from tilec.driver.lowering import Lowered
from tilec.dsl.specialise import Specialised
from tools import cuda_emulator
from tools.lowering import lowered


def run_printed(
    special: Specialised,
    result: Lowered,
    inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray],
    intrinsics: type = cuda_emulator.Intrinsics,
) -> tuple[list[np.ndarray], list[int]]:
    """The outputs of the printed kernels, and the numbers of the checks that failed."""
    arrays = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
    outputs = [np.zeros([s.value for s in t.shape], t.dtype.numpy) for t in special.outputs]
    failed = cuda_emulator.run(result.emitted, arrays, outputs, intrinsics)
    return outputs, failed


def emulate(
    source: Any, op: str | None, inputs: Mapping[str, np.ndarray], schedule: Any = None, target: str | Target = "h200"
) -> tuple[list[np.ndarray], list[int]]:
    """A program's outputs, and the numbers of the checks that failed."""
    return run_printed(*lowered(source, op, inputs, schedule, target), inputs)

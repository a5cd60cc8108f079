"""Running a case in several ways, each held to the reference."""

from __future__ import annotations

import numpy as np
from cuda_emulator import run as emulate

import tilec
from fuzz.programs import Case
from tilec import mlir
from tilec.api import read_source
from tilec.driver import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import Specialised, specialise
from tilec.evaluate import evaluate
from tilec.mlir import ir
from tilec.run_data import compare
from tilec.target import load

Arrays = dict[str, np.ndarray]


class Wrong(AssertionError):
    """A result that is not what the reference says."""


def specialised(case: Case) -> Specialised:
    return specialise(parse(read_source(case.text)), "f", None, case.sizes)


def check(case: Case, way: str, schedule=None) -> None:
    """Runs a case one way: `cpu`, `emulator` or `gpu`. Raises Wrong, or whatever the compiler raised."""
    program = specialised(case)
    results = {"cpu": on_cpu, "emulator": on_emulator, "gpu": on_gpu}[way](case, program, schedule)
    expect(case, program, results, way)


def expect(case: Case, program: Specialised, results: Arrays, way: str) -> None:
    """Exact results must be the reference's; others within the bound."""
    exact = evaluate(program, case.inputs, rounded=True)
    bounds = compare(program, case.inputs, results)
    for tensor in program.outputs:
        name, found = tensor.name, results[tensor.name]
        with np.errstate(all="ignore"):
            expected = exact[name].astype(tensor.dtype.numpy)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise Wrong(
                f"{way}: {name} is {found.dtype}{list(found.shape)}, not {expected.dtype}{list(expected.shape)}"
            )
        if name in case.exact:
            differ = ~_same(found, expected)
            if differ.any():
                at = tuple(map(int, np.argwhere(differ)[0]))
                count = np.count_nonzero(differ)
                raise Wrong(
                    f"{way}: {count} of {found.size} elements of {name} differ, at {list(at)} {found[at]}, not {expected[at]}"
                )
        elif bounds[name].error and not bounds[name].within:
            raise Wrong(f"{way}: {name} is off by {bounds[name].error:.3g}, {bounds[name].allowed:.3g} allowed")


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iub":
        return np.asarray(a == b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a == b) | (np.isnan(a) & np.isnan(b))


def on_cpu(case: Case, program: Specialised, schedule=None, target: str = "cpu") -> Arrays:
    op = tilec.compile(case.text, op="f", sizes=case.sizes, target=target, schedule=schedule)
    found = op(*case.inputs.values())
    found = found if isinstance(found, tuple) else (found,)
    return {t.name: np.asarray(a) for t, a in zip(program.outputs, found)}


def on_gpu(case: Case, program: Specialised, schedule=None) -> Arrays:
    from tilec.executable import build_executable
    from tilec.run_device import open_device

    executable = build_executable(program, load("cuda"), schedule)
    with open_device("cuda", case.inputs, executable.outputs) as device:
        device.run(executable)
        return device.results()


def on_emulator(case: Case, program: Specialised, schedule=None) -> Arrays:
    with mlir.context(), ir.Location.unknown():
        emitted = lower(build(program), load("h200"), schedule=schedule).emitted
    outputs = {t.name: np.empty([s.value for s in t.shape], t.dtype.numpy) for t in program.outputs}
    for array in outputs.values():
        array.reshape(-1).view(np.uint8)[...] = 0xA5
    failed = emulate(emitted, list(case.inputs.values()), list(outputs.values()))
    if any(failed):
        raise Wrong(f"emulator: a check failed: {failed}")
    return outputs

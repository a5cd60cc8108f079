"""`tilec run`: runs an op on random or given inputs, compares with the reference, and measures the time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import Loaded, note, show, working, write_file
from tilec.cli.json_output import show_json
from tilec.cli.records import Array, ComparedResult, Ran, Timing
from tilec.core.diagnostics import CallError, CheckError
from tilec.core.quantities import duration
from tilec.semantics.inputs import Arrays, fit_types, npz, random_inputs, read_inputs, shape_of

if TYPE_CHECKING:
    import numpy as np

    from tilec.driver.devices import Host
    from tilec.driver.executable import Executable
    from tilec.dsl.ast import Op
    from tilec.plan.model import Plan
    from tilec.semantics.comparison import Comparison


def run(args: argparse.Namespace) -> int:
    stage = args.interpret and common.stage_name(args.interpret)
    if stage and args.time:
        raise CallError("--time measures compiled kernels, and --interpret compiles none", hint="leave out one of them")
    loaded, given = _prepare(args)
    if loaded.target.kind == "cuda" and not stage:
        need_gpu()
    specialised = loaded.specialised
    inputs = random_inputs(specialised, args.seed, given)
    if stage:
        results, seconds, plan = _interpret(loaded, stage, inputs), None, None
    else:
        results, seconds, plan = _execute(loaded, inputs, args.time)
    arrays = [Array(t.name, str(t.dtype), list(shape_of(t)), "given" if t.name in given else "random") for t in specialised.inputs]
    arrays += [Array(t.name, str(t.dtype), list(shape_of(t)), "result") for t in specialised.outputs]
    if not args.json:
        how = f"interpreted after {stage}, for" if stage else "on"
        show(f"{specialised.name} {how} {loaded.target}", [(r"^\S+", "bold")])
        for a in arrays:
            _row(a.name, f"{a.type}{_shape(tuple(a.shape))}  {a.origin}" + (f", seed {args.seed}" if a.origin == "random" else ""))
    compared = _check(loaded, inputs, results) if args.check else {}
    time = _timing(loaded, plan, seconds) if seconds is not None and plan is not None else None
    if args.json:
        target, saved = loaded.target, None if args.save is None else str(args.save)
        record = [_compared(name, c) for name, c in compared.items()]
        if args.save is not None:
            _save(args, results)
        show_json(Ran(specialised.name, target.name, str(target), stage or None, args.seed, arrays, record, time, saved))
        return _status(compared)
    for name, comparison in compared.items():
        _row("error", f"{name}: {comparison}")
    if time is not None:
        _report_time(time, loaded.target.name)
    if args.save is not None:
        _save(args, results)
    return _status(compared)


def _status(compared: Mapping[str, Comparison]) -> int:
    return 0 if all(c.within for c in compared.values()) else 1


def _compared(name: str, c: Comparison) -> ComparedResult:
    return ComparedResult(name, c.within, c.error, c.allowed, list(c.index), c.wrong, c.unbounded)


def _itself(array: np.ndarray) -> np.ndarray:
    return array


def _execute(loaded: Loaded, inputs: Arrays, timed: bool) -> tuple[Arrays, list[float] | None, Plan | None]:
    """The results, the seconds of calls if `--time` is given, and the plan of the kernels."""
    from tilec.driver.devices import open_device

    executable = build(loaded)
    with open_device(loaded.target.kind, inputs, executable.outputs) as device:
        with working("running"):
            try:
                device.run(executable)
            except CheckError as error:
                from tilec.semantics.out_of_range import explained

                raise explained(error, loaded.specialised, {n: partial(_itself, a) for n, a in inputs.items()}) from None
        seconds = _measure(device, executable) if timed else None
        return device.results(), seconds, executable.recipe.lowered[1].plan if timed else None


def _interpret(loaded: Loaded, stage: str, inputs: Arrays) -> Arrays:
    from tilec.semantics.interpreted import interpret_stage

    lowered = common.lower(loaded, end=stage, emit=False)
    with working(f"interpreting the IR after {stage}"):
        return interpret_stage(loaded.specialised, lowered.texts, stage, inputs)


def _prepare(args: argparse.Namespace) -> tuple[Loaded, Arrays]:
    """The program for the sizes that are given, by name or by the arrays in files."""
    from tilec.core.dtypes import from_numpy
    from tilec.core.targets import load
    from tilec.dsl.specialise import choose_op

    target = load(args.target)
    program = common.parse_checked(args.file, args.path)
    op = choose_op(program, args.op)
    given = fit_types(read_inputs(args.input), op.inputs)
    sizes = _sizes_of(op, given) | common.defined(args)
    types = None
    if given and all(t.name in given for t in op.inputs):
        types = []
        for t in op.inputs:
            if (dtype := from_numpy(given[t.name].dtype)) is None:
                raise CallError(f"`{t.name}` is an array of {given[t.name].dtype}, a type that the language does not have")
            types.append((dtype, given[t.name].shape))
        sizes = common.defined(args)
    specialised = common.specialise_given(program, args.op, sizes, types)
    for tensor in specialised.inputs:
        if tensor.name in given and given[tensor.name].shape != shape_of(tensor):
            shapes = f"{_shape(shape_of(tensor))}, but its file holds {_shape(given[tensor.name].shape)}"
            raise CallError(f"`{tensor.name}` is {tensor.dtype}{shapes}")
    return Loaded(specialised, target, common.find_schedule(args)), given


def _sizes_of(op: Op, given: Arrays) -> dict[str, int]:
    """The sizes that arrays tell by themselves."""
    from tilec.dsl.ast import SizeName

    found: dict[str, int] = {}
    for tensor in op.inputs:
        if tensor.name in given:
            for size, extent in zip(tensor.shape or (), given[tensor.name].shape):
                if isinstance(size, SizeName):
                    found.setdefault(size.name, extent)
    return found


def need_gpu() -> None:
    """Raises CallError where there is none."""
    from tilec.runtime.cuda.driver import device_info

    info = device_info()
    if not info.devices:
        raise CallError(
            f"there is no GPU to run on: {info.problem}",
            hint="--target cpu runs here; `tilec doctor` shows the devices of this machine",
        )


def build(loaded: Loaded) -> Executable:
    """The op as an executable, its stages run anew."""
    from tilec.driver.executables import build_executable
    from tilec.driver.recipe import Prepared

    lowered = common.lower(loaded)
    with working(f"compiling {loaded.specialised.name}"):
        return build_executable(Prepared(loaded.specialised, lowered, loaded.target))


# ---- checking --------------------------------------------------------------------------------------------


def _check(loaded: Loaded, inputs: Arrays, results: Arrays) -> dict[str, Comparison]:
    from tilec.semantics.comparison import compare

    with working("evaluating the program and its error bounds at f64"):
        return compare(loaded.specialised, inputs, results, loaded.target.backend)


# ---- timing ----------------------------------------------------------------------------------------------


def _measure(device: Host, executable: Executable, budget: float = 1.0) -> list[float]:
    """Seconds of single calls, as many as fit in the budget, three at least."""
    with working("timing"):
        start = perf_counter()
        device.run(executable)
        repeats = max(3, min(200, int(budget / max(1e-6, perf_counter() - start))))
        return device.time(executable, repeats)


def _timing(loaded: Loaded, plan: Plan, seconds: list[float]) -> Timing:
    from tilec.plan.report.expectations import minimal_traffic

    middle, least = median(seconds), minimal_traffic(loaded.specialised)
    operations = sum(sum(k.work.flops.values()) for k in plan.kernels)
    limit = _roofline_seconds(loaded, plan)
    return Timing(
        len(seconds), 1e6 * middle, 1e6 * min(seconds), plan.time_us, least / middle, operations / middle, 1e6 * limit,
        limit / middle,
    )  # fmt: skip


def _report_time(time: Timing, target: str) -> None:
    from tilec.core.quantities import amount
    from tilec.plan.report.explain import share_of_roofline

    spread = f"best {duration(time.best_us)}, {time.calls} calls, {duration(time.predicted_us)} predicted"
    _row("time", f"{duration(time.median_us)} ({spread})")
    speed = f"{amount(time.bytes_per_second)}B/s of inputs and outputs"
    _row("speed", f"{speed}, {amount(time.operations_per_second)}FLOP/s")
    _row("roofline", share_of_roofline(time.of_limit, target))


def _roofline_seconds(loaded: Loaded, plan: Plan) -> float:
    """Inputs and outputs moved once at the memory's rate, or the operations at their peaks: the longer.

    The memory is the level that inputs and outputs stay in from call to call, as in the cost model.
    """
    from tilec.cost.model import home_level
    from tilec.plan.report.expectations import minimal_traffic

    target, least = loaded.target, minimal_traffic(loaded.specialised)
    units: dict[str, float] = {}
    for kernel in plan.kernels:
        for unit, amount in kernel.work.flops.items():
            units[unit] = units.get(unit, 0) + amount
    busy = max((n / target.peak(u) for u, n in units.items()), default=0.0)
    level = "dram" if target.kind == "cuda" else home_level(target, least)
    return max(busy, least / getattr(target, level).rate(target.units))


# ---- output ----------------------------------------------------------------------------------------------


def _save(args: argparse.Namespace, results: Arrays) -> None:
    if args.save.suffix != ".npz":
        raise CallError(f"--save writes a .npz file, but '{args.save}' does not end in .npz")
    write_file(args.save, npz(results))
    note(f"wrote {args.save}: {', '.join(results)}", kind="")


def _row(label: str, text: str) -> None:
    rules = [(r"within the bound", "green"), (r"OUT OF BOUNDS", "strong red")]
    show(f"  {label:<10} {text}", rules)


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]" if shape else ""

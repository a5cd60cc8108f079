"""tilec from Python: `compile` a program, call what it returns.

    softmax = tilec.compile("softmax.tile")
    y = softmax(x)

A compiled op specialises itself to the sizes and types of a call, keeps what it built, and shows how it came about.
"""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec import fast_call
from tilec.diagnostics import CallError, Diagnostic, Source, Span, TileError
from tilec.dtypes import DTYPES
from tilec.executable import Executable, build_executable
from tilec.frontend import Program, read_program
from tilec.kernel import Kernel
from tilec.recipe import Recipe, Signature, load_compiler
from tilec.runtime.forking import compiling
from tilec.target import Target, kind_of, load

if TYPE_CHECKING:
    from tilec.runtime.cuda_program import Graph

MOST_FAST = 8  # specialisations of one op that are called by the short way


class Op:
    """A program's op, ready to be called. Made by `compile`; safe to call from several threads."""

    def __init__(
        self, program: Program, name: str | None, sizes: Mapping[str, int], target: str | None, schedule: Path | None,
        late: bool = False,
    ):  # fmt: skip
        self._program, self._sizes, self._late = program, dict(sizes), late
        self._target, self._schedule = target, schedule
        self._built: dict[tuple, Any] = {}
        self._latest: Executable | None = None
        self._fast: tuple[tuple[fast_call.Call, Executable, Any], ...] = ()
        self._lock = threading.Lock()
        self._declared = program.op(name)

    def __repr__(self) -> str:
        return (
            f"<tilec op {self.name}, compiled for {len(self._built)} set{'s' * (len(self._built) != 1)} of arguments>"
        )

    @property
    def name(self) -> str:
        return self._declared.name

    # ---- calling -----------------------------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **named: Any) -> Any:
        """Runs the op. Returns an array of the inputs' kind on their device, or a named tuple for several results.

        Arrays come in the order of the parameters, or by their names. `out` is an array, or a sequence of them, to write
        results into; it may not overlap an input. `stream` orders GPU work: an integer handle, or a torch, CuPy or cuda.core
        stream; both are no names for parameters here. Raises CallError for arguments that do not fit.
        """
        if named:
            arrays = self._in_order(arrays, named)
        for call, executable, _ in self._fast:
            if (results := call(arrays, out, stream)) is not fast_call.NO:
                self._latest = executable
                return results
        executable, views, outs, results = self._prepared(arrays, out)
        executable.run(views, outs, stream)
        kind = executable, arrays and type(arrays[0])
        if not any(known == kind for _, _, known in self._fast):
            made = list(results) if len(outs) > 1 else [results]
            wrap = self._wrapped(executable)
            if (call := fast_call.make(executable, arrays, views, made, wrap)) is not None:
                self._fast = ((call, executable, kind), *self._fast[: MOST_FAST - 1])
        return results

    def check(self) -> None:
        """Waits for the calls that were made, where the op was compiled with `late`. Raises CallError for a run-time check that
        failed in one of them and was not raised yet."""
        for executable in list(self._built.values()):
            executable.check()

    def graph(self, *arrays: Any, out: Any = None, **named: Any) -> Graph:
        """A call on GPU arrays as a CUDA graph: `graph.replay()` runs it again on the same arrays in one launch, and returns
        `graph.result`. The op runs once. Raises CallError for arrays that a graph cannot work on, and on the CPU."""
        executable, views, outs, results = self._prepared(self._in_order(arrays, named), out)
        return executable.graph(views, outs, results)

    def _in_order(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call, some of which are given by name."""
        names = [name for name, _ in self._declared.inputs]
        for name in named:
            if name not in names:
                hint = f"its parameters are {', '.join(names)}" if names else "it has none"
                raise CallError(f"{self.name} has no parameter '{name}'", hint=hint)
            if name in names[: len(arrays)]:
                raise CallError(f"{self.name} is given '{name}' twice: in order, and by name")
        rest = names[len(arrays) :] if named else []
        if missing := [name for name in rest if name not in named]:
            raise CallError(f"{self.name} is not given '{missing[0]}'", hint=f"{missing[0]}=…")
        return (*arrays, *(named[name] for name in rest))

    def _prepared(self, arrays: Sequence[Any], out: Any) -> tuple[Executable, list[Any], list[Any], Any]:
        """What runs a call, the inputs and outputs as it takes them, and what the call returns."""
        from tilec.runtime import buffers

        views = [buffers.view(self._number(n, a)) for n, a in enumerate(arrays)]
        device = self._device(views)
        executable = self._executable(tuple((v.dtype, tuple(v.shape)) for v in views), device)
        outs, results = self._outputs(executable, arrays, views, out, device)
        return executable, views, outs, results

    def _wrapped(self, executable: Executable) -> Callable[[list[Any]], Any]:
        """What makes of a call's new arrays that which it returns."""
        names = tuple(name for name, _, _ in executable.outputs)
        if len(names) == 1:
            return itemgetter(0)
        return _result_tuple(self.name, names)._make

    def _number(self, position: int, value: Any) -> Any:
        """A Python number takes the declared type of its parameter; everything else is an array already."""
        if not isinstance(value, (bool, int, float)) or position >= len(self._declared.inputs):
            return value
        dtype = self._declared.inputs[position][1]
        if dtype is None:
            return value
        import numpy as np

        return np.asarray(value, dtype.numpy)

    def _outputs(self, executable, arrays, views, out, device):
        from tilec.runtime import buffers

        shapes = executable.outputs
        if out is None:
            example = next(
                (a for a, v in zip(arrays, views) if v.device == device and not isinstance(a, (int, float))), None
            )
            made = [buffers.empty_like_kind(example, shape, dtype, device) for _, dtype, shape in shapes]
        else:
            made = [out] if len(shapes) == 1 and not isinstance(out, (list, tuple)) else list(out)
            if len(made) != len(shapes):
                raise CallError(f"{self.name} has {len(shapes)} results, out= holds {len(made)}")
        outs = [buffers.view(m) for m in made]
        if out is not None:
            self._check_outs(shapes, outs, views)
        return outs, self._wrapped(executable)(made)

    def _check_outs(self, shapes, outs, views) -> None:
        from tilec.runtime import buffers

        for (name, dtype, shape), buffer in zip(shapes, outs):
            if buffer.dtype != dtype or tuple(buffer.shape) != shape:
                raise CallError(
                    f"out= for '{name}' must be {dtype}{list(shape)}, got {buffer.dtype}{list(buffer.shape)}"
                )
            if buffer.readonly:
                raise CallError(f"out= for '{name}' is read-only")
            for v in views:
                if buffers.overlaps(buffer, v):
                    raise CallError(f"out= for '{name}' overlaps an input; results are written while inputs are read")
        for n, a in enumerate(outs):
            if any(buffers.overlaps(a, b) for b in outs[:n]):
                raise CallError("the arrays in out= overlap each other")

    def _device(self, views: Sequence[Any]) -> str | int:
        devices = {v.device for v in views}
        if len(devices) == 2 and all(v.shape == () for v in views if v.device == "cpu"):
            devices.remove("cpu")  # numbers go along
        if len(devices) > 1:
            raise CallError(f"the arguments are on different devices: {', '.join(sorted(map(str, devices)))}")
        return next(iter(devices), "cpu")

    # ---- building ----------------------------------------------------------------------------------------------------

    def _executable(self, key: tuple, device: str | int):
        full = (key, device)
        found = self._built.get(full)
        if found is None:
            with compiling(), self._lock:
                found = self._built.get(full)
                if found is None:
                    found = self._built[full] = self._build(key, device)
        self._latest = found
        return found

    def _build(self, inputs: Signature, device: str | int) -> Executable:
        target = self._resolve(device)
        if target.kind == "cpu" and device != "cpu":
            raise CallError(f"target '{target.name}' runs on the CPU, the arguments are on GPU {device}")
        return self._built_for(self._recipe(inputs, self._sizes, target))

    def _built_for(self, recipe: Recipe) -> Executable:
        executable = build_executable(recipe)
        executable.late = self._late
        return executable

    def _recipe(self, inputs: Signature | None, sizes: Mapping[str, int], target: Target) -> Recipe:
        return Recipe(self._program, self.name, inputs, sizes, target, self._schedule)

    def _resolve(self, device: str | int) -> Target:
        if self._target is not None:
            return load(self._target)
        return load("cpu" if device == "cpu" else "cuda")

    def build(self, **sizes: int) -> Op:
        """Compiles for the given sizes now rather than at the first call; an op with declared types needs no arrays."""
        target = self._resolve("cpu" if self._target is None else "any")
        with compiling(), self._lock:
            built = self._built_for(self._recipe(None, {**self._sizes, **sizes}, target))
            key = tuple((dtype, shape) for _, dtype, shape in built.compiled.inputs)
            self._latest = self._built[key, "cpu" if target.kind == "cpu" else 0] = built
        return self

    # ---- looking inside ----------------------------------------------------------------------------------------------

    def interpret(self, stage: str, *arrays: Any, **named: Any) -> Any:
        """Runs the IR as it stands after `stage` on NumPy arrays; results as those of a call. No GPU is needed.

        Raises tilec.interpreter.Fault where the IR has no meaning: a read of what nothing wrote, a race, a deadlock.
        """
        import numpy as np

        from tilec.dtypes import from_numpy
        from tilec.interpreted import interpret_stage

        given = [np.asarray(self._number(n, a)) for n, a in enumerate(self._in_order(arrays, named))]
        signature = tuple((from_numpy(a.dtype), a.shape) for a in given)
        specialised, lowered = self._recipe(signature, self._sizes, self._resolve("cpu")).lowered
        named = {t.name: a for t, a in zip(specialised.inputs, given)}
        found = tuple(interpret_stage(specialised, lowered.texts, stage, named).values())
        if len(found) == 1:
            return found[0]
        return _result_tuple(self.name, tuple(t.name for t in specialised.outputs))(*found)

    @property
    def _last(self) -> Executable:
        if self._latest is None:
            self.build()
        assert self._latest is not None
        return self._latest

    @property
    def stages(self) -> dict[str, str]:
        """MLIR text after every stage of the latest specialisation, by stage name."""
        return dict(self._last.recipe.lowered[1].texts)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self._last.kernels

    @property
    def plan(self):
        """The decisions behind the latest specialisation: a `tilec.plan.Plan`."""
        return self._last.recipe.lowered[1].plan

    def explain(self) -> str:
        """Every kernel's predicted time and bound, and every decision with its reason."""
        from tilec.explain import explain

        specialised, lowered = self._last.recipe.lowered
        return explain(lowered.plan, specialised)


@cache
def _result_tuple(name: str, fields: tuple[str, ...]):
    return namedtuple(name, fields, rename=True)


def compile(
    source: str | Path, *, op: str | None = None, sizes: Mapping[str, int] | None = None, target: str | None = None,
    schedule: str | Path | None = None, late: bool = False,
) -> Op:  # fmt: skip
    """Reads a program and returns its op, ready to call.

    `source`: path of a `.tile` file, or program text in full or short form. `op`: which op of the file, needed if it has
    several. `sizes`: values for some or all symbolic sizes. `target`: "cpu", "cuda", a chip, a model, or the path of a
    target file; by default what the arguments of a call are on. `schedule`: a schedule file to obey; by default the one
    beside the program, if there is one. `late`: on a GPU, a check that fails while the program runs (a gather outside of its
    table) is raised by a later call or by `Op.check`, as a GPU's own faults are, so that no call waits for its kernels; by
    default the call itself raises it.

    Raises TileError for what is wrong with the program, with every mistake's place; CallError for what is wrong with the
    options.
    """
    text = read_source(source)
    program = read_program(text, before=lambda: _load_compiler(target))
    for name, value in (sizes or {}).items():
        if not isinstance(value, int) or value < 0:
            raise CallError(f"size {name} must be a whole number from 0, got {value!r}")
    if target is not None:
        load(target)
    path = Path(schedule) if schedule is not None else _schedule_beside(text)
    if path is not None:
        from tilec.schedule_read import read_schedule

        read_schedule(path)  # says what is wrong with it
    return Op(program, op, sizes or {}, target, path, late)


def _load_compiler(target: str | None) -> None:
    with suppress(CallError):  # which is to come after what is wrong with the program
        if target is not None:
            load_compiler(kind_of(target))


def interpret(
    source: str | Path, stage: str, *arrays: Any, op: str | None = None, sizes: Mapping[str, int] | None = None,
    target: str | None = None, schedule: str | Path | None = None,
) -> Any:  # fmt: skip
    """Runs a program's IR after `stage` on NumPy arrays (see `Op.interpret`); options as those of `compile`."""
    return compile(source, op=op, sizes=sizes, target=target, schedule=schedule).interpret(stage, *arrays)


def _schedule_beside(text: Source) -> Path | None:
    """`softmax.sched.toml` where the program is `softmax.tile` and there is one."""
    path = Path(text.name)
    beside = path.with_suffix(".sched.toml")
    return beside if path.suffix == ".tile" and beside.is_file() else None


def read_source(source: str | Path) -> Source:
    """The program behind a path, or the text itself: what ends in `.tile` and has one line is a path."""
    if not isinstance(source, str | Path):
        message = f"a program is a path or a text, not a {type(source).__name__}"
        raise CallError(message, hint='compile("softmax.tile"), or compile("y[i] = 2 * x[i]")')
    if isinstance(source, Path) or ("\n" not in source and source.strip().endswith(".tile")):
        path = Path(source)
        try:
            return Source(str(path), path.read_bytes().decode("utf-8"))
        except FileNotFoundError:
            raise TileError(Diagnostic(f"there is no file '{path}'", Span.none())) from None
        except UnicodeDecodeError as error:
            message = f"'{path}' is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}"
            raise TileError(Diagnostic(message, Span.none())) from None
        except OSError as error:
            raise TileError(Diagnostic(f"cannot read '{path}': {error.strerror}", Span.none())) from None
    return Source("<program>", str(source))


__all__ = ["DTYPES", "Kernel", "Op", "compile", "read_source"]

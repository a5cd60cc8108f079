"""tilec from Python: `compile` a program, and call the result.

    softmax = tilec.compile("softmax.tile")
    y = softmax(x)

A compiled op specialises itself to the sizes and types of each call, and keeps the specialisations. `op.stages`,
`op.kernels` and `op.explain()` show how they were compiled.
"""

from __future__ import annotations

import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from operator import attrgetter, itemgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from tilec.core.diagnostics import CallError, CheckError, Source
from tilec.core.dtypes import DTYPES
from tilec.core.source import read_source
from tilec.core.target import Target
from tilec.core.targets import kind_of, load
from tilec.core.varying import Varying, ranges_text
from tilec.driver import arguments, fast_call
from tilec.driver.executable import Executable
from tilec.driver.executables import build_executable
from tilec.driver.frontend import Program, read_program
from tilec.driver.kernel import Kernel
from tilec.driver.recipe import Recipe, Signature, load_compiler
from tilec.driver.spelled import Spelled
from tilec.dsl.einsum import is_spelling
from tilec.process import progress
from tilec.process.forking import compiling
from tilec.process.untraced import leave_out

if TYPE_CHECKING:
    from tilec.driver.by_class import ByClass, Served
    from tilec.driver.classes import Class
    from tilec.driver.lowering import Lowered
    from tilec.driver.sized_calls import AtSizes
    from tilec.dsl.specialise import Specialised
    from tilec.plan.model import Plan
    from tilec.runtime.buffers import Buffer, Device
    from tilec.runtime.cuda.program import Graph

    Known = tuple[fast_call.Call, Executable | AtSizes, object]

leave_out()
_SHAPE = attrgetter("shape")
MOST_FAST = 8  # specialisations of one op that are called by the short way
MOST_SIZED = 1024  # shapes of arguments, of an op whose sizes vary, that are found at once: some kilobytes each


class Op:
    """A program's op, ready to be called. Made by `compile`; safe to call from several threads."""

    def __init__(
        self, program: Program | Spelled, name: str | None, sizes: Mapping[str, int], target: str | None, schedule: Path | None,
        deferred_checks: bool = False, donated: tuple[tuple[int, int], ...] = (), varies: Mapping[str, Varying] | None = None,
        specialise_after: int = 0,
    ):  # fmt: skip
        self._donated, self._varies, self._specialise_after = donated, dict(varies or {}), specialise_after
        self._program, self._sizes, self._deferred_checks = program, dict(sizes), deferred_checks
        self._target, self._schedule = target, schedule
        self._built: dict[tuple, Executable] = {}
        self._latest: Executable | AtSizes | None = None
        self._fast: tuple[Known, ...] = ()
        self._sized: fast_call.Recent[tuple[object, ...], Known] = fast_call.Recent(MOST_SIZED)  # by shapes, of varying sizes
        self._lock = threading.Lock()
        self._declared = program.op(name)
        self._by_class = self._made_by_class() if self._varies else None

    def _made_by_class(self) -> ByClass:
        from tilec.driver.by_class import ByClass

        assert isinstance(self._program, Program), "a spelling takes no `varies`"
        return ByClass(
            self._program, self.name, self._sizes, self._varies, self._recipe, self._built_for, self._specialise_after
        )  # fmt: skip

    def __reduce__(self) -> tuple[object, ...]:
        """A pickled op is its program's text and its options. The loaded op compiles again, or finds its kernels in the disk
        cache. Imported files and the schedule file are read again."""
        source, chosen = self._program.source, self._declared.name
        return _restored, (
            source.name,
            source.text,
            chosen,
            self._sizes,
            self._target,
            self._schedule,
            self._deferred_checks,
            self._donated,
            source.folders,
            self._varies,
            self._specialise_after,
        )

    def __copy__(self) -> Op:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Op:
        """The op itself: an op does not change, so that copies share its compiled code, as copies of functions do."""
        return self

    def __repr__(self) -> str:
        return (
            f"<tilec op {self.name}, compiled for {len(self._built)} set{'s' * (len(self._built) != 1)} of arguments>"
        )

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the program, and the kernels of the latest specialisation."""
        from tilec.report.notebook import op_card

        latest = self._latest
        found = latest if latest is None or isinstance(latest, Executable) else latest.executable()
        return op_card(self.name, self._program.source.text, found)

    @property
    def name(self) -> str:
        return self._declared.name

    # ---- calling -----------------------------------------------------------------------------------------------------

    def __call__(self, /, *arrays: object, out: object = None, stream: object = None, **named: object) -> Any:
        """Runs the op. Returns an array of the first array's kind on its device, or a named tuple for several results.

        Arrays come in the order of the parameters, or by their names; parameters that are called `out` or `stream` are given
        in order. `out` is an array, or a list of them, to write results into; they may not overlap an input, each other or
        themselves. `stream` orders GPU work: an integer handle, or a torch, CuPy or cuda.core stream. Raises CallError for
        arguments that do not fit.
        """
        if named:
            arrays = self._in_order(arrays, named)
        try:
            for call, executable, _ in self._fast:
                if (results := call(arrays, out, stream)) is not fast_call.NO:
                    self._latest = executable
                    return results
            if self._by_class is not None:
                shapes = _shapes(arrays)
                if (known := self._sized[shapes]) is not None:
                    call, executable, _ = known
                    if (results := call(arrays, out, stream)) is not fast_call.NO:
                        self._fast, self._latest = (known,), executable
                        return results
                if (made := self._by_class.fast(arrays)) is not None:
                    call, executable = made
                    if (results := call(arrays, out, stream)) is not fast_call.NO:
                        known = call, executable, None
                        self._fast, self._latest = (known,), executable
                        self._sized.put(shapes, known)
                        return results
            return self._call(arrays, out, stream)
        except CheckError as error:
            raise self.reported(error, arrays) from None

    def _call(self, arrays: tuple[object, ...], out: object, stream: object) -> Any:
        """A call by the general path. It leaves a fast path for the next call."""
        with compiling():  # modules are imported and machine code is loaded, under locks
            executable, views, outs, results = self._prepared(arrays, out)
            executable.load()
        executable.run(views, outs, stream)
        if "jax" in sys.modules and out is None:
            results = self._as_jax(executable, arrays, views, results)
        kind = executable, arrays and type(arrays[0])
        if not any(known == kind for _, _, known in self._fast):
            made = list(results) if len(outs) > 1 else [results]
            wrap = self._wrapped(executable)
            with compiling():
                call = fast_call.make(executable, arrays, views, made, wrap)
            if call is not None:
                call = call if self._by_class is None else self._by_class.counted(call, executable)
                known = call, executable, kind
                self._fast = (known, *self._fast[: MOST_FAST - 1]) if self._by_class is None else (known,)
                if self._by_class is not None:
                    self._sized.put(_shapes(arrays), known)
                    with compiling():
                        self._by_class.learn(arrays, executable, wrap)
        return results

    def _as_jax(self, executable: Executable, arrays: tuple[object, ...], views: Sequence[Buffer], results: Any) -> Any:
        """The results of a call as JAX's arrays, on the device of the first argument, if that is one. They take over the memory."""
        from tilec.runtime import buffers

        first = arguments.example(arrays, views, arguments.one_device(views))
        if not buffers.is_jax(first):
            return results
        made = list(results) if len(executable.outputs) > 1 else [results]
        names = [name for name, _, _ in executable.outputs]
        return self._wrapped(executable)([buffers.to_jax(m, first, name) for m, name in zip(made, names)])

    def reported(self, error: CheckError, arrays: Sequence[object]) -> CallError:
        """The error of a failed run-time check, with the index that was outside, found in this call's arrays."""
        from tilec.semantics.out_of_range import explained, on_host

        if error.deferred:
            return error
        views = arguments.views(self._declared.inputs, arrays)
        signature = tuple((v.dtype, tuple(v.shape)) for v in views)
        specialised = self._recipe(signature, self._sizes, self._resolve("cpu")).specialised
        return explained(error, specialised, {t.name: on_host(v) for t, v in zip(specialised.inputs, views)})

    def check(self) -> None:
        """Waits for all calls made so far, where the op was compiled with `deferred_checks=True`. Raises CallError for a
        run-time check that failed in one of them and was not raised yet."""
        for executable in list(self._built.values()):
            executable.check()

    def graph(self, /, *arrays: object, out: object = None, **named: object) -> Graph:
        """A call on GPU arrays as a CUDA graph: `graph.replay()` runs it again on the same arrays in one launch, and returns
        `graph.result`. The op runs once. Raises CallError for arrays that a graph cannot work on, and on the CPU."""
        executable, views, outs, results = self._prepared(self._in_order(arrays, named), out)
        return executable.graph(views, outs, results)

    def _in_order(self, arrays: tuple[object, ...], named: Mapping[str, object]) -> tuple[object, ...]:
        return arguments.in_order(self.name, self._declared.inputs, arrays, named)

    def _prepared(self, arrays: Sequence[object], out: object) -> tuple[Executable, list[Buffer], list[Buffer], Any]:
        """The executable of a call, its inputs and outputs as buffers, and the value that the call returns."""
        if self._donated:
            raise CallError("results of this op lie in the memory of its inputs: it is called by who sees to that")
        views = arguments.views(self._declared.inputs, arrays)
        device = arguments.one_device(views)
        if out is None:
            self._refuse_the_cpu(device)
        executable = self._executable(tuple((v.dtype, tuple(v.shape)) for v in views), device)
        outs, results = self._outputs(executable, arrays, views, out, device)
        return executable, views, outs, results

    def _wrapped(self, executable: Executable) -> Callable[[Sequence[object]], Any]:
        """A function from a call's new arrays to the value that the call returns."""
        names = tuple(name for name, _, _ in executable.outputs)
        if len(names) == 1:
            return itemgetter(0)
        return _result_tuple(self.name, names)._make

    def _outputs(
        self, executable: Executable, arrays: Sequence[object], views: Sequence[Buffer], out: object, device: Device
    ) -> tuple[list[Buffer], Any]:
        from tilec.runtime import buffers

        shapes = executable.outputs
        if out is None:
            example = arguments.example(arrays, views, device)
            made = [buffers.empty_like_kind(example, shape, dtype, device) for _, dtype, shape in shapes]
            outs = [buffers.view(m) for m in made]
        else:
            made, outs = arguments.given_results(self.name, shapes, out, views)
        return outs, self._wrapped(executable)(made)

    def _refuse_the_cpu(self, device: str | int) -> None:
        """Raises CallError, before anything is compiled, if results would be on the CPU and the target is a GPU."""
        if device == "cpu" and self._target is not None and (target := load(self._target)).kind == "cuda":
            from tilec.driver.cuda_executable import on_the_cpu

            raise on_the_cpu(target)

    # ---- building ----------------------------------------------------------------------------------------------------

    def _executable(self, key: tuple, device: str | int, sizes: Mapping[str, int] | None = None) -> Executable:
        full = (key, device)
        found = self._built.get(full)
        if found is None:
            with compiling(), self._lock:
                found = self._built.get(full)
                if found is None:
                    found = self._build(key, device, sizes)
                    if self._by_class is None:
                        self._built[full] = found
        self._latest = found
        return found

    def _build(self, inputs: Signature, device: str | int, sizes: Mapping[str, int] | None = None) -> Executable:
        target = self._resolve(device)
        if target.kind == "cpu" and device != "cpu":
            raise CallError(f"target '{target.name}' runs on the CPU, the arguments are on GPU {device}")
        if self._by_class is not None:
            return self._by_class.executable(inputs, target, sizes)
        return self._built_for(self._recipe(inputs, self._sizes, target))

    def _built_for(self, recipe: Recipe) -> Executable:
        with progress.reported(f"compiling {self.name}"):
            executable = build_executable(recipe)
        executable.deferred_checks = self._deferred_checks
        return executable

    def _recipe(
        self, inputs: Signature | None, sizes: Mapping[str, int], target: Target, of: Class | None = None
    ) -> Recipe:  # fmt: skip
        program = self._program.at(inputs) if isinstance(self._program, Spelled) else self._program
        return Recipe(program, self.name, inputs, sizes, target, self._schedule, self._donated, of)

    def _resolve(self, device: str | int) -> Target:
        if self._target is not None:
            return load(self._target)
        return load("cpu" if device == "cpu" else "cuda")

    def build(self, /, **sizes: int) -> Op:
        """Compiles for the given sizes now rather than at the first call; an op with declared types needs no arrays."""
        with compiling(), self._lock:
            self._latest = self._built_at(arguments.sizes(sizes))
        return self

    def _built_at(self, sizes: Mapping[str, int]) -> Executable:
        target = self._resolve("cpu" if self._target is None else "any")
        if self._by_class is not None:
            built = self._by_class.executable(None, target, sizes)
        else:
            built = self._built_for(self._recipe(None, {**self._sizes, **sizes}, target))
        key = tuple((dtype, shape) for _, dtype, shape in built.compiled.inputs)
        self._built[key, "cpu" if target.kind == "cpu" else 0] = built
        return built

    def warm(self, /, **sizes: int | Iterable[int]) -> Op:
        """Compiles ahead of calls, for the declared types: `op.warm(M=[1, 8, 64], N=range(1, 513))`. A size has a number or
        several; of several sizes all combinations are meant. Sizes that vary are compiled by class, each class once; `classes`
        tells which. Others are compiled for each number. Raises CallError for a number outside of its range."""
        several, target = arguments.several(sizes), self._resolve("cpu" if self._target is None else "any")
        for build in self._by_class.ahead(target, several) if self._by_class is not None else self._ahead(several):
            with compiling(), self._lock:
                built = build()
            with compiling():
                built.complete()
        return self

    def _ahead(self, several: Mapping[str, Sequence[int]]) -> Iterator[Callable[[], Executable]]:
        for chosen in product(*several.values()):
            yield partial(self._built_at, dict(zip(several, chosen)))

    def donated(self, pairs: Sequence[tuple[int, int]]) -> Op:
        """The op whose calls have results in the memory of inputs, by their numbers. Of such a result only what changes is stored
        (`passes/tensor/slice_updates.py`). It is not for calls by arrays: `build_for` makes what a compiled graph launches."""
        return Op(
            self._program, self._declared.name, self._sizes, self._target, self._schedule, self._deferred_checks, tuple(pairs),
            self._varies, self._specialise_after,
        )  # fmt: skip

    def recipe_for(self, inputs: Signature, device: str | int) -> Recipe:
        """What determines the compiled op for arguments of these types and shapes. `device`: "cpu" or a GPU's number."""
        return self._recipe(tuple(inputs), self._sizes, self._resolve(device))

    def build_for(self, inputs: Signature, device: str | int, sizes: Mapping[str, int] | None = None) -> Executable:
        """Compiles for arguments of these types and shapes now rather than at the first call. `device`: "cpu" or a GPU's number.
        `sizes`: those that the arguments do not tell, of an op whose sizes vary."""
        self._refuse_the_cpu(device)
        executable = self._executable(tuple(inputs), device, sizes)
        with compiling():
            executable.load()
        return executable

    def classes(self) -> list[Served]:
        """The classes of sizes that were compiled so far, of an op with `varies`; none of another one."""
        return self._by_class.served() if self._by_class is not None else []

    # ---- looking inside ----------------------------------------------------------------------------------------------

    def interpret(self, stage: str, /, *arrays: object, **named: object) -> Any:
        """Interprets the IR after `stage` on NumPy arrays, without a GPU. Returns results as a call does.

        Raises tilec.semantics.interpreter.Fault for invalid IR: a read of unwritten memory, a race, a deadlock.
        """
        from tilec.runtime import buffers
        from tilec.semantics.interpreted import interpret_stage

        views = arguments.views(self._declared.inputs, self._in_order(arrays, named))
        if arguments.one_device(views) != "cpu":
            raise CallError("the interpreter takes arrays on the CPU")
        signature, given = tuple((v.dtype, tuple(v.shape)) for v in views), [buffers.wrap(v) for v in views]
        specialised, lowered = self._recipe(signature, self._sizes, self._resolve("cpu")).lowered
        inputs = {t.name: a for t, a in zip(specialised.inputs, given)}
        found = tuple(interpret_stage(specialised, lowered.texts, stage, inputs).values())
        if len(found) == 1:
            return found[0]
        return _result_tuple(self.name, tuple(t.name for t in specialised.outputs))(*found)

    @property
    def _last(self) -> Executable:
        if self._latest is None:
            self.build()
        if not isinstance(found := self._latest, Executable):
            assert found is not None
            self._latest = found = found.executable()
        return found

    @property
    def _lowered(self) -> tuple[Specialised, Lowered]:
        """The latest specialisation, and the output of its stages."""
        with compiling():
            return self._last.recipe.lowered

    @property
    def stages(self) -> dict[str, str]:
        """MLIR text after every stage of the latest specialisation, by stage name."""
        return dict(self._lowered[1].texts)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self._last.kernels

    @property
    def plan(self) -> Plan:
        """The decisions behind the latest specialisation."""
        plan = self._lowered[1].plan
        assert plan is not None
        return plan

    def explain(self, kernel: str | None = None, *, full: bool = False) -> str:
        """A table of the kernels, longest first: what each computes, its predicted time and share, what bounds it, and its speed as
        a share of what the device's roofline allows. Of an op whose sizes vary, a table for each class that was compiled.

        `kernel`: all of one kernel instead, by its own name or that of a tensor that it writes. `full`: all of every kernel, and
        every decision with its reason. Both tell where kernels compiled for a GPU take more registers than planned. Raises
        CallError where no kernel has the name."""
        from tilec.plan.report.explain import Observed, explain, explain_kernel
        from tilec.plan.report.records import explanation
        from tilec.plan.report.short import COLUMNS, Ways, short
        from tilec.report.notebook import Explanation

        reports = []
        for executable in (self._by_class.compiled() if self._by_class is not None else ()) or (self._last,):
            with compiling():
                specialised, lowered = executable.recipe.lowered
            plan = lowered.plan
            assert plan is not None, "all stages ran"
            special, observed = specialised.at(plan.sizes), Observed(registers=executable.registers)
            if kernel is not None:
                text = explain_kernel(kernel, plan, special, observed)
            elif full:
                text = explain(plan, special, observed)
            else:
                text = short(explanation(plan, special, observed), Ways("explain(name)", "explain(full=True)"), COLUMNS)
            reports.append(f"{ranges_text(plan.varies)}, planned at these sizes:\n{text}" if plan.varies and full else text)
        return Explanation("\n".join(reports))

    def what_if(self, *statements: str) -> str:
        """What statements such as "bandwidth*2", "M = 1", "m apart from y" and "tile y = 64x64" would change, as
        `tilec explain --what-if` prints it: the plan of the latest specialisation beside that with all of them. Nothing is
        compiled, and the op stays as it is. Raises CallError for a statement that is not understood or cannot hold, and for an op
        whose sizes vary."""
        from tilec.driver.what_if import Problem, ask
        from tilec.plan.report.records import explanation
        from tilec.plan.report.short import COLUMNS
        from tilec.plan.report.what_if import what_if
        from tilec.plan.report.what_if_table import report
        from tilec.plan.schedule.read import read_schedule

        recipe = self._last.recipe
        if recipe.of is not None:
            raise CallError("what_if takes an op whose sizes are numbers", hint="compile it without `varies`")
        with compiling():
            schedule = None if recipe.schedule is None else read_schedule(recipe.schedule)
            problem = Problem(recipe.program.tree, recipe.op, recipe.sizes, recipe.target, recipe.inputs, schedule)
            before, after, changes, notes = ask(problem, statements)
            explained = explanation(before.plan, before.special), explanation(after.plan, after.special)
            return report(what_if(changes, notes, explained, (before.plan, after.plan)), COLUMNS)

    def report(self, path: str | PathLike[str] | None = None) -> str:
        """The page of `tilec report` on the latest specialisation: one HTML file, as text. `path`: where it is written, too.
        Kernels for a GPU are compiled first. Raises CallError where Jinja2 is not installed, OSError where the file cannot be
        written."""
        from tilec.report.page import page
        from tilec.report.subject import compiled_subject

        with compiling():
            specialised, lowered = self._last.recipe.lowered
            text = page(compiled_subject(specialised, lowered))
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def _restored(
    name: str, text: str, op: str, sizes: Mapping[str, int], target: str | None, schedule: Path | None,
    deferred_checks: bool, donated: tuple[tuple[int, int], ...] = (), folders: tuple[str, ...] = (),
    varies: Mapping[str, Varying] | None = None, specialise_after: int = 0,
) -> Op:  # fmt: skip
    """The op that was pickled."""
    program = Spelled.read(text, {}) if is_spelling(text) else read_program(Source(name, text, folders))
    return Op(program, op, sizes, target, schedule, deferred_checks, donated, varies, specialise_after)


@cache
def _result_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """The named tuple of several results. A result's name that Python does not allow (`class`, `_a`) becomes `_0`, `_1`,
    ... by position."""
    return namedtuple(name, fields, rename=True)


def _shapes(arrays: tuple[object, ...]) -> tuple[object, ...]:
    """Those of a call's arrays, and what kind the first one is."""
    try:
        return type(arrays[0]), *map(_SHAPE, arrays)
    except (AttributeError, IndexError):  # a number, or no array at all
        return type(arrays[0] if arrays else None), *(getattr(a, "shape", None) for a in arrays)


def compile(
    source: str | Path, *, op: str | None = None, sizes: Mapping[str, int] | None = None, target: str | None = None,
    schedule: str | Path | None = None, deferred_checks: bool = False, path: str | Path | Sequence[str | Path] = (),
    varies: Mapping[str, tuple[int, ...] | Varying] | Collection[str] | None = None, invariant: Collection[str] = (),
    specialise_after: int | None = None, **unknown: Never,
) -> Op:  # fmt: skip
    """Reads a program and returns its op, ready to call.

    `source`: path of a `.tile` file, program text in full or short form, or a spelling of einsum such as "ij,jk->ik". `op`: which
    op of the file, needed if it has several. `sizes`: values for some or all symbolic sizes. `target`: "cpu", "cuda", a chip, a
    model, or the path of a target file; by default the device of a call's arguments. `schedule`: a schedule file to obey; by
    default the one beside the program, if there is one. `deferred_checks`: on a GPU, a run-time check that fails (a gather
    outside its table) is raised by a later call or by `Op.check`, as a GPU's own faults are, and no call waits for its kernels.
    By default the call itself waits for its kernels and raises the error. `path`: a folder, or several, in which imports are
    looked for, too: imports lie below the folder of the file that imports them, or below one of these. `varies`: sizes whose
    numbers calls tell, with the least and the greatest of each, and what they are multiples of, if that is not 1: `{"M": (1,
    8192)}`. A call with any of these numbers then runs what was compiled for another one, of the same class
    (`tilec/driver/classes.py`). Names alone, or "all", take the ranges that the program declares: `f32[M: 1..8192]`. `invariant`:
    sizes, such as that of a batch, whose numbers leave the bits of results as they are: an element at some place of this
    dimension has the same bits in a batch of 1 and of 512, whatever the other rows are (docs/varying_sizes.md). They vary in the
    range that `varies` gives, or that the program declares.
    `specialise_after`: sizes that vary are compiled for exactly their numbers, in the background, once so many calls had them.
    Later calls run that; their results may have other bits than those before. By default this is never done.

    Raises TileError for mistakes in the program, all of them, each with its place; CallError for wrong options; TypeError
    for an option that does not exist. A call, or `Op.build`, raises CallError where a size cannot be invariant.
    """
    arguments.no_unknown("compile", unknown)
    for option, value in (("op", op), ("target", target)):
        arguments.text_option(option, value)
    known = arguments.sizes(sizes)
    if isinstance(source, str) and is_spelling(source):
        only_programs = {
            "sizes": known, "schedule": schedule, "path": path, "varies": varies, "invariant": invariant,
            "specialise_after": specialise_after,
        }  # fmt: skip
        return compiled(Spelled.read(source, only_programs), op=op, target=target, deferred_checks=deferred_checks)
    arguments.text_option("schedule", schedule, path=True)
    text = read_source(source, arguments.folders(path))
    with compiling():
        program = read_program(text, before=lambda: _load_compiler(target))
    return compiled(
        program, op=op, sizes=known, target=target, schedule=schedule, deferred_checks=deferred_checks, varies=varies,
        invariant=invariant, specialise_after=specialise_after,
    )  # fmt: skip


def compiled(
    program: Program | Spelled, *, op: str | None = None, sizes: Mapping[str, int] | None = None, target: str | None = None,
    schedule: str | Path | None = None, deferred_checks: bool = False,
    varies: Mapping[str, tuple[int, ...] | Varying] | Collection[str] | None = None, invariant: Collection[str] = (),
    specialise_after: int | None = None,
) -> Op:  # fmt: skip
    """An op of a program that was read; options as those of `compile`."""
    arguments.text_option("target", target)
    arguments.text_option("schedule", schedule, path=True)
    known = arguments.sizes(sizes)
    with compiling():
        if target is not None:
            load(target)
        obeyed = Path(schedule) if schedule is not None else _schedule_of(program.source)
        given = _ranges(program, op, varies or {}, invariant) if isinstance(program, Program) else {}
        if obeyed is not None:
            from tilec.plan.schedule.read import read_schedule

            found = read_schedule(obeyed)  # raises its mistakes
            if kept := [f"`{name}`" for name, v in given.items() if v.invariant]:
                hint = "its plans may add up in other orders: compile the program without a schedule file, or without `invariant`"
                raise CallError(f"{', '.join(kept)} cannot be invariant by a schedule file ({obeyed})", hint=hint)
            if given:
                from tilec.driver.each_class import check_classes

                check_classes(found, program.op(op).name, given)
    after = arguments.calls_before(specialise_after, given)
    return Op(program, op, known, target, obeyed, deferred_checks, varies=given, specialise_after=after)


def _ranges(
    program: Program, op: str | None, varies: Mapping[str, tuple[int, ...] | Varying] | Collection[str], invariant: Collection[str]
) -> dict[str, Varying]:
    """The sizes that vary, by name. Invariant ones without a range have the one that the program declares."""

    def declared(names: Collection[str]) -> dict[str, Varying]:
        from tilec.dsl.specialise import choose_op, ranges_of

        return ranges_of(choose_op(program.tree, op), names)

    found = arguments.ranges(varies if isinstance(varies, Mapping) else declared(varies))
    if missing := [name for name in arguments.sizes_listed("invariant", invariant) if name not in found]:
        found |= declared(missing)
    return {name: replace(v, invariant=name in invariant) for name, v in found.items()}


def _load_compiler(target: str | None) -> None:
    with suppress(CallError):  # mistakes of the program come first
        if target is not None:
            load_compiler(kind_of(target))


def interpret(
    source: str | Path, stage: str, *arrays: object, op: str | None = None, sizes: Mapping[str, int] | None = None,
    target: str | None = None, schedule: str | Path | None = None, path: str | Path | Sequence[str | Path] = (),
) -> Any:  # fmt: skip
    """Runs a program's IR after `stage` on NumPy arrays (see `Op.interpret`); options as those of `compile`."""
    return compile(source, op=op, sizes=sizes, target=target, schedule=schedule, path=path).interpret(stage, *arrays)


def _schedule_of(text: Source) -> Path | None:
    """The file `softmax.sched.toml` beside the program `softmax.tile`, or None."""
    path = Path(text.name)
    schedule = path.with_suffix(".sched.toml")
    return schedule if path.suffix == ".tile" and schedule.is_file() else None


__all__ = ["DTYPES", "Kernel", "Op", "compile"]

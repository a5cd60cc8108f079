"""A recipe: an op of a program, its sizes, types, target and schedule. It determines everything that is compiled.

A digest of the recipe is the key of the disk cache. An entry has all that a run needs: the launches, the kernels' sources,
and the shapes of results. `lower` makes everything else again when it is asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.core.diagnostics import InternalError
from tilec.core.dtypes import DTYPES, DType
from tilec.core.target import Target
from tilec.core.varying import Varies, evaluated, number
from tilec.driver.frontend import PROGRAMS, Program, ask_compiler
from tilec.process import progress
from tilec.process.collection import uncollected
from tilec.process.logs import log
from tilec.process.reading import read_bytes
from tilec.runtime import cache
from tilec.runtime.program import Amount, Emitted, KernelSource

if TYPE_CHECKING:
    from tilec.driver.classes import Class
    from tilec.driver.lowering import Lowered, OnKernel
    from tilec.dsl import ast
    from tilec.dsl.specialise import Specialised
    from tilec.plan.schedule.read import Schedule
    from tilec.runtime.cuda.cubins import CompilationsInFlight

Shape = tuple[Amount, ...]
Signature = Sequence[tuple[DType, Shape]]
Named = tuple[str, DType, Shape]
Json = dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """The data of an op's run, before machine code. `predicted_us`: the cost model's times by kernel. `registers`: the
    plan's register limits by kernel. `cost`: of invariant sizes, in words. `in_flight`: kernels that are compiled already."""

    inputs: tuple[Named, ...]
    outputs: tuple[Named, ...]
    emitted: Emitted
    predicted_us: dict[str, float]
    registers: dict[str, int]
    cost: str = ""
    in_flight: CompilationsInFlight | None = field(default=None, compare=False)

    def at(self, sizes: Mapping[str, int]) -> Compiled:
        """What a class of sizes has been compiled to, at some of them."""

        from tilec.runtime.sized import at

        def shaped(named: tuple[Named, ...]) -> tuple[Named, ...]:
            return tuple((name, dtype, tuple(number(n, sizes) for n in shape)) for name, dtype, shape in named)

        return replace(self, inputs=shaped(self.inputs), outputs=shaped(self.outputs), emitted=at(self.emitted, sizes))


class Recipe:
    """One op for one set of sizes and types (`inputs`; None where its declaration says all), on one target. It may be for all sizes
    of a class, `of`; inputs then have texts for extents that vary."""

    def __init__(
        self, program: Program, op: str, inputs: Signature | None, sizes: Mapping[str, int], target: Target,
        schedule: Path | None = None, donated: Sequence[tuple[int, int]] = (), of: Class | None = None,
    ):  # fmt: skip
        """`donated`: numbers of results, and of the inputs in whose memory calls have them."""
        self.donated = tuple(donated)
        self.program, self.op, self.inputs, self.sizes = program, op, inputs, dict(sizes)
        self.target, self.schedule, self.of = target, schedule, of
        self._made: Compiled | None = None

    @cached_property
    def key(self) -> str:
        shapes = [[d.name, *shape] for d, shape in self.inputs] if self.inputs is not None else None
        schedule = read_bytes(self.schedule) if self.schedule else b""
        written = json.dumps([self.op, shapes, self.sizes, *self.donated, *([str(self.of)] if self.of else [])], sort_keys=True)
        return cache.make_key("op", self.program.digest, written, repr(self.target), schedule)

    def __str__(self) -> str:
        found = [str(self.of)] if self.of is not None else [f"{name} = {n}" for name, n in self.sizes.items()]
        if not found and self.inputs is not None:
            found = [f"{dtype.name}[{', '.join(map(str, shape))}]" for dtype, shape in self.inputs]
        return f"{self.op} for {self.target.name} with {', '.join(found)}" if found else f"{self.op} for {self.target.name}"

    def compiled(self) -> Compiled:
        """From the disk cache, or by running the compiler. Raises TileError if the program or the target does not allow it."""
        if self._made is not None:
            return self._made
        found = cache.load(self.key)
        log("cache", f"{self} {'is in the disk cache' if found is not None else 'is compiled'}")
        if found is not None:
            if "varies" in found[0]:
                raise Varies(found[0]["varies"])
            try:
                return _read(json.loads(found[1]["program"]))
            except (KeyError, TypeError, ValueError, AttributeError):
                pass
        load_compiler(self.target.kind)
        try:
            made = self._elsewhere() or self.compiled_here()
        except Varies as error:
            cache.save(self.key, {"op": self.op, "varies": str(error)}, {})
            raise
        cache.save(self.key, {"op": self.op}, {"program": json.dumps(written(made)).encode()})
        return made

    def _elsewhere(self) -> Compiled | None:
        """By the process that compiles programs (`tilec/driver/program_compiler.py`), if there is one and it can. Raises Varies."""
        progress.at(f"planning {self.op}")
        wanted = self._wanted()
        if self.target.kind != "cuda":
            return _program_of(ask_compiler(self.program.source, wanted) or {})
        from tilec.runtime.cuda.cubins import CompilationsInFlight

        with CompilationsInFlight(self.target.chip) as in_flight:
            made = _program_of(ask_compiler(self.program.source, wanted, partial(_submit, in_flight)) or {})
        return made and replace(made, in_flight=in_flight)

    def _wanted(self) -> dict[str, object]:
        """What another process is asked for."""
        return {
            "op": self.op, "inputs": None if self.inputs is None else [[d.name, shape] for d, shape in self.inputs],
            "sizes": self.sizes,
            "target": json.dumps(self.target.to_dict()), "schedule": self.schedule and str(self.schedule.resolve()),
            "donated": self.donated, "of": self.of and asdict(self.of),
        }  # fmt: skip

    def compile_by(self, compiler: str) -> None:
        """Has `compiled` return what a process of that module makes, or what the disk cache has. Does nothing where that cannot be
        had, such as for a program that imports files: `compiled` then runs the compiler here."""
        from tilec.process import compile_server

        if self.program.imports or cache.load(self.key) is not None:
            return
        source = self.program.source
        wanted = {"name": source.name, "text": source.text, "kind": self.target.kind, **self._wanted()}
        reply = compile_server.ask(compiler, wanted)
        if reply is not None and "program" in reply:
            self._made = _read(reply["program"])
            cache.save(self.key, {"op": self.op}, {"program": json.dumps(reply["program"]).encode()})

    def compiled_here(self, on_kernel: OnKernel | None = None) -> Compiled:
        """By this process, whatever is in the cache. `on_kernel`: see `lower`. Raises TileError if the program or the target does
        not allow it."""
        with uncollected():
            return self._compile(on_kernel)

    def _compile(self, on_kernel: OnKernel | None = None) -> Compiled:
        specialised, lowered = self._without_texts(on_kernel)
        assert lowered.plan is not None and lowered.emitted is not None, "all stages ran"
        predicted = {name: p.time_us for name, p in lowered.plan.predictions.items()}
        inputs, outputs = (_named(tensors, specialised) for tensors in (specialised.inputs, specialised.outputs))
        return Compiled(inputs, outputs, lowered.emitted, predicted, lowered.plan.registers, lowered.plan.cost_of_invariance)

    @cached_property
    def specialised(self) -> Specialised:
        """The op with numbers for sizes."""
        from tilec.dsl.specialise import specialise

        progress.at(f"working out ranges and types of {self.op}")
        varies = dict(self.of.ranges) if self.of else {}
        terms = {name: v.term(name) for name, v in varies.items()}
        inputs = None
        if self.inputs is not None:
            inputs = [(d, tuple(evaluated(n, terms) if isinstance(n, str) else n for n in shape)) for d, shape in self.inputs]
        return specialise(self.program.tree, self.op, inputs, self.sizes, checked=True, varies=varies)

    @cached_property
    def lowered(self) -> tuple[Specialised, Lowered]:
        """The op with numbers for sizes, and its IR after every stage."""
        return self._lowered(texts=True)

    def _without_texts(self, on_kernel: OnKernel | None) -> tuple[Specialised, Lowered]:
        """As `lowered`, if that is known; else without the IR after every stage, which takes a fifth of the time. A defect of
        tilec's is found again with it, for the report."""
        if "lowered" in vars(self):
            return self.lowered
        try:
            return self._lowered(texts=False, on_kernel=on_kernel)
        except InternalError:
            return self.lowered

    def _lowered(self, texts: bool, on_kernel: OnKernel | None = None) -> tuple[Specialised, Lowered]:
        from tilec.core import mlir
        from tilec.driver.lowering import lower
        from tilec.dsl.build import build
        from tilec.plan.report.expectations import check_expectations

        specialised = self.specialised
        with mlir.context(), mlir.ir.Location.unknown():
            progress.at("in stage 'build'")
            module = build(specialised, self.donated)
            lowered = lower(module, self.target, schedule=_schedule(self.schedule), texts=texts, on_kernel=on_kernel,
                            at=self.of.typical if self.of else None)
        assert lowered.plan is not None
        check_expectations(specialised.at(lowered.plan.sizes), lowered.plan)
        return specialised, lowered


class Prepared(Recipe):
    """An op that is lowered already, so that nothing of the disk cache is asked."""

    def __init__(self, specialised: Specialised, lowered: Lowered, target: Target):
        self.target, self.lowered = target, (specialised, lowered)

    def compiled(self) -> Compiled:
        load_compiler(self.target.kind)
        return self._compile()


def load_compiler(kind: str) -> None:
    """Has the compiler of kernels for a kind of target loaded by its own process, while this one goes on."""
    from tilec.process import compile_server

    if (compiler := _kernel_compiler(kind)) is not None:
        compile_server.start(compiler)


def load_compilers(kind: str) -> None:
    """As `load_compiler`, and has that of programs loaded, too, which compiles all that is compiled from then on. Both are loaded
    when they are needed, if the latest run of the same command found all in the cache."""
    from tilec.process import compile_server

    found = cache.load(_command(kind), local=True)
    if found is not None and not found[0].get("compiled", True):
        compile_server.promise(PROGRAMS)
        return
    compile_server.start(PROGRAMS)
    load_compiler(kind)


def end_unused_compilers(kind: str) -> None:
    """Ends what `load_compilers` started, if nothing was compiled since: all was in the cache. The cache remembers that for the
    next run of the command."""
    from tilec.process import compile_server

    used = [compile_server.end_unused(each) for each in (PROGRAMS, _kernel_compiler(kind)) if each is not None]
    found = cache.load(key := _command(kind), local=True)
    if found is None or found[0].get("compiled") != any(used):
        cache.save(key, {"compiled": any(used)}, {}, local=True)


def _command(kind: str) -> str:
    """The key of what is known of this command: of its arguments, for this version of tilec."""
    return cache.make_key("command", cache.compiler_digest(), kind, *sys.argv)


def _kernel_compiler(kind: str) -> str | None:
    """The compiler of kernels as a process of its own; None where this process compiles them."""
    if kind == "cuda":
        return "tilec.runtime.cuda.compile"
    from tilec.runtime.cpu.objects import COMPILER, compiles_here

    return None if compiles_here() else COMPILER


def _schedule(path: Path | None) -> Schedule | None:
    if path is None:
        return None
    from tilec.plan.schedule.read import read_schedule

    return read_schedule(path)


def _named(tensors: Sequence[ast.Tensor], op: Specialised) -> tuple[Named, ...]:
    from tilec.core.extents import amount
    from tilec.dsl import ast
    from tilec.dsl.varying_sizes import shape_terms

    return tuple((t.name, ast.dtype_of(t), tuple(amount(n, op.varies) for n in shape_terms(t))) for t in tensors)


def written(made: Compiled) -> Json:
    """As JSON can say it."""

    def tensors(named: tuple[Named, ...]) -> list[list[Any]]:
        return [[name, dtype.name, shape] for name, dtype, shape in named]

    return {
        "inputs": tensors(made.inputs), "outputs": tensors(made.outputs), "emitted": made.emitted.to_json(),
        "predicted_us": made.predicted_us, "registers": made.registers,
        "cost": made.cost,
    }  # fmt: skip


def part(registers: Mapping[str, int], module: str, kernel: KernelSource) -> Json:
    """A kernel, as JSON can say it, that is to be compiled while others are still printed. An `OnKernel` of `lower`."""
    return {"module": module, "kernel": asdict(kernel), "registers": registers.get(kernel.name)}


def _program_of(reply: Json) -> Compiled | None:
    """The program of a reply, or None. Raises Varies where the reply says that sizes cannot vary."""
    if "varies" in reply:
        raise Varies(reply["varies"])
    return _read(reply["program"]) if "program" in reply else None


def _submit(in_flight: CompilationsInFlight, kernel: Json) -> None:
    in_flight.submit(kernel["module"], KernelSource.from_json(kernel["kernel"]), kernel["registers"])


def _read(fields: Json) -> Compiled:
    inputs, outputs = (
        tuple((name, DTYPES[dtype], tuple(shape)) for name, dtype, shape in fields[which])
        for which in ("inputs", "outputs")
    )
    emitted = Emitted.from_json(fields["emitted"])
    return Compiled(inputs, outputs, emitted, fields["predicted_us"], fields["registers"], fields["cost"])

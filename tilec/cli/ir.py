"""`tilec dump`, `tilec opt` and `tilec emit`: print the IR after every stage, continue from it, and print the kernels.

A dumped text begins with a line that names its stage and target. `opt` needs nothing else:

    // tilec stage: tile, target: cpu
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.cli import common
from tilec.cli.common import STAGES, coloured, note, prepare, show, stage_name, write, write_file
from tilec.core.diagnostics import CallError, InternalError
from tilec.core.varying import Varies, ranges_text
from tilec.process.printable import is_terminal
from tilec.process.reading import MOST_IR_BYTES

if TYPE_CHECKING:
    from tilec.core.mlir import ir
    from tilec.core.target import Target
    from tilec.driver.lowering import Lowered
    from tilec.runtime.program import Cubin, Emitted

_HEADER = re.compile(r"^// tilec stage: (\w+), target: (.+)$", re.MULTILINE)


def header(stage: str, target: str) -> str:
    return f"// tilec stage: {stage}, target: {target}\n"


def read_header(text: str) -> tuple[str | None, str | None]:
    """Stage and target of a dumped text, where it says so."""
    found = _HEADER.search(text)
    return (found[1], found[2]) if found else (None, None)


# ---- dump ------------------------------------------------------------------------------------------------


def dump(args: argparse.Namespace) -> int:
    after = args.after and stage_name(args.after, ("emit",))
    loaded = _of_one_class(args)
    with_locations = args.locations or args.output is not None
    lowered = common.lower(loaded, locations=with_locations)
    texts = {name: header(name, args.target) + text for name, text in lowered.texts.items()}
    assert lowered.emitted is not None, "all stages ran"
    kernels = lowered.emitted.module
    if args.output is not None:
        _dump_files(args.output, {n: t for n, t in texts.items() if after in (None, n)}, kernels)
    elif after:
        write(None, kernels if after == "emit" else texts[after])
    elif coloured(sys.stdout):
        _show_changes(lowered, kernels)
    else:
        write(None, "// -----\n".join(texts.values()))
    return 0


def _of_one_class(args: argparse.Namespace) -> common.Loaded:
    """The program for the sizes that are given; where these vary, for one class of them, with a note if there are others."""
    loaded, varies = prepare(args, ranges=True), common.varying(args)
    if loaded.of is not None and dict(loaded.of.ranges) != varies:
        note(f"this is the class {loaded.of}, of {ranges_text(varies)}")
    return loaded


def _dump_files(folder: Path, texts: dict[str, str], kernels: str) -> None:
    """`00-build.mlir` to `07-map.mlir`, and `kernels.py`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallError(f"cannot make the folder '{folder}': {error.strerror}") from None
    numbers = {name: n for n, name in enumerate(STAGES.split())}
    for name, text in texts.items():
        write_file(folder / f"{numbers[name]:02}-{name}.mlir", text.encode())
    write_file(folder / "kernels.py", kernels.encode())


def _show_changes(lowered: Lowered, kernels: str) -> None:
    """Every stage on a terminal: new and changed lines are green."""
    from tilec.passes import stages

    summaries = {s.name: s.summary for s in stages(lambda op: None)}
    before: list[str] = []
    for name, text in lowered.texts.items():
        lines = text.rstrip("\n").split("\n")
        fresh, gone = changed_lines(before, lines)
        took = f"{1e3 * lowered.seconds[name]:.1f} ms, " if name in lowered.seconds else ""
        change = f"{took}{len(fresh)} new lines, {gone} gone" if before else f"{len(lines)} lines"
        heading = f"── {name}: {summaries.get(name, 'the program as written')}  ({change})"
        show(heading, [(r"  \(.*\)$", "dim"), (r"^──.*?(?=  \()", "bold")])
        for number, line in enumerate(lines):
            show(line, [(r"^.+$", "green")] if before and number in fresh else None)
        show("")
        before = lines
    show("── emit: the kernels", [(r"^.*$", "bold")])
    show(kernels)


def changed_lines(before: list[str], after: list[str]) -> tuple[set[int], int]:
    """Which lines of `after` are new, and how many of `before` are gone; numbers of values do not count."""
    old, new = ([re.sub(r"%[\w#:]+|#map\d*", "%", line.strip()) for line in lines] for lines in (before, after))
    fresh, gone = set(), 0
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            fresh |= set(range(c, d))
            gone += b - a
    return fresh, gone


# ---- opt -------------------------------------------------------------------------------------------------


def opt(args: argparse.Namespace) -> int:
    """Reads a dumped file and goes on behind its stage."""
    source = common.read_text(args.file, most=MOST_IR_BYTES)
    text, name = source.text, source.shown
    stage, machine = read_header(text)
    start, target = args.from_ or stage, args.target or machine or "cpu"
    if args.passes is not None:
        result = _upstream(text, args.passes, name)
        write(args.output, (header(stage, target) if stage else "") + result)
        return 0
    if start is None:
        hint = "say after which stage it was dumped: --from STAGE"
        raise CallError(f"'{args.file}' has no line `// tilec stage: …`", hint=hint)
    end = stage_name(args.to or "emit", ("emit",))
    write(args.output, _carry_on(text, name, stage_name(start), end, target, args.target is not None))
    return 0


def _carry_on(text: str, name: str, start: str, end: str, target: str, asked: bool) -> str:
    """The IR after stage `end`, or for "emit" the kernels. `name` is the file's; `asked` whether the target was given."""
    from tilec.core import mlir
    from tilec.core.targets import load
    from tilec.driver.lowering import lower

    order = (*STAGES.split(), "emit")
    if order.index(end) <= order.index(start):
        raise CallError(f"stage '{end}' does not come after '{start}'")
    following = order[order.index(start) + 1]
    with common.working(f"{following} to {end}"), mlir.context(), mlir.ir.Location.unknown():
        module, machine = parse_text(text, name), load(target)
        if len([f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]) != 1:
            raise CallError(f"'{name}' must have one function that is not a kernel: the program")
        demand_attributes(module, start, name)
        if order.index(start) >= order.index("plan"):
            _demand_planned(module, start, machine, target if asked else None)
        last = "map" if end == "emit" else end
        at = _planned_at(module)
        try:
            lowered = lower(module, machine, begin=following, end=last, emit=end == "emit", at=at)
        except Varies as error:
            raise CallError(f"there is no program for all sizes of this IR: {error}", hint="dump it with numbers: -D M=…") from None
        except InternalError as error:
            hint = (
                f"it is a defect of tilec if stage '{start}' left the file as it is; TILEC_DEBUG=1 shows the traceback"
            )
            raise CallError(f"on this IR {_first_messages(error)}", hint=hint) from error
    if end != "emit":
        return header(end, target) + lowered.texts[end]
    assert lowered.emitted is not None, "the stage that was asked for"
    return lowered.emitted.module


def _planned_at(module: ir.Module) -> dict[str, int] | None:
    """The numbers at which the program of a module is planned, whose sizes vary; None where they do not."""
    from tilec.core import extents, mlir
    from tilec.driver.classes import typical_sizes

    (function,) = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
    return typical_sizes(extents.sizes_of(function)) or None


def _demand_planned(module: ir.Module, start: str, machine: Target, asked: str | None) -> None:
    """Raises CallError unless the module holds the decisions of stage `plan` for this target."""
    found = {}
    for attribute in ("tilec.kernels", "tilec.target", "tilec.backend"):
        if attribute not in module.operation.attributes:
            what = f"the module has no attribute `{attribute}`, which stage 'plan' writes"
            raise CallError(what, hint=f"give the stage that it was really dumped after; it is not '{start}'")
        found[attribute] = str(module.operation.attributes[attribute]).strip('"')
    backend, planned = found["tilec.backend"], found["tilec.target"]
    if backend != machine.kind or (asked and planned != machine.name):
        what = f"the module was planned for {planned}, which cannot be changed to {asked or machine.name} after stage 'plan'"
        raise CallError(what, hint="dump the program again with --target, or carry on from stage 'simplify'")


def demand_attributes(module: ir.Module, stage: str, name: str) -> None:
    """A text's module has no attributes but those that may be there after a stage; `name` is the file's. Raises CallError."""
    from tilec.kernels.verifier import Verifier

    if (fault := Verifier().fault(module.operation, stage, ended=True)) is not None:
        hint = f"docs/architecture.md has a table of all attributes; stage '{stage}' left '{name}'"
        raise CallError(f"in '{name}', {fault}", hint=hint)


def parse_text(text: str, name: str) -> ir.Module:
    """The module of a text, in the current MLIR context; messages call it by its name. Raises CallError."""
    from tilec.core import mlir

    try:
        module = mlir.parse(text)
    except mlir.ir.MLIRError as error:
        messages = _first_messages(error).replace('"-":', f"{name}:")  # which is what MLIR calls a text
        raise CallError(f"'{name}' is not valid MLIR: {messages}") from None
    for op in mlir.traverse(module.operation):
        for attribute in op.attributes:
            try:
                _read_all(op.attributes[attribute])
            except TypeError:  # MLIR's bindings have no class for it, such as an array of i640
                hint = "no stage writes such a type: dump the file again"
                raise CallError(f"in '{name}', `{attribute}` on {op.name} has a type that tilec cannot read", hint=hint) from None
    return module


def _read_all(attribute: ir.Attribute) -> None:
    """Reads what is in an attribute. Raises TypeError."""
    from tilec.core.mlir import ir

    if isinstance(attribute, ir.DictAttr):
        for entry in attribute:
            _read_all(entry.attr)
    elif isinstance(attribute, ir.ArrayAttr):
        for item in attribute:
            _read_all(item)


def _first_messages(error: Exception) -> str:
    return "\n".join(str(error).strip().splitlines()[:12])


def _upstream(text: str, passes: str, name: str) -> str:
    """The IR after passes of upstream's, by their registered names."""
    from tilec.core import mlir

    with mlir.context(), mlir.ir.Location.unknown():
        module = parse_text(text, name)
        try:
            manager = mlir.PassManager.parse(f"builtin.module({passes})")
        except (ValueError, mlir.ir.MLIRError) as error:
            raise CallError(f"no such pipeline '{passes}': {_first_messages(error)}") from None
        try:
            manager.run(module.operation)
        except mlir.ir.MLIRError as error:
            raise CallError(f"'{passes}' failed: {_first_messages(error)}") from None
        return mlir.text(module, locations=True)


# ---- emit ------------------------------------------------------------------------------------------------


def emit(args: argparse.Namespace) -> int:
    loaded = _of_one_class(args)
    if args.form in ("ptx", "cubin") and loaded.target.kind != "cuda":
        hint = "give a GPU: --target cuda, sm_80, sm_90a, h200, …"
        raise CallError(f"the target '{loaded.target.name}' has no {args.form}", hint=hint)
    lowered = common.lower(loaded)
    write(args.output, _form(args, loaded, lowered))
    return 0


def _form(args: argparse.Namespace, loaded: common.Loaded, lowered: Lowered) -> str | bytes:
    """The program, or one kernel of it, in the form that was asked for."""
    assert lowered.emitted is not None, "all stages ran"
    names = _chosen(lowered.emitted, args.kernel)
    match args.form:
        case "mlir":
            return header("map", args.target) + lowered.texts["map"]
        case "numba" if args.kernel:
            return lowered.emitted.launched[args.kernel].text + "\n"
        case "numba":
            return lowered.emitted.module
        case "ptx":
            cubins = _cubins(loaded, lowered)
            return "\n".join(cubins[name].ptx for name in names)
    if len(names) != 1:
        what = f"a cubin holds one kernel, but the program has {len(names)}"
        raise CallError(what, hint=f"--kernel, one of {', '.join(names)}")
    if args.output is None and is_terminal(sys.stdout):
        raise CallError("a cubin is binary, and not printed on a terminal", hint="write it to a file: -o FILE")
    return _cubins(loaded, lowered)[names[0]].image


def _chosen(emitted: Emitted, name: str | None) -> list[str]:
    """The names under which kernels were compiled: of all, or of the one that the plan calls `name`."""
    if name is None:
        return [k.name for k in emitted.kernels]
    if name not in emitted.launched:
        raise CallError(f"there is no kernel '{name}'", hint=f"the kernels are {', '.join(emitted.launched)}")
    return [emitted.launched[name].name]


def _cubins(loaded: common.Loaded, lowered: Lowered) -> dict[str, Cubin]:
    """Every kernel's cubin by name; no GPU is needed."""
    from tilec.runtime.cuda.compile import CompileError, ResourceError
    from tilec.runtime.cuda.cubins import program_cubins

    assert lowered.plan is not None and lowered.emitted is not None, "all stages ran"
    try:
        with common.working(f"compiling for {loaded.target.chip}"):
            return program_cubins(lowered.emitted, loaded.target.chip, lowered.plan.registers)
    except (CompileError, ResourceError) as error:
        raise InternalError(str(error), "emit", lowered.texts["map"]) from error

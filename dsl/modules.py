"""Imports and the standard library: the declarations that a program sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tilec.core.diagnostics import Note, Source, TileError
from tilec.core.dtypes import DTYPES
from tilec.core.functions import FUNCTIONS
from tilec.dsl import ast, std
from tilec.dsl.check_scope import Module, Report, calls_itself
from tilec.dsl.parse import MAX_BYTES, parse
from tilec.dsl.parse_tree import REDUCTIONS, SCANS
from tilec.process.reading import read_bytes

MAX_UNFOLDED = 10_000
"""Equations of an op and of all that it calls."""
MAX_CALLED = 100
"""Ops that call each other, one in the other."""

Loader = Callable[[str, Source], Source]  # the path in the `import`, and the text that holds it
_FUNCTIONS = {name for name, row in FUNCTIONS.items() if not row.added}
_BUILT_IN = {*_FUNCTIONS, *REDUCTIONS, *SCANS, *DTYPES, "pad"}


def locations(path: str, importer: Source) -> list[Path]:
    """Where an imported file may be, in the order in which it is looked for."""
    return [folder / path for folder in (Path(importer.name).parent, *map(Path, importer.folders))]


def load_file(path: str, importer: Source) -> Source:
    """The text of a program next to the one that imports it, or in one of its `folders`; read as text and nothing more. It lies
    below one of these: a program shows nothing of other files of the machine. Raises OSError."""
    if Path(path).is_absolute():
        raise OSError("the path must be relative to this file")
    if not path.endswith(".tile"):
        raise OSError("the name of a program ends in `.tile`")
    folders = (Path(importer.name).parent, *map(Path, importer.folders))
    looked = locations(path, importer)
    target = next((found for found in looked if found.is_file()), looked[0])
    inside = [f.resolve() for f in (*folders, Path(importer.name).resolve().parent)]
    if not any(target.resolve().is_relative_to(folder) for folder in inside):
        raise OSError("it is not below the folder of this file, or one that `--path` names (in Python, `path=`)")
    if not target.is_file():
        raise OSError("there is no such file")
    return Source(str(target), read_bytes(target, MAX_BYTES).decode("utf-8"), importer.folders)


@cache
def standard_library() -> Module:
    module = Module(parse(Source("std.tile", std.text())))
    module.defs = {d.name: (d, module) for d in module.program.defs}
    return module


def load(
    program: ast.Program, report: Report, loader: Loader = load_file, above: tuple[str, ...] = (),
    known: dict[str, Module | None] | None = None,
) -> Module:  # fmt: skip
    """The module of a program, its imports loaded, each file once; their mistakes are reported. `known`: files loaded so far."""
    module = Module(program, dict(standard_library().defs))
    above, known = (*above, _identity(program.span.source)), {} if known is None else known
    for import_ in program.imports:
        imported = _import(import_, program.span.source, report, loader, above, known)
        if imported is not None:
            module.defs |= {d.name: (d, imported) for d in imported.program.defs}
            module.ops |= {o.name: (o, imported) for o in imported.program.ops}
    _declare(module, report)
    if not _refuse_cycles(module, report):
        _refuse_explosions(module, report)
    return module


def _identity(source: Source) -> str:
    return str(Path(source.name).resolve()) if source.name[:1] != "<" else source.name


def _import(
    import_: ast.Import, importer: Source, report: Report, loader: Loader, above: tuple[str, ...], known: dict[str, Module | None]
) -> Module | None:  # fmt: skip
    try:
        source = loader(import_.path, importer)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or str(error)
        report.error(f"cannot import `{import_.path}`: {reason}", import_.span)
        return None
    if (identity := _identity(source)) in above:
        report.error(f"`{import_.path}` imports itself, by way of this file", import_.span)
        return None
    if len(above) > 32:
        report.error("imports are nested more than 32 deep", import_.span)
        return None
    if identity in known:
        return known[identity]
    known[identity] = None
    try:
        program = parse(source)
    except TileError as error:
        for d in error.diagnostics:
            report.error(d.message, d.span, d.notes, d.hint)
        return None
    if any(op.name == "main" and not op.span.source.text[op.span.start :].startswith("op") for op in program.ops):
        report.error(f"`{import_.path}` is in the short form: it holds no op to import", import_.span)
        return None
    known[identity] = load(program, report, loader, above, known)
    return known[identity]


def _refuse_explosions(module: Module, report: Report) -> None:
    """Ops that call ops that call ops multiply: what each unfolds to is counted before anything is unfolded."""
    own = {op.name: op for op in module.program.ops}
    pending = list(own)
    while pending:
        op = own[pending[-1]]
        callees = [module.ops[name] for name in _called(op) if name in module.ops]
        later = [c.name for c, home in callees if home is module and c.name not in module.unfolded]
        if later:
            pending += dict.fromkeys(later)
            continue
        pending.pop()
        if op.name in module.unfolded:
            continue
        parts = [home.unfolded.get(c.name, (1, 1)) for c, home in callees]
        count = len(op.body) - len(callees) + sum(n for n, _ in parts)
        depth = 1 + max((d for _, d in parts), default=0)
        if count > MAX_UNFOLDED or depth > MAX_CALLED:
            what = f"unfolds to {count} equations" if count > MAX_UNFOLDED else f"calls ops {depth} deep"
            limit = MAX_UNFOLDED if count > MAX_UNFOLDED else MAX_CALLED
            report.error(f"`{op.name}` {what}, with the ops that it calls; the limit is {limit}", op.span)
            count, depth = 1, 1  # ops that call it have no mistake of their own
        module.unfolded[op.name] = count, depth


def _refuse_cycles(module: Module, report: Report) -> bool:
    """Ops that call each other in a circle, each circle once. Imports have none, so it is closed within one file. Returns whether
    there is one."""
    mistakes = report.count
    own = {op.name: op for op in module.program.ops}
    calls = {
        name: [c for c in dict.fromkeys(_called(op)) if module.ops.get(c, (None,))[0] is own.get(c)]
        for name, op in own.items()
    }
    done: set[str] = set()
    for first in own:
        path: list[str] = []
        pending = [iter([first])]
        while pending:
            name = next(pending[-1], None)
            if name is None:
                pending.pop()
                done |= set(path[len(pending) - 1 :])
                del path[max(0, len(pending) - 1) :]
            elif name in path:
                report.error(calls_itself(path[path.index(name) :]), own[name].span)
            elif name in calls and name not in done:
                path.append(name)
                pending.append(iter(calls[name]))
    return report.count > mistakes


def _called(op: ast.Op) -> Iterator[str]:
    for statement in op.body:
        match statement:
            case ast.OpCall(op=name) | ast.Equation(value=ast.Call(function=name)):
                yield name


def _declare(module: Module, report: Report) -> None:
    """Makes a program's own declarations visible, over imported ones and the library's; each name once."""
    seen: dict[str, ast.Def | ast.Op] = {}
    declarations: tuple[ast.Def | ast.Op, ...] = (*module.program.defs, *module.program.ops)
    for declaration in declarations:
        name = declaration.name
        if name in seen:
            note = Note("the first one is here", seen[name].span)
            report.error(f"`{name}` is defined twice", declaration.span, [note])
            continue
        seen[name] = declaration
        if name in _BUILT_IN:
            report.error(f"`{name}` is built in", declaration.span, hint="choose another name")
        elif isinstance(declaration, ast.Def):
            module.defs[name] = (declaration, module)
            module.ops.pop(name, None)
        else:
            module.ops[name] = (declaration, module)
            module.defs.pop(name, None)

"""Tools of the subcommands: common options, loading of programs, output to terminals and files.

No heavy module is imported at the top, so that `tilec --help` starts at once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tilec.core.diagnostics import CallError, Diagnostic, InternalError, Source, Span, TileError, printable_message
from tilec.core.varying import Varies, Varying
from tilec.process import progress
from tilec.process.atomic_files import replace_file
from tilec.process.printable import is_terminal, printable
from tilec.process.reading import MOST_BYTES, limited

if TYPE_CHECKING:
    from tilec.core.target import Target
    from tilec.driver.classes import Class
    from tilec.driver.lowering import Lowered
    from tilec.dsl.ast import Op, Program
    from tilec.dsl.specialise import Argument, Specialised
    from tilec.plan.model import Plan
    from tilec.plan.schedule.read import Schedule

STAGES = "build simplify plan fuse tile bufferize stage map"  # of `passes.NAMES`, whose import takes half a second


# ---- options ---------------------------------------------------------------------------------------------


def sizes(text: str) -> dict[str, int | Varying]:
    """`M=4096`, `M=1..8192`, `M=8..8192 by 8`, or several with commas between."""
    found: dict[str, int | Varying] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals or not name.strip().isidentifier():
            raise argparse.ArgumentTypeError(f"'{item}' is not NAME=NUMBER")
        low, dots, rest = value.partition("..")
        high, _, multiple = rest.partition(" by ")
        if not dots:
            found[name.strip()] = _number(value, item)
            continue
        varying = Varying(_number(low, item), _number(high, item), _number(multiple, item) if multiple else 1)
        if varying.empty:
            raise argparse.ArgumentTypeError(f"no number is in the range of '{item}'")
        found[name.strip()] = varying
    return found


def _number(text: str, item: str) -> int:
    try:
        found = int(text, 0 if text.strip()[:2].lower() in ("0x", "0b", "0o") else 10)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a size must be a whole number, not '{text}', in '{item}'") from None
    if not 0 <= found < 1 << 63:
        raise argparse.ArgumentTypeError(f"a size must be between 0 and 2^63 - 1, not '{text}'")
    return found


def whole(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdigit() and len(text) < 1000):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0")
    return int(text)


def days(text: str) -> float:
    """An age."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of days from 0")
    return number


def add_program(parser: argparse.ArgumentParser, schedule: bool = True) -> None:
    """Adds the options that determine a program and its kernels: file, op, sizes, target, schedule."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a .tile program")
    add_path(parser)
    parser.add_argument("--op", metavar="NAME", help="which op, where the file has several")
    parser.add_argument(
        "-D",
        "--define",
        metavar="M=4096",
        type=sizes,
        action="append",
        default=[],
        help="the value of a size; mostly also a range, such as M=1..8192 or M=8..8192 by 8",
    )
    parser.add_argument(
        "--target", metavar="TARGET", default="cpu",
        help="cpu (default), cuda, a chip (sm_80, sm_90a, sm_100a), a model (h200), or a .toml file",
    )  # fmt: skip
    if schedule:
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--schedule", metavar="FILE", type=Path, help="obey this schedule file")
        group.add_argument("--no-schedule", action="store_true", help="ignore FILE.sched.toml beside the program")


def add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path", metavar="FOLDER", type=Path, action="append", default=[],
        help="look for imports here, too; imports lie below the folder of the file that imports them, or such a folder",
    )  # fmt: skip


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", metavar="N", type=whole, default=0, help="the seed of the random inputs (default: 0)")


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, help=what)


def add_json(parser: argparse._ActionsContainer, note: str = "") -> None:
    parser.add_argument("--json", action="store_true", help=f"print a record, as docs/json.md describes it{note}")


def stage_name(text: str, extra: tuple[str, ...] = ()) -> str:
    """A stage that there is. Raises CallError."""
    from difflib import get_close_matches

    known = (*STAGES.split(), *extra)
    if text in known:
        return text
    close = get_close_matches(text, known, 1)
    hint = f"did you mean '{close[0]}'?" if close else f"the stages are {', '.join(known)}"
    raise CallError(f"there is no stage '{text}'", hint=hint)


# ---- programs --------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """A program's op with sizes, the machine to compile it for, and the schedule to obey. `of`: the class of its sizes, where some
    vary."""

    specialised: Specialised
    target: Target
    schedule: Schedule | None = None
    of: Class | None = None


def read_text(path: Path, folders: Sequence[Path] = (), most: int = MOST_BYTES) -> Source:
    """A program's text; `-` is the standard input."""
    if str(path) == "-":
        try:
            return Source("<stdin>", limited(sys.stdin.buffer, most).decode("utf-8"), tuple(map(str, folders)))
        except UnicodeDecodeError as error:
            raise CallError(f"the standard input is not UTF-8 text: byte {error.start} is not") from None
        except OSError as error:
            raise CallError(f"cannot read the standard input: {error.strerror}") from None
    from tilec.core.source import read_source

    return read_source(path, folders, most)


def parse_checked(path: Path, folders: Sequence[Path] = ()) -> Program:
    """The syntax tree of a program without mistakes, whose imports lie below its folder or `folders`. Raises TileError with all
    mistakes."""
    from tilec.dsl.mistakes import read

    progress.at(f"reading {path}")
    return read(read_text(path, folders))


def defined(args: argparse.Namespace) -> dict[str, int]:
    """The sizes that the command line gives. Raises CallError for a range."""
    if ranges := varying(args):
        name = next(iter(ranges))
        hint = "`plan`, `explain`, `verify`, `dump` and `emit` take ranges"
        raise CallError(f"this command takes a number for `{name}`, not a range", hint=hint)
    return fixed(args)


def fixed(args: argparse.Namespace) -> dict[str, int]:
    """Those that are numbers."""
    return {name: value for group in args.define for name, value in group.items() if isinstance(value, int)}


def varying(args: argparse.Namespace) -> dict[str, Varying]:
    """Those that are ranges."""
    return {name: value for group in args.define for name, value in group.items() if isinstance(value, Varying)}


def prepare(args: argparse.Namespace, ranges: bool = False) -> Loaded:
    """The program of the command line, for the sizes and the target given there. `ranges`: sizes may vary; the program is then for
    the class of their typical numbers."""
    from tilec.core.targets import load

    target = load(args.target)
    program = parse_checked(args.file, args.path)
    if not ranges or not (varies := varying(args)):
        return Loaded(specialise_given(program, args.op, defined(args)), target, find_schedule(args))
    from tilec.driver.classes import typical_sizes
    from tilec.driver.find_classes import find_classes

    of = find_classes(program, args.op, None, fixed(args), varies, target).of(typical_sizes(varies, fixed(args).values()))
    known = {**fixed(args), **dict(of.fixed)}
    special = specialise_given(program, args.op, known, varies=dict(of.ranges))
    if (schedule := find_schedule(args)) is not None:
        from tilec.driver.each_class import check_classes

        check_classes(schedule, special.name, varies)
    return Loaded(special, target, schedule, of)


def specialise_given(
    program: Program, op: str | None, given: dict[str, int], inputs: Sequence[Argument] | None = None,
    varies: Mapping[str, Varying] | None = None,
) -> Specialised:  # fmt: skip
    """`specialise`, whose message about missing sizes is put in the command line's words."""
    from tilec.dsl.specialise import choose_op, specialise

    chosen = choose_op(program, op)
    if inputs is None:
        demand_sizes(chosen, {**given, **(varies or {})})
    progress.at(f"working out ranges and types of {chosen.name}")
    return specialise(program, op, inputs, given, varies=varies)


def demand_sizes(op: Op, known: Collection[str]) -> None:
    """Raises CallError if the command line does not give all sizes of an op, and gives no others."""
    from tilec.dsl.check_sizes import size_names
    from tilec.dsl.specialise import not_known

    names = size_names(op)
    missing = [n for n in names if n not in known]
    if missing and all(n in names for n in known):
        hint = "give " + ("them" if len(missing) > 1 else "it") + ": " + " ".join(f"-D {n}=…" for n in missing)
        raise CallError(f"{not_known(missing)} not known", names[missing[0]], hint=hint)


def find_schedule(args: argparse.Namespace) -> Schedule | None:
    """The schedule file that `--schedule` names, or the file beside the program."""
    if args.no_schedule:
        return None
    path = args.schedule or args.file.with_suffix(".sched.toml")
    if args.schedule is None and not path.is_file():
        return None
    from tilec.plan.schedule.read import read_schedule

    return read_schedule(path)


def lower(
    loaded: Loaded, end: str = "map", locations: bool = True, emit: bool = True, expect: bool = True
) -> Lowered:
    """Runs the stages; the changes of a schedule are reported on the standard error."""
    from tilec.core import mlir
    from tilec.driver.lowering import lower as run_stages
    from tilec.dsl.build import build
    from tilec.plan.report.expectations import check_expectations

    with working(f"compiling {loaded.specialised.name}"), mlir.context(), mlir.ir.Location.unknown():
        progress.at("in stage 'build'")
        try:
            module = build(loaded.specialised)
        except (TileError, InternalError):
            raise
        except Exception as error:
            raise InternalError(f"stage 'build' failed: {error}", "build") from error
        at = loaded.of.typical if loaded.of is not None and loaded.of.ranges else None
        try:
            lowered = run_stages(module, loaded.target, schedule=loaded.schedule, end=end, locations=locations, emit=emit, at=at)
        except Varies as error:
            hint = "give numbers with -D: such a program is compiled for each; `tilec explain` lists the classes"
            raise CallError(f"there is no program for all of {loaded.of}: {error}", hint=hint) from None
    report_schedule(loaded, lowered.plan)
    if expect and lowered.plan is not None:
        check_expectations(loaded.specialised.at(at or {}), lowered.plan)
    return lowered


def report_schedule(loaded: Loaded, plan: Plan | None) -> None:
    """Reports that a schedule was obeyed, and its changes, since nobody may have asked for it."""
    if loaded.schedule is None or plan is None:
        return
    printable_message = [r for r in plan.remarks if r.verb in ("obeyed", "ignored")]
    if not any(r.verb == "ignored" for r in printable_message):
        note(f"obeying {loaded.schedule.source.name} (--no-schedule ignores it)")
    for remark in printable_message:
        note(str(remark) if remark.verb == "obeyed" else remark.reason)


# ---- output ----------------------------------------------------------------------------------------------

_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36, "strong red": "1;31"}


def coloured(stream: IO[str]) -> bool:
    """Whether a stream is a terminal that takes colours."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text else text


def paint_matches(text: str, rules: list[tuple[str, str]]) -> str:
    """Every match of a pattern in its style; the first pattern that matches a line's place wins."""
    pattern = re.compile("|".join(f"(?P<g{n}>{p})" for n, (p, _) in enumerate(rules)), re.MULTILINE)
    return pattern.sub(lambda m: paint(m[0], rules[int((m.lastgroup or "")[1:])][1]), text)


def show(text: str, rules: list[tuple[str, str]] | None = None) -> None:
    """To the standard output, with its line end; `rules` colour a terminal. What would steer it is escaped."""
    text = printable(text)
    sys.stdout.write((paint_matches(text, rules) if rules and coloured(sys.stdout) else text).rstrip("\n") + "\n")


_MESSAGE = [
    (r"\berror:", "strong red"),
    (r"\bnote:|^hint:", "cyan"),
    (r"^ *\|? *\^+$|(?<=\| )\s*\^+", "green"),
]


def note(text: str, kind: str = "note") -> None:
    """Prints to the standard error, after flushing the output: one file may take both."""
    with suppress(OSError):  # the reader has gone, which whoever writes next will notice
        sys.stdout.flush()
    text = printable_message(f"{kind}: {text}" if kind else text)
    print(paint_matches(text, _MESSAGE) if coloured(sys.stderr) else text, file=sys.stderr, flush=True)


def show_error(error: TileError) -> None:
    for diagnostic in error.diagnostics:
        note(error_text(diagnostic), kind="")


def error_text(d: Diagnostic) -> str:
    """A diagnostic as text, with its position if it has one."""
    if d.span is not Span.none():
        return str(d)
    return f"{d.severity}: {d.text}"


@contextmanager
def _spinner(message: str) -> Iterator[None]:
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(printable(message))):
        yield


@contextmanager
def working(message: str) -> Iterator[None]:
    """Shows on a terminal that some work takes time. In a pipe only `cli`'s reports of long work appear."""
    with progress.during(message), _spinner(message) if coloured(sys.stderr) else nullcontext():
        yield


# ---- files -----------------------------------------------------------------------------------------------


def write(path: Path | None, content: str | bytes) -> None:
    """To a file, all or nothing; to the standard output where the path is None or `-`. Only a terminal gets escapes for what would
    steer it: pipes and files have the text as it is."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path is None or str(path) == "-":
        sys.stdout.flush()
        if isinstance(content, str):
            sys.stdout.write(printable(content) if is_terminal(sys.stdout) else content)
        else:
            sys.stdout.buffer.write(data)
        return
    write_file(path, data)


def write_file(path: Path, data: bytes) -> None:
    """A new file takes the old one's name, so that no reader sees half of it. Links and modes stay; devices and pipes are
    written to."""
    target = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with open(path, "wb") as file:
                file.write(data)
        else:
            replace_file(target, data, target.stat().st_mode & 0o7777 if target.exists() else None)
    except OSError as error:
        raise CallError(f"cannot write '{path}': {error.strerror}") from None

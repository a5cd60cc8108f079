"""`tilec verify`: every stage's IR against the reference, and a small reproducer where one is wrong."""

from __future__ import annotations

import argparse
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tilec import cli_common as common
from tilec import mlir
from tilec.cli_common import note, say, working, write_file
from tilec.cli_ir import header, parse_text, read_header
from tilec.diagnostics import CallError, InternalError, TileError
from tilec.dsl.specialise import Specialised
from tilec.run_data import saved
from tilec.verify import Failure, Verifier
from tilec.verify_data import KINDS, WORK, first_sizes, inputs_of, sizes_around_tiles, steps

RIGHT, EDITED, DEFECT = 0, 1, 70


def verify(args: argparse.Namespace) -> int:
    from tilec.dsl.check_sizes import size_names
    from tilec.dsl.specialise import choose_op, specialise
    from tilec.target import load

    program = common.parse_checked(args.file)
    op = choose_op(program, args.op)
    if any(t.shape is None for t in op.inputs):
        raise CallError("the short form has no types: write the op in full, with types and sizes", op.span)
    given = common.defined(args)
    verifier = Verifier(load(args.target), common.find_schedule(args), _edited(args))

    def make(sizes: dict[str, int]) -> Specialised:
        return specialise(program, args.op, None, sizes)

    say(f"{op.name} for {verifier.target}", [(r"^\S+", "bold")])
    if verifier.schedule is not None or verifier.edited is not None:
        several: Iterator[dict[str, int]] = iter([_all_sizes(args, list(size_names(op)), given)])
    else:
        several = _sizes(verifier, make, list(size_names(op)), given)
    for sizes in several:
        found = _check(verifier, make, sizes, args)
        if found is not None:
            return _tell(args, verifier, make, given, *found)
    for stage, why in verifier.unsupported.items():
        note(f"not checked: {stage}: {why}")
    return RIGHT


def _edited(args: argparse.Namespace) -> tuple[str, str] | None:
    """The stage that hand-edited IR is after, and its text."""
    if args.ir is None:
        return None
    text = common.read_text(args.ir).text
    stage, _ = read_header(text)
    if stage is None:
        raise CallError(f"'{args.ir}' has no line `// tilec stage: …`", hint="`tilec dump -o FOLDER` writes it")
    with mlir.context():
        parse_text(text)
    return common.stage_name(stage), text


def _all_sizes(args: argparse.Namespace, names: list[str], given: dict[str, int]) -> dict[str, int]:
    """A schedule and a dump are for one set of sizes."""
    if missing := [n for n in names if n not in given]:
        what = f"{args.ir or 'a schedule'} is for one set of sizes: nothing says what `{'`, `'.join(missing)}` are"
        raise CallError(what, hint=" ".join(f"-D {n}=…" for n in missing))
    return given


def _sizes(verifier: Verifier, make, names: list[str], given: dict[str, int]) -> Iterator[dict[str, int]]:
    """Small sizes, then those around the tiles of a plan for larger ones, as far as they do not take too long."""
    yield from first_sizes(names, given)
    try:
        verifier.texts(make({n: 48 for n in names} | given))
    except TileError:
        return
    yield from sizes_around_tiles(names, given, verifier.plan)


def _check(verifier: Verifier, make, sizes: dict[str, int], args: argparse.Namespace) -> tuple[str, Failure] | None:
    """One set of sizes, with all kinds of inputs; one that the program does not allow is told and left out."""
    label = ", ".join(f"{n}={v}" for n, v in sizes.items()) or "no sizes"
    try:
        specialised = make(sizes)
    except TileError as error:
        return _row(label, f"the program refuses it: {_first_line(error)}")
    if not args.all and (count := _steps(verifier, specialised)) > WORK:
        return _row(label, f"left out: {count:,} steps (--all runs it)")
    with working(f"checking {label}"):
        found = verifier.check(specialised, {kind: inputs_of(specialised, kind, args.seed) for kind in KINDS})
    return found if found is not None else _row(label, f"right: {', '.join(KINDS)}")


def _steps(verifier: Verifier, specialised: Specialised) -> int:
    """What is to be walked; nothing where a stage fails, which the check tells."""
    try:
        verifier.texts(specialised)
    except InternalError:
        return 0
    return steps(verifier.plan) if verifier.plan is not None else 0


def _row(label: str, text: str) -> None:
    say(f"  {label:<24} {text}", [(r"right:", "green")])


def _first_line(error: TileError) -> str:
    return error.diagnostics[0].message.split("\n")[0]


# ---- what is wrong ---------------------------------------------------------------------------------------


def _tell(args, verifier: Verifier, make, given: dict[str, int], kind: str, failure: Failure) -> int:
    from tilec.verify_shrink import Shrinker

    before = failure.specialised
    if verifier.schedule is None and verifier.edited is None:
        with working("looking for a smaller program that is wrong, too"):
            shrinker = Shrinker(verifier, kind, args.seed)
            failure = shrinker.program(shrinker.sizes(make, failure, given))
    failure = verifier.blame(failure)
    edited = verifier.edited is not None and failure.stage == verifier.edited[0]
    where = f"{args.ir} is wrong" if edited else f"stage '{failure.stage}' is wrong"
    by = f", by its pass '{failure.step}'" if failure.step else ""
    note(f"{where}{by}: {failure.what}", "error")
    sizes = ", ".join(f"{n}={v}" for n, v in failure.specialised.sizes.items())
    note(f"{sizes or 'no sizes'}; inputs {kind}, seed {args.seed}", "at")
    if failure.specialised != before:
        lines = [f"{e.name} ({e.span})" for e in failure.specialised.equations]
        note(f"enough to see it: {', '.join(lines)}")
    _save(args, failure, kind)
    return EDITED if edited else DEFECT


def _save(args: argparse.Namespace, failure: Failure, kind: str) -> None:
    """The IR that went into the stage, as `tilec opt` reads it, and the inputs."""
    path: Path = args.output or Path("tilec-verify.mlir")
    names = common.STAGES.split()
    before = names[max(0, names.index(failure.stage) - 1)] if failure.stage in names else "map"
    if not failure.before:
        return
    reason = re.sub(r"\s+", " ", failure.what)
    text = f"{header(before, args.target)}// wrong after {failure.stage}"
    text += f", by {failure.step}" if failure.step else ""
    text += f", with {kind} inputs: {reason}\n{failure.before}"
    write_file(path, text.encode())
    buffer = io.BytesIO()
    np.savez(buffer, **saved(failure.inputs))
    arrays = path.with_suffix(".npz")
    write_file(arrays, buffer.getvalue())
    note(f"{path} holds the IR that went into the stage, {arrays} the inputs", "saved")
    note(f"tilec opt {shlex.quote(str(path))} --to {failure.stage}", "to reproduce")

"""`tilec verify` of exact sizes, and the report of what is wrong: a failure is reduced to a small reproducer."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tilec.cli import common
from tilec.cli.common import note, working, write_file
from tilec.cli.ir import demand_attributes, header, parse_text, read_header
from tilec.cli.outcomes import Outcomes, sizes_text
from tilec.cli.records import WrongStage
from tilec.core import mlir
from tilec.core.diagnostics import CallError, InternalError, TileError
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.passes import NAMES
from tilec.process import progress
from tilec.process.reading import MOST_IR_BYTES
from tilec.semantics import verify_inputs
from tilec.semantics.inputs import npz, shape_of
from tilec.semantics.verify import Failure, Verifier
from tilec.semantics.verify_inputs import KINDS, WORK, distinct, first_sizes, inputs_of, sizes_around_tiles, steps

EDITED, DEFECT = 1, 70


Make: TypeAlias = "Callable[[dict[str, int]], Specialised]"  # the program with these sizes


def verify_sizes(args: argparse.Namespace, program: ast.Program, op: ast.Op) -> int:
    """Exit status 0 only if stages were compared, and are right."""
    from tilec.core.targets import load
    from tilec.dsl.check_sizes import size_names
    from tilec.dsl.specialise import accepted_sizes, specialise

    given = common.defined(args)
    verifier = Verifier(load(args.target), common.find_schedule(args), _edited(args))

    def make(sizes: dict[str, int]) -> Specialised:
        return specialise(program, args.op, None, sizes)

    outcomes = Outcomes(op.name, verifier, args.json)
    if verifier.schedule is not None or verifier.edited is not None:
        several = [_all_sizes(args, list(size_names(op)), given)]
        _dumped_at(args, make(several[0]), verifier)
    else:
        several = _sizes(verifier, make, list(size_names(op)), given, partial(accepted_sizes, program, op))
    for number, sizes in enumerate(several, 1):
        found = check_at(outcomes, make, sizes, args, f"{number} of {len(several)}")
        if found is not None:
            return report(args, outcomes, make, given, *found)
    outcomes.note_unsupported()
    return _conclude(outcomes, given)


def _conclude(outcomes: Outcomes, given: dict[str, int]) -> int:
    """Exit status 0 only if stages were compared at sizes above 1 (except for sizes that the user gave)."""
    if len(outcomes.verifier.unsupported) == len(NAMES):
        return outcomes.nothing("nothing was verified: no stage could be interpreted")
    right = outcomes.sizes_that_are("right")
    if any(all(n > 1 for name, n in sizes.items() if name not in given) for sizes in right):
        return outcomes.right()
    few = "only sizes of 0 and 1 were verified" if right else "nothing was verified"
    if outcomes.sizes_that_are("refused"):
        hint = "give other sizes with -D; `tilec run` at a refused size shows the whole message"
        return outcomes.nothing(f"{few}: the compiler refuses the program at the other sizes\nhint: {hint}")
    return outcomes.nothing(f"{few}: the other sizes take the interpreter long\nhint: --all runs them, -D gives smaller ones")


def _edited(args: argparse.Namespace) -> tuple[str, str] | None:
    """The stage that hand-edited IR is after, and its text."""
    if args.ir is None:
        return None
    text = common.read_text(args.ir, most=MOST_IR_BYTES).text
    stage, _ = read_header(text)
    if stage is None:
        raise CallError(f"'{args.ir}' has no line `// tilec stage: …`", hint="`tilec dump -o FOLDER` writes it")
    name = common.stage_name(stage)
    with mlir.context():
        demand_attributes(parse_text(text, str(args.ir)), name, str(args.ir))
    return name, text


def _all_sizes(args: argparse.Namespace, names: list[str], given: dict[str, int]) -> dict[str, int]:
    """A schedule and a dump are for one set of sizes."""
    from tilec.dsl.specialise import not_known

    if missing := [n for n in names if n not in given]:
        what = f"{args.ir or 'a schedule'} is for one set of sizes: {not_known(missing)} not known"
        raise CallError(what, hint=" ".join(f"-D {n}=…" for n in missing))
    return given


def _dumped_at(args: argparse.Namespace, specialised: Specialised, verifier: Verifier) -> None:
    """Raises CallError if edited IR was dumped for other sizes."""
    if verifier.edited is None:
        return
    with mlir.context():
        module = parse_text(verifier.edited[1], str(args.ir))
        programs = [f for f in mlir.functions(module.operation) if "tilec.kernel" not in f.attributes]
        types = [mlir.ir.ShapedType(a.type) for f in programs[:1] for a in mlir.entry(f).arguments]
        shapes = [tuple(t.shape) for t in types]
    for tensor, shape in zip(specialised.inputs, shapes):
        if shape != shape_of(tensor):
            there, here = ("x".join(map(str, s)) or "a scalar" for s in (shape, shape_of(tensor)))
            what = f"'{args.ir}' is for other sizes: `{tensor.name}` is {there} there, and {here} by -D"
            raise CallError(what, hint="give the sizes that it was dumped with")


def _sizes(
    verifier: Verifier, make: Make, names: list[str], given: dict[str, int], accepted: Callable[..., dict[str, int] | None]
) -> list[dict[str, int]]:  # fmt: skip
    """Small sizes, then sizes near the tiles of a plan for larger sizes, as long as the interpreter does not take too long.
    Sizes that the program refuses are replaced by the nearest that it accepts, if any are found."""
    several = first_sizes(names, given)
    try:
        verifier.texts(make(accepted(dict.fromkeys(names, 48), given) or dict.fromkeys(names, 48) | given))
        assert verifier.plan is not None, "which `texts` makes"
        several += sizes_around_tiles(names, given, verifier.plan)
    except (TileError, InternalError):  # reported with the sizes at which it is met
        pass
    return distinct(accepted(sizes, given) or sizes for sizes in several)


def check_at(
    outcomes: Outcomes, make: Make, sizes: dict[str, int], args: argparse.Namespace, location: str, kinds: Sequence[str] = KINDS
) -> tuple[str, Failure] | None:  # fmt: skip
    """Checks one set of sizes with inputs of these kinds, and adds the outcome; returns a failure with the kind of its inputs.
    Sizes that the compiler refuses are reported and left out."""
    verifier = outcomes.verifier
    label = sizes_text(sizes)
    try:
        specialised = make(sizes)
    except TileError as error:
        outcomes.add(sizes, "refused", (), _first_line(error))
        return None
    if not args.all and (count := _steps(verifier, specialised)) > WORK:
        outcomes.add(sizes, "left out", (), f"{count:,} steps take long (--all runs them)")
        return None
    with working(f"checking {label} ({location})"):
        inputs = {kind: inputs_of(specialised, kind, args.seed) for kind in kinds}
        found = verifier.check(specialised, inputs, progress.at)
    outcomes.add(sizes, "right" if found is None else "wrong", kinds)
    return found


def _steps(verifier: Verifier, specialised: Specialised) -> int:
    """The interpreter's number of steps for one set of sizes; 0 if a stage fails, which the check reports."""
    if verifier.shared is not None:
        return verify_inputs.steps_of(specialised)
    try:
        verifier.texts(specialised)
    except InternalError:
        return 0
    return steps(verifier.plan) if verifier.plan is not None else 0


def _first_line(error: TileError) -> str:
    return error.diagnostics[0].message.split("\n")[0]


# ---- failures --------------------------------------------------------------------------------------------


def report(
    args: argparse.Namespace, outcomes: Outcomes, make: Make, given: dict[str, int], kind: str, failure: Failure
) -> int:
    """Shows which pass is wrong, and at which sizes; returns the exit status."""
    from tilec.semantics.shrink import Shrinker

    verifier = outcomes.verifier
    before = failure.specialised
    if verifier.schedule is None and verifier.edited is None:
        with working("looking for a smaller program that is wrong, too"):
            shrinker = Shrinker(verifier, kind, args.seed)
            failure = shrinker.sizes(make, failure, given)
            if verifier.shared is None:  # which is IR of the program as it is
                failure = shrinker.program(failure)
    failure = verifier.blame(failure)
    edited = verifier.edited is not None and failure.stage == verifier.edited[0]
    where = f"{args.ir} is wrong" if edited else f"stage '{failure.stage}' is wrong"
    by = f", by its pass '{failure.step}'" if failure.step else ""
    note(f"{where}{by}: {failure.what}", "error")
    note(f"{sizes_text(failure.specialised.sizes)}; inputs {kind}, seed {args.seed}", "at")
    if failure.specialised != before:
        lines = [f"{e.name} ({e.span})" for e in failure.specialised.equations]
        note(f"these equations suffice: {', '.join(lines)}")
    saved = _save(args, failure, kind)
    outcomes.wrong(WrongStage(failure.stage, failure.step, failure.what, dict(failure.specialised.sizes), kind, saved))
    return EDITED if edited else DEFECT


def _save(args: argparse.Namespace, failure: Failure, kind: str) -> str | None:
    """The IR that went into the stage, as `tilec opt` reads it, and the inputs; returns the IR's file."""
    path: Path = args.output or Path("tilec-verify.mlir")
    names = common.STAGES.split()
    before = names[max(0, names.index(failure.stage) - 1)] if failure.stage in names else "map"
    if not failure.before:
        return None
    reason = re.sub(r"\s+", " ", failure.what)
    text = f"{header(before, args.target)}// wrong after {failure.stage}"
    text += f", by {failure.step}" if failure.step else ""
    text += f", with {kind} inputs: {reason}\n{failure.before}"
    write_file(path, text.encode())
    arrays = path.with_suffix(".npz")
    write_file(arrays, npz(failure.inputs))
    note(f"{path} holds the IR that went into the stage, {arrays} the inputs", "saved")
    note(f"tilec opt {shlex.quote(str(path))} --to {failure.stage}", "to reproduce")
    return str(path)

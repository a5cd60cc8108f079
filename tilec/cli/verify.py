"""`tilec verify`: compares the IR after every stage with the program, at exact sizes or those of each class."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from tilec.cli import common
from tilec.cli.classes import classes
from tilec.cli.outcomes import Outcomes
from tilec.cli.verify_sizes import check_at, report, verify_sizes
from tilec.core.diagnostics import CallError
from tilec.core.targets import load
from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.check_sizes import size_names
from tilec.dsl.specialise import Specialised, choose_op, specialise
from tilec.semantics.verify import Verifier
from tilec.semantics.verify_inputs import KINDS, sizes_in_class

ENDS = 2  # sizes of a class, its ends, at which inputs are of all kinds


def verify(args: argparse.Namespace) -> int:
    program = common.parse_checked(args.file, args.path)
    op = choose_op(program, args.op)
    if any(t.shape is None for t in op.inputs):
        raise CallError("the short form does not say types: write the op in full, with types and sizes", op.span)
    return _verify_classes(args, program, op) if common.varying(args) else verify_sizes(args, program, op)


def _verify_classes(args: argparse.Namespace, program: ast.Program, op: ast.Op) -> int:
    """Exit status 0 only if the IR of some class was compared, and is right at all sizes where it was."""
    if args.ir is not None:
        raise CallError("--ir takes a number for each size, not a range", hint="it begins with the IR of one class, or of one size")
    names = list(size_names(op))
    verifier = Verifier(load(args.target), common.find_schedule(args))
    outcomes = Outcomes(op.name, verifier, args.json)
    for each in classes(args, texts=True):
        if each.lowered is None:
            outcomes.skip(str(each.of), each.refused)
            continue
        plan, given = each.lowered.plan, {**common.fixed(args), **dict(each.of.fixed)}
        assert plan is not None, "the stage ran"
        verifier.shared, ranges = each.lowered.texts, dict(each.of.ranges)
        several = sizes_in_class(ranges, plan, args.sizes, args.seed) or [{}]
        outcomes.begin(str(each.of), ", ".join(f"{name} = {n}" for name, n in plan.sizes.items()))

        def make(sizes: dict[str, int], ranges: Mapping[str, Varying] = ranges) -> Specialised:
            if wrong := [name for name, v in ranges.items() if not v.has(sizes[name])]:
                raise CallError(f"`{wrong[0]}` is not in {ranges[wrong[0]]}")
            return specialise(program, args.op, None, sizes, checked=True)

        for number, sizes in enumerate(several, 1):
            kinds = KINDS if number <= ENDS else KINDS[:1]
            known = {**given, **sizes}
            found = check_at(outcomes, make, {name: known[name] for name in names}, args, f"{number} of {len(several)}", kinds)
            if found is not None:
                return report(args, outcomes, make, given, *found)
    outcomes.note_unsupported()
    if outcomes.sizes_that_are("right"):
        return outcomes.right()
    hint = "give smaller numbers for the other sizes; --all runs what takes the interpreter long"
    return outcomes.nothing(f"nothing was verified\nhint: {hint}")

"""The classes of the ranges that the command line gives for sizes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tilec.cli import common
from tilec.core.targets import load
from tilec.driver import each_class
from tilec.driver.each_class import Each
from tilec.dsl.specialise import choose_op


def classes(args: argparse.Namespace, texts: bool = False) -> Iterator[Each]:
    """Every class of the command line's ranges, with its program and its plan. `texts`: with the IR after every stage."""
    target, program, varies = load(args.target), common.parse_checked(args.file, args.path), common.varying(args)
    op, schedule = choose_op(program, args.op), common.find_schedule(args)
    common.demand_sizes(op, {**common.fixed(args), **varies})
    if schedule is not None:
        each_class.check_classes(schedule, op.name, varies)
    yield from each_class.each_class(program, args.op, None, common.fixed(args), varies, target, schedule, texts)

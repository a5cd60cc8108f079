"""`tilec report`: the page of a program, its kernels and the reasons of its plan."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilec.cli.common import lower, prepare
from tilec.cli.page import write_page
from tilec.core.diagnostics import CallError


def report(args: argparse.Namespace) -> int:
    from tilec.report.template import environment

    environment()  # raises before anything is compiled
    loaded = prepare(args, ranges=True)
    if loaded.of is not None and args.measure:
        raise CallError("--measure takes a number for each size, not a range")
    measured = None
    if args.measure:
        from tilec.cli.explain import measure_kernels

        measured, _ = measure_kernels(loaded)
    default = Path("-") if str(args.file) == "-" else args.file.with_suffix(".html")
    write_page(args.output or default, loaded, lower(loaded, expect=False), measured, args.against)
    return 0

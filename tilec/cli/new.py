"""`tilec new`: programs to start from."""

from __future__ import annotations

import argparse

from tilec.cli.common import show
from tilec.cli.programs import write_program
from tilec.core.diagnostics import CallError
from tilec.dsl.starting import names, starting


def new(args: argparse.Namespace) -> int:
    """Prints or writes a program; without a name, the names. Raises CallError for an unknown one, and for a file that exists."""
    if args.name is None:
        if args.output is not None:
            raise CallError("-o goes with a name", hint="tilec new softmax -o softmax.tile")
        show("\n".join(names()))
        return 0
    text = starting(args.name)
    if args.output is not None and args.output.exists() and not args.force:
        raise CallError(f"'{args.output}' exists already", hint="--force replaces it")
    write_program(args.output, text)
    return 0

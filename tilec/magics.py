"""`%load_ext tilec` of IPython and Jupyter: `%%tile` compiles a cell, and plans show themselves."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from tilec.api import Op, compiled
from tilec.cli.common import sizes
from tilec.core.diagnostics import Source
from tilec.core.varying import Varying
from tilec.driver.classes import typical_sizes
from tilec.driver.frontend import Program, read_program
from tilec.process.forking import compiling
from tilec.report.notebook import plan_card, plan_text

if TYPE_CHECKING:
    from IPython.core.formatters import BaseFormatter
    from IPython.core.interactiveshell import InteractiveShell

    from tilec.driver.kernel import Printer
    from tilec.plan.model import Plan

PLAN = "tilec.plan.model", "Plan"


@magics_class
class TileMagics(Magics):
    """`%%tile`."""

    @magic_arguments()
    @argument("name", nargs="?", help="the Python name of the op; without it, each op of the cell has its own name")
    @argument("--op", help="which op, if the cell has several")
    @argument("-D", "--define", type=sizes, action="append", default=[], metavar="M=4096",
              help="the value of a size, or a range such as M=1..8192: then the op is compiled now, and shown")  # fmt: skip
    @argument("--target", help="cpu, cuda, a chip (sm_90a), a model (h200), or a .toml file; by default that of a call's arrays")
    @argument("--schedule", metavar="FILE", help="obey this schedule file")
    @argument("--path", action="append", default=[], metavar="FOLDER", help="look for imports here, too")
    @cell_magic
    def tile(self, line: str, cell: str) -> Op | None:
        """Compiles the program in the cell, and binds its op to a name.

            %%tile softmax -D M=512,N=1000
            op softmax(x: f32[M, N]) -> (y: f32[M, N]) {
                e[i, j] = exp(x[i, j] - max[k](x[i, k]))
                y[i, j] = e[i, j] / sum[k](e[i, k])
            }

        The options are those of tilec's commands. Lines in messages are those of the cell.
        """
        args = parse_argstring(self.tile, line)
        if args.name is not None and (not args.name.isidentifier() or keyword.iskeyword(args.name)):
            raise UsageError(f"'{args.name}' cannot be a name in Python")
        # A name without the cell's number: a cell that runs again finds its kernels in the cache.
        source = Source(f"<{args.name or 'cell'}>", f"\n{cell}", tuple(args.path))
        with compiling():
            program = read_program(source)
        chosen = _chosen(program, args.name, args.op)
        given = {name: value for group in args.define for name, value in group.items()}
        if given and len(chosen) > 1:
            raise UsageError("sizes are of one op, and the cell has several: choose one with --op")
        numbers = {name: value for name, value in given.items() if not isinstance(value, Varying)}
        ranges = {name: value for name, value in given.items() if isinstance(value, Varying)}
        made = {
            python: compiled(program, op=op, sizes=numbers, target=args.target, schedule=args.schedule, varies=ranges)
            for python, op in chosen.items()
        }
        if given:
            for op in made.values():
                op.build(**typical_sizes(ranges, numbers.values()))
        assert self.shell is not None, "the shell that runs the cell"
        self.shell.push(made)
        return next(iter(made.values())) if given else None


def _chosen(program: Program, name: str | None, op: str | None) -> dict[str, str]:
    """Ops of a program by the Python names that they are bound to. Raises CallError for an op that the program lacks."""
    if op is None and name is None:
        return {own: own for own in program.ops}
    if op is None and name in program.ops:
        return {name: name}
    found = program.op(op).name
    return {name or found: found}


def _pretty(plan: Plan, printer: Printer, cycle: bool) -> None:
    printer.text(plan_text(plan))


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext tilec`."""
    shell.register_magics(TileMagics)
    html, plain = _formatters(shell)
    html.for_type_by_name(*PLAN, plan_card)
    plain.for_type_by_name(*PLAN, _pretty)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext tilec`. Names that are bound stay."""
    del shell.magics_manager.magics["cell"]["tile"]
    for formatter in _formatters(shell):
        formatter.pop(".".join(PLAN), None)


def _formatters(shell: InteractiveShell) -> tuple[BaseFormatter, BaseFormatter]:
    """Those of HTML and of plain text."""
    assert shell.display_formatter is not None, "a shell that shows results"
    found = shell.display_formatter.formatters
    return found["text/html"], found["text/plain"]

"""The parsers of the `tilec` command, one for each subcommand: options, their help, and examples."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

from tilec.cli.common import STAGES, add_json, add_output, add_path, add_program, add_seed, days, sizes, whole
from tilec.core.diagnostics import printable_message


class _Help(argparse.RawDescriptionHelpFormatter):
    """`-o, --output PATH` in every version of Python."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, action.dest.upper())}"


class _Parser(argparse.ArgumentParser):
    """Its messages show what was typed with nothing that steers a terminal."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(printable_message(message), file)


Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        "tilec", "tilec COMMAND ...", formatter_class=_Help,
        description="A tensor compiler that shows its reasons.",
        epilog="examples:\n"
        "  tilec new softmax -o softmax.tile\n"
        "  tilec run softmax.tile -D M=512,N=512 --check --time\n"
        "  tilec explain softmax.tile -D M=512,N=512\n\n"
        "tilec COMMAND --help tells more, with examples.\n"
        "TILEC_DEBUG=1 shows the traceback of an internal error.",
    )  # fmt: skip
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = top.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for add in (
        _new, _check, _fmt, _plan, _explain, _report, _tune, _dump, _opt, _emit, _run_op, _verify, _torch, _cache, _doctor,
        _completion, _lsp,
    ):  # fmt: skip
        add(commands)
    return top


class _Version(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        from tilec.version import VERSION

        print(f"tilec {VERSION}")
        parser.exit()


class _Renamed(argparse.Action):
    """An option that has another name now."""

    def __init__(self, option_strings: list[str], dest: str, to: str, **rest: Any):
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **rest)
        self.to = to

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        parser.error(f"{option_string} was renamed to {self.to}")


def _command(
    commands: Commands, name: str, command: str, usage: str, summary: str, text: str, examples: str
) -> argparse.ArgumentParser:
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    made = commands.add_parser(
        name, prog=f"tilec {name}", usage=f"tilec {name} {usage}", help=summary, formatter_class=_Help,
        description=text, epilog=f"examples:\n{lines}",
    )  # fmt: skip
    made.set_defaults(command=command)
    return made


def _new(commands: Commands) -> None:
    p = _command(
        commands, "new", "new:new", "[options] [NAME]", "print a program to start from",
        "Prints the program of a function of the standard library, or of a spelling of einsum, to be changed.\n"
        "Without NAME, it lists the functions.",
        """tilec new
        tilec new softmax -o mine.tile
        tilec new 'bij,bjk->bik'""",
    )  # fmt: skip
    p.add_argument("name", metavar="NAME", nargs="?", help="a function of the standard library, or a spelling of einsum")
    add_output(p, "the file to write (default: standard output)")
    p.add_argument("--force", action="store_true", help="replace a file that exists")


def _check(commands: Commands) -> None:
    p = _command(
        commands, "check", "source:check", "[options] FILE...", "report every mistake of a program",
        "Reports every mistake that can be found without running the program, each with its position. Prints\n"
        "nothing if there is none, or a warning for an op that is refused at all sizes that were tried.",
        """tilec check softmax.tile
        tilec check --ranges attention.tile --op attention
        tilec check --ranges softmax.tile -D N=1024
        tilec check --json *.tile
        tilec check --format sarif *.tile > tilec.sarif""",
    )  # fmt: skip
    p.add_argument("files", metavar="FILE", type=Path, nargs="+", help=".tile programs; - reads the standard input")
    add_path(p)
    p.add_argument("--ranges", action="store_true", help="print the inferred ranges, sizes and types")
    p.add_argument("--op", metavar="NAME", help="with --ranges: this op only")
    p.add_argument(
        "-D", "--define", metavar="M=4096", type=sizes, action="append", default=[],
        help="with --ranges: the value of a size; others stay names",
    )  # fmt: skip
    add_json(p)
    p.add_argument(
        "--format", metavar="FORM", choices=("text", "github", "sarif"), default="text",
        help="text (default), github (annotations of a workflow) or sarif (for code scanners), on the standard output",
    )  # fmt: skip


def _fmt(commands: Commands) -> None:
    p = _command(
        commands, "fmt", "source:fmt", "[--check] FILE...", "format programs in place",
        "Rewrites programs in the canonical form. Comments stay. A program that does not parse is not changed.",
        """tilec fmt *.tile
        tilec fmt --check softmax.tile
        tilec fmt - < softmax.tile""",
    )  # fmt: skip
    p.add_argument("files", metavar="FILE", type=Path, nargs="+", help=".tile programs; - is standard input to output")
    p.add_argument("--check", action="store_true", help="write nothing: show what would change, exit 1 if anything")


def _plan(commands: Commands) -> None:
    p = _command(
        commands, "plan", "plan:plan", "[options] FILE", "write the schedule file, to be edited",
        "Writes the compiler's decisions (kernels, tiles, loop orders, options) into FILE.sched.toml.\n"
        "dump, explain, emit and run then obey that file. Plans for other targets and sizes stay.",
        """tilec plan softmax.tile -D M=4096 -D N=1024
        tilec plan attention.tile --op attention -D B=1,H=8,S=1024,T=1024,D=64 --target h200
        tilec plan softmax.tile -D M=4096,N=1024 -o -
        tilec plan softmax.tile -D M=4096,N=1024 --json""",
    )  # fmt: skip
    add_program(p, schedule=False)
    add_output(p, "the schedule file; - prints it (default: FILE.sched.toml)")
    p.add_argument("--force", action="store_true", help="replace a plan that was edited")
    add_json(p, "; the schedule file is written only with -o")


def _explain(commands: Commands) -> None:
    p = _command(
        commands, "explain", "explain:explain", "[options] FILE", "print costs, decisions and refusals, with reasons",
        "Prints a table of the kernels, longest first: what each computes, its predicted time, what bounds it,\n"
        "and its speed as a share of the limit. --kernel and --full also print all decisions with their reasons.",
        """tilec explain softmax.tile -D M=4096 -D N=1024
        tilec explain softmax.tile -D M=4096,N=1024 --kernel softmax_y
        tilec explain mlp.tile -D M=512,D=1024,F=4096 --target h200 --full
        tilec explain softmax.tile -D M=4096,N=1024 --measure
        tilec explain softmax.tile -D M=4096,N=1024 --json
        tilec explain softmax.tile -D M=4096,N=1024 --target h200 --what-if "bandwidth*2"
        tilec explain softmax.tile -D M=4096,N=1024 --what-if "m apart from y" --what-if "M = 1\"""",
    )  # fmt: skip
    add_program(p)
    form = p.add_mutually_exclusive_group()
    form.add_argument("--kernel", metavar="NAME", help="all of one kernel: its own name, or that of a tensor that it writes")
    form.add_argument("--full", action="store_true", help="all kernels, and every decision with its alternatives and their times")
    add_json(form)
    p.add_argument(
        "--what-if", metavar="CHANGE", action="append", default=[],
        help="the plan with a size, a figure of the target, a kernel or an option changed; several hold at once",
    )  # fmt: skip
    p.add_argument("--measure", action="store_true", help="time every kernel on this machine, beside its prediction")
    p.add_argument("--html", metavar="FILE", type=Path, help="write the page of `tilec report`, too")


def _report(commands: Commands) -> None:
    p = _command(
        commands, "report", "report:report", "[options] FILE", "write a page about a program and its kernels",
        "Writes one HTML file: the program with the kernel of each line, the graph of operations, decisions and\n"
        "refusals, the roofline, each kernel's costs, and its code after every stage. It needs no network.",
        """tilec report softmax.tile -D M=4096,N=1024
        tilec report attention.tile --op causal_attention -D B=1,H=16,S=4096,D=128 --target h200 -o attention.html
        tilec report softmax.tile -D M=4096,N=1024 --measure
        tilec report softmax.tile -D M=4096,N=1024 --against mine.sched.toml""",
    )  # fmt: skip
    add_program(p)
    p.add_argument("--measure", action="store_true", help="time every kernel on this machine, beside its prediction")
    p.add_argument("--against", metavar="FILE", type=Path, help="show the plan of this schedule file beside the other one")
    add_output(p, "the page; - prints it (default: FILE.html)")


def _tune(commands: Commands) -> None:
    p = _command(
        commands, "tune", "tune:tune", "[options] FILE", "measure plans, and write the fastest",
        "Measures the best plans by the cost model, and a sample of all others, on this machine's device.\n"
        "Results are compared with the program's error bounds. The fastest plan goes into FILE.sched.toml.",
        """tilec tune softmax.tile -D M=4096 -D N=1024
        tilec tune softmax.tile -D M=4096,N=1024 --target cuda --trials 40
        tilec tune softmax.tile -D M=4096,N=1024 -o -""",
    )  # fmt: skip
    add_program(p, schedule=False)
    p.add_argument(
        "--trials", metavar="N", type=int, default=16,
        help="plans to measure for each kernel, besides the compiler's (default: 16)",
    )  # fmt: skip
    p.add_argument("--most", action=_Renamed, to="--trials", help=argparse.SUPPRESS)
    add_seed(p)
    add_output(p, "the schedule file; - prints it (default: FILE.sched.toml)")
    p.add_argument("--force", action="store_true", help="replace a plan that was edited")


def _dump(commands: Commands) -> None:
    p = _command(
        commands, "dump", "ir:dump", "[options] FILE", "print the IR after every stage",
        "Prints the IR after every stage; a terminal shows in colour what the stage changed.\n"
        f"Stages: {STAGES}.\n"
        "Every dump is an input of `tilec opt`; files keep source locations.",
        """tilec dump softmax.tile -D M=512,N=512
        tilec dump softmax.tile -D M=512,N=512 --after tile
        tilec dump softmax.tile -D M=512,N=512 -o ir/""",
    )  # fmt: skip
    add_program(p)
    p.add_argument("--after", metavar="STAGE", help="only the IR after this stage; emit stands for the kernels")
    p.add_argument("--locations", action="store_true", help="print source locations, too")
    add_output(p, "a folder for 00-build.mlir to 07-map.mlir and kernels.py")


def _opt(commands: Commands) -> None:
    p = _command(
        commands, "opt", "ir:opt", "[options] FILE", "run the remaining stages on dumped IR",
        "Reads the IR that a stage left (dumped, perhaps edited) and runs the stages after it.\n"
        f"Stages: {STAGES}.",
        """tilec opt ir/03-fuse.mlir
        tilec opt ir/02-plan.mlir --to tile -o tiled.mlir
        tilec opt ir/00-build.mlir --passes canonicalize,cse
        tilec dump softmax.tile -D M=8,N=8 --after plan | tilec opt -""",
    )  # fmt: skip
    p.add_argument("file", metavar="FILE", type=Path, help="MLIR as `tilec dump` writes it; - reads the standard input")
    p.add_argument(
        "--from",
        metavar="STAGE",
        dest="from_",
        help="the stage after which FILE was dumped (default: the stage in its first line)",
    )
    p.add_argument("--to", metavar="STAGE", help="the last stage to run (default: emit, which prints the kernels)")
    p.add_argument("--passes", metavar="LIST", help="run these passes of upstream MLIR instead of stages")
    p.add_argument("--target", metavar="TARGET", help="the target (default: the target in the first line of FILE)")
    add_output(p, "the file to write (default: standard output)")


def _emit(commands: Commands) -> None:
    p = _command(
        commands, "emit", "ir:emit", "--as FORM [options] FILE",
        "print the kernels: MLIR, Numba, PTX or a cubin",
        "Compiles to one form: mlir (after the last stage), numba (Python source), ptx or cubin (for GPU\n"
        "targets; needs the toolkit of tilec[cuda], no GPU).",
        """tilec emit --as numba softmax.tile -D M=512,N=512
        tilec emit --as mlir softmax.tile -D M=512,N=512 -o softmax.mlir
        tilec emit --as ptx --target sm_90a softmax.tile -D M=512,N=512""",
    )  # fmt: skip
    p.add_argument(
        "--as", dest="form", metavar="FORM", required=True, choices=("mlir", "numba", "ptx", "cubin"),
        help="mlir, numba, ptx or cubin",
    )  # fmt: skip
    add_program(p)
    p.add_argument("--kernel", metavar="NAME", help="one kernel only")
    add_output(p, "the file to write (default: standard output)")


def _run_op(commands: Commands) -> None:
    p = _command(
        commands, "run", "run:run", "[options] FILE", "run an op, check it, time it",
        "Runs an op on random inputs, or on arrays from files, whose shapes then give the sizes.\n"
        "--check compares the results with the program evaluated at f64, by error bounds (docs/numerics.md).",
        """tilec run softmax.tile -D M=512,N=512 --check
        tilec run softmax.tile -D M=4096,N=1024 --time
        tilec run softmax.tile -D M=4096,N=1024 --time --json
        tilec run softmax.tile --input x=x.npy --save y.npz
        tilec run softmax.tile -D M=8,N=40 --target sm_90a --interpret map --check""",
    )  # fmt: skip
    add_program(p)
    add_seed(p)
    p.add_argument(
        "--input", metavar="NAME=FILE", action="append", default=[],
        help="an input from a .npy or .npz file; an .npz alone gives several",
    )  # fmt: skip
    p.add_argument("--check", action="store_true", help="compare with the reference; exit 1 where out of bounds")
    p.add_argument("--time", action="store_true", help="time the op, and compare with the roofline")
    p.add_argument("--save", metavar="OUT.npz", type=Path, help="write the results")
    p.add_argument(
        "--interpret", metavar="STAGE", help="interpret the IR after this stage; for any target, without a GPU"
    )
    add_json(p)


def _verify(commands: Commands) -> None:
    p = _command(
        commands, "verify", "verify:verify", "[options] FILE", "compare the IR after every stage with the program",
        "Interprets the IR after every stage, at small sizes (0, 1, primes, around the plan's tiles) and on\n"
        "ordinary, huge, tiny, NaN, infinite and tied inputs, and compares with the program evaluated at f64.\n"
        "Where a stage is wrong it names the pass, and writes a small reproducer that `tilec opt` reads.\n"
        "With a range for a size, runs the IR of each class of sizes at the ends of the class and at drawn sizes.\n"
        "Exit status 1: a mistake in the arguments, or nothing could be verified; 70: a stage is wrong.",
        """tilec verify softmax.tile
        tilec verify softmax.tile --target sm_90a
        tilec verify softmax.tile -D M=1..100,N=20
        tilec verify softmax.tile --json
        tilec verify softmax.tile -D M=64,N=64 --schedule mine.sched.toml
        tilec verify softmax.tile -D M=8,N=8 --ir ir/04-tile.mlir""",
    )  # fmt: skip
    add_program(p)
    add_seed(p)
    p.add_argument("--ir", metavar="FILE", type=Path, help="begin with this dump, edited by hand, for the sizes given")
    p.add_argument("--all", action="store_true", help="also sizes that take the interpreter long")
    p.add_argument(
        "--sizes", metavar="N", type=whole, default=6, help="with ranges: sizes of each class, its ends first (default: 6)"
    )  # fmt: skip
    add_output(p, "the reproducer (default: tilec-verify.mlir)")
    add_json(p)


def _torch(commands: Commands) -> None:
    p = _command(
        commands, "torch", "torch:torch", "report [options] FOLDER", "report what became of a compiled PyTorch model",
        "Prints for every graph that torch.compile(backend=\"tilec\") compiled: its partitions, the share of\n"
        "operations that tilec computes, and why PyTorch runs the others. FOLDER is what the variable\n"
        "TILEC_TORCH_DUMP named while the model ran; it has the partitions' .tile programs, too.",
        """tilec torch report dump
        tilec torch report dump --html model.html --target h200""",
    )  # fmt: skip
    p.add_argument("action", metavar="ACTION", choices=("report",), help="report")
    p.add_argument("folder", metavar="FOLDER", type=Path, help="the folder that TILEC_TORCH_DUMP named")
    p.add_argument("--html", metavar="FILE", type=Path, help="write a page, too: layers, partitions, the time of every kernel")
    p.add_argument("--target", metavar="TARGET", help="with --html: plan partitions for this target (default: where they ran)")


def _cache(commands: Commands) -> None:
    p = _command(
        commands, "cache", "cache:cache", "dir|size|clear [options]", "show or empty the cache of compiled programs",
        "dir prints the directory, size prints its size, clear empties it. Removed programs are compiled\n"
        "again when they are needed.",
        """tilec cache size
        tilec cache clear
        tilec cache clear --older-than 30""",
    )  # fmt: skip
    p.add_argument("action", metavar="ACTION", choices=("dir", "size", "clear"), help="dir, size or clear")
    p.add_argument(
        "--older-than",
        metavar="DAYS",
        type=days,
        default=0.0,
        help="with clear: only files that are more than so many days old",
    )


def _doctor(commands: Commands) -> None:
    p = _command(
        commands, "doctor", "doctor:doctor", "[options]", "report this machine's software and hardware, and missing parts",
        "Reports Python, the system, CPU, GPU, driver, toolkit, dependencies and the cache. Exit status 1:\n"
        "software that the CPU target needs is missing.",
        """tilec doctor
        tilec doctor --calibrate
        tilec doctor --json""",
    )  # fmt: skip
    p.add_argument("--calibrate", action="store_true", help="measure this CPU for the cost model first (five seconds)")
    add_json(p)


def _completion(commands: Commands) -> None:
    p = _command(
        commands, "completion", "completion:completion", "SHELL", "print a script for completion in a shell",
        "Prints a script with which a shell completes commands, options, targets, stages and files.\n"
        "Needs shtab: pip install \"tilec[completion]\".",
        """tilec completion bash > ~/.local/share/bash-completion/completions/tilec
        tilec completion zsh > ~/.zfunc/_tilec
        tilec completion fish > ~/.config/fish/completions/tilec.fish""",
    )  # fmt: skip
    p.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish", "tcsh"), help="bash, zsh, fish or tcsh")


def _lsp(commands: Commands) -> None:
    _command(
        commands, "lsp", "lsp:lsp", "[options]", "serve editors: mistakes, types, definitions, formatting",
        "Speaks the Language Server Protocol on the standard input and output; an editor starts it, and ends it.\n"
        "Needs pygls: pip install \"tilec[lsp]\".",
        """tilec lsp < session.lsp""",
    )  # fmt: skip

"""Whether the tests notice faults: `python -m tests.mutations` plants one in each of the files below, in a copy of the tree.

A fault is a small change that a tired programmer makes: another comparison or operator, a number off by one, a condition turned
round. `--seed` chooses which, `--only` takes the files whose names hold a text, and `--more N` plants so many in each.
The tests beside a file run until one fails, those of `make test` alone (`--all`: where those pass, all of `make test`). For each
fault a line says where and what it is, and which test caught it. The exit status is the number of faults that no test caught.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 300  # of the tests of one fault; one that never ends is caught
FILES = {
    "tilec/analysis/rules.py": "analysis/test_rules.py passes/test_approximations.py",
    "tilec/analysis/patterns.py": "analysis/test_rules.py passes/test_approximations.py",
    "passes/emit.py": "passes/test_emit.py passes/test_rebuild.py",
    "passes/rebuild.py": "passes/test_rebuild.py passes/test_split_concatenation.py",
    "passes/tensor/slice_updates.py": "passes/test_slice_updates.py passes/test_filecheck.py",
    "passes/tensor/fuse.py": "passes/test_filecheck.py plan/test_plan_cpu.py semantics/test_interpreter.py",
    "passes/tensor/integer_compare.py": "passes/test_integer_compare.py",
    "passes/tensor/collapsed.py": "passes/test_collapsed.py",
    "passes/tensor/narrow.py": "passes/test_narrow.py passes/test_filecheck.py",
    "passes/tensor/outline.py": "passes/test_outline.py",
    "passes/tensor/split_concatenation.py": "passes/test_split_concatenation.py",
    "passes/tensor/simplify.py": "passes/test_filecheck.py semantics/test_float_semantics.py",
    "passes/tensor/tile.py": "passes/test_filecheck.py passes/cpu/test_cpu_loops.py",
    "passes/cpu/lanes.py": "passes/cpu/test_cpu_lanes.py",
    "passes/cpu/transpose.py": "passes/cpu/test_cpu_transpose.py",
    "passes/cpu/panels.py": "passes/cpu/test_cpu_panels.py",
    "passes/cuda/launches.py": "passes/cuda/test_launches.py passes/test_inplace.py",
    "passes/cuda/threaded/argreduce.py": "passes/cuda/test_argreduce.py",
    "passes/cuda/threaded/scan.py": "passes/cuda/test_scan.py",
    "passes/cuda/contraction/stream_k.py": "passes/cuda/test_stream_k.py",
    "passes/cuda/chain/masks.py": "passes/cuda/test_chain_forms.py",
    "tilec/plan/fusion.py": "plan/test_legality.py plan/test_plan_cuda.py plan/test_plan_cpu.py",
    "tilec/plan/split_reduction.py": "plan/test_plan_cuda.py plan/test_plan_cpu.py cost passes/cuda/test_rows.py",
    "tilec/plan/search.py": "plan/test_plan_cuda.py plan/test_plan_cpu.py plan/test_schedule.py",
    "tilec/plan/legality.py": "plan/test_legality.py plan/test_plan_cuda.py plan/test_plan_cpu.py",
    "tilec/plan/schedule/read.py": "plan/test_schedule.py plan/test_edits.py",
    "tilec/plan/cuda/shared_memory.py": "plan/test_shared_memory.py passes/cuda/test_rows.py",
    "tilec/plan/cuda/scan.py": "passes/cuda/test_scan.py plan/test_plan_cuda.py",
}
"""Passes and files of the planner, with the tests that stand beside them, by their names in `tests/`."""

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is",
    ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*"}


@dataclass(frozen=True)
class Fault:
    """`text` stands in place of the source from `begin` to `end`, which are offsets in its UTF-8."""

    begin: int
    end: int
    text: str
    line: int

    def planted(self, source: str) -> str:
        data = source.encode()
        return (data[: self.begin] + self.text.encode() + data[self.end :]).decode()

    def message(self, source: str) -> str:
        before = re.sub(r"\s+", " ", source.encode()[self.begin : self.end].decode())
        return f"line {self.line}: `{before}` becomes `{self.text}`"


def faults(source: str) -> list[Fault]:
    """All that may be planted in the bodies of a module's functions."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = []

    def plant(node: ast.AST, text: str) -> None:
        begin, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        found.append(Fault(begin, end, text, node.lineno))

    def words(node: ast.AST) -> str:
        return f"({ast.unparse(node)})"

    for node in inside(ast.parse(source)):
        match node:
            case ast.Compare(ops=[op], left=left, comparators=[right]):
                plant(node, f"{words(left)} {COMPARISONS[type(op)]} {words(right)}")
            case ast.BinOp(op=op, left=left, right=right) if type(op) in OPERATORS and not is_text(left) and not is_text(right):
                plant(node, f"{words(left)} {OPERATORS[type(op)]} {words(right)}")
            case ast.BoolOp(op=op, values=values):
                plant(node, (" or " if isinstance(op, ast.And) else " and ").join(map(words, values)))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                plant(node, words(operand))
            case ast.Constant(value=int(value)) if type(value) is int:
                plant(node, str(value + 1))
            case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                plant(test, f"not {words(test)}")
    return sorted(set(found), key=lambda f: (f.begin, f.end))


def inside(module: ast.Module) -> Iterator[ast.AST]:
    """The nodes of statements in functions, but for annotations, assertions, and what only messages have."""
    for function in (n for n in ast.walk(module) if isinstance(n, ast.FunctionDef)):
        waiting: list[ast.AST] = list(function.body)
        while waiting:
            node = waiting.pop()
            if not isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.FunctionDef):
                yield node
                waiting += [n for name, n in fields(node) if name not in ("annotation", "returns")]


def fields(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for name, value in ast.iter_fields(node):
        yield from ((name, n) for n in (value if isinstance(value, list) else [value]) if isinstance(n, ast.AST))


def is_text(node: ast.AST) -> bool:
    """A text, or a list that is written out, which has no other operator."""
    return isinstance(node, ast.JoinedStr | ast.List) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


# ---- running ---------------------------------------------------------------------------------------------------------


def copied(target: Path) -> None:
    """The tree's files that git has or would have, with links as links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        source, made = ROOT / name, target / name
        if source.exists() or source.is_symlink():
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, made, follow_symlinks=False)


def caught(tree: Path, tests: list[str]) -> str:
    """The first test that fails in the tree, or ""."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, timeout=LIMIT_S, capture_output=True, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return f"no end after {LIMIT_S} s"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ends with status {done.returncode}: {done.stdout[-300:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--more", type=int, default=1, metavar="N")
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copied(tree)
        for name, tests in FILES.items():
            if given.only not in name:
                continue
            source = (tree / name).read_text(encoding="utf-8")
            for fault in random.Random(f"{given.seed} {name}").sample(faults(source), given.more):
                (tree / name).write_text(fault.planted(source), encoding="utf-8")
                found = caught(tree, [f"tests/{t}" for t in tests.split()])
                if not found and given.all:
                    found = caught(tree, ["tests"])
                survived += not found
                print(f"{name}, {fault.message(source)}: {'caught by ' + found if found else 'NOT CAUGHT'}", flush=True)
            (tree / name).write_text(source, encoding="utf-8")
    print("every fault is caught" if not survived else f"faults that no test caught: {survived}")
    return survived


if __name__ == "__main__":
    sys.exit(main())

"""Mutated schedule files and IR: obeyed or refused with a message, never a traceback."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

from fuzz.choices import Choices
from fuzz.text import ROOT, check_text, drawn_source
from tilec.cli.command import main
from tilec.core import mlir
from tilec.core.diagnostics import TileError
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.plan.schedule.read import read_schedule
from tilec.plan.schedule.write import write_schedule

SCHEDULE_TOKENS = [
    "", *"[]{}=,.#'\"\n\0", "0", "-1", "1", "9" * 30, "1.5", "inf", "true", "tile = ", "loops", '"m"', '"zz"', "[[plan]]",
    "operations = []", "inline = ['e']", "[plan.kernels.softmax_y]", "é", "1979-05-27", "'''", "\ud800", "[" * 2000,
]  # fmt: skip
IR_TOKENS = [
    "", *"%#(){}<>:,=\n\0", "0", "-1", "9" * 30, "f32", "i1", "index", "tensor<?xf32>", "memref<12x20xf64>", "arith.addf",
    "linalg.generic", "func.func", "func.return", "tilec.kernel", "tilec.name", "module", "^bb0", "affine_map<(d0) -> (d0)>",
    "scf.yield", '"unknown.op"() : () -> ()', "loc(unknown)", "é",
]  # fmt: skip


@cache
def softmax():
    """An example, its schedule file, and its IR after every stage."""
    program = specialise(parse(read_source(ROOT / "examples" / "softmax.tile")), None, None, {"M": 12, "N": 20})
    with mlir.context(), ir.Location.unknown():
        lowered = lower(build(program), load("cpu"))
    return program, write_schedule(lowered.plan, program), lowered.texts


def edited(draw: Choices, texts: list[str], tokens: list[str], longest: int) -> str:
    """One of the texts after some edits."""
    text = draw.pick(*texts)
    for _ in range(draw.integer(1, 4)):
        at, length = draw.below(len(text) + 1), draw.below(longest + 1)
        text = text[:at] + draw.pick(*tokens) + text[at + draw.pick(0, length) :]
    return text


def schedule_text(draw: Choices) -> str:
    return edited(draw, [softmax()[1]], SCHEDULE_TOKENS, 20)


def ir_text(draw: Choices) -> str:
    dumped = [f"// tilec stage: {stage}, target: cpu\n{text}" for stage, text in softmax()[2].items()]
    return edited(draw, dumped, IR_TOKENS, 12)


def check_schedule_text(text: str) -> str:
    """Why it is refused, if it is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sched.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            schedule = read_schedule(path)
            with mlir.context(), ir.Location.unknown():
                lower(build(softmax()[0]), load("cpu"), schedule=schedule, end="plan", emit=False, texts=False)
        except TileError as error:
            return str(error)
    return ""


def check_ir_text(text: str) -> str:
    """What `tilec opt` makes of it: an exit status that blames the input, or kernels. Returns why it is refused, if it is."""
    reported = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(reported), redirect_stdout(io.StringIO()):
        path, here = Path(folder) / "a.mlir", os.getcwd()
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        os.chdir(folder)  # a defect's IR would be written there
        try:
            status = main(["opt", str(path)])
        finally:
            os.chdir(here)
    assert status in (0, 1), f"status {status}: {reported.getvalue()[-2000:]}"
    return reported.getvalue() if status else ""


SORTS = {
    "programs": (drawn_source, check_text),
    "schedules": (schedule_text, check_schedule_text),
    "ir": (ir_text, check_ir_text),
}
AGAIN = {
    "programs": ("program.tile", "tilec check {}"),
    "schedules": ("softmax.sched.toml", "tilec explain examples/softmax.tile -D M=12,N=20 --schedule {}"),
    "ir": ("softmax.mlir", "tilec opt {}"),
}
"""Under which name a text is kept, and what then fails again."""

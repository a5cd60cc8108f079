"""Short texts that say what a stage makes of a program (LLVM's FileCheck, in its Python form).

The first line of a file names the stage whose IR is checked, and sizes: `# RUN: fuse M=500 N=1000 [target=h200]`.
"""

import re
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser

from tilec import mlir
from tilec.api import read_source
from tilec.driver import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.mlir import ir
from tilec.target import load

FILES = sorted((Path(__file__).parent / "filecheck").glob("*.tile"))


def stage_text(path: Path, stage: str, sizes: dict[str, int], target: str) -> str:
    specialised = specialise(parse(read_source(path)), None, None, sizes)
    with mlir.context(), ir.Location.unknown():
        lowered = lower(
            build(specialised), load(target), end=stage if stage != "build" else "simplify", locations=False, emit=False
        )
    return lowered.texts[stage]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_stage(path):
    run = re.match(r"# RUN: (\w+)(.*)", path.read_text())
    options = dict(item.split("=") for item in run[2].split())
    target = options.pop("target", "cpu")
    text = stage_text(path, run[1], {k: int(v) for k, v in options.items()}, target)
    checks = Options(match_filename=str(path), comment_prefixes="COM,RUN")
    matcher = Matcher(checks, FInput(path.stem, text), Parser.from_opts(checks))
    assert matcher.run() == 0, text


@pytest.mark.parametrize("stage", ["build", "simplify", "plan", "fuse", "tile", "bufferize", "stage", "map"])
def test_texts_round_trip(stage):
    """Every dump is an input: parsed and printed again it is the same text."""
    path = Path(__file__).parent / "filecheck" / "fuse_softmax.tile"
    text = stage_text(path, stage, {"M": 33, "N": 70}, "cpu")
    with mlir.context(), ir.Location.unknown():
        assert mlir.parse(text).operation.get_asm() == text

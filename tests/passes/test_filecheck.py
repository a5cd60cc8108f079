"""Short texts that say what a stage makes of a program (LLVM's FileCheck, in its Python form).

The first line of a file names the stage whose IR is checked, and sizes: `# RUN: fuse M=500 N=1000 [target=h200]`. Of `emit` it is
the text of the kernels.
"""

import re
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser
from tools import TESTS
from tools.lowering import lowered

from tilec.core import mlir
from tilec.core.mlir import ir

FILES = sorted((TESTS / "filecheck").glob("*.tile"))


def stage_text(path: Path, stage: str, sizes: dict[str, int], target: str) -> str:
    emit, end = stage == "emit", {"build": "simplify", "emit": "map"}.get(stage, stage)
    result = lowered(path, None, sizes, target=target, end=end, locations=emit, emit=emit, texts=stage == "build" or None)[1]
    return "\n".join(k.text for k in result.emitted.kernels) if emit else result.texts[stage]


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
    path = TESTS / "filecheck" / "fuse_softmax.tile"
    text = stage_text(path, stage, {"M": 33, "N": 70}, "cpu")
    with mlir.context(), ir.Location.unknown():
        assert mlir.parse(text).operation.get_asm() == text

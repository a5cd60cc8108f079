"""Contraction chains for CUDA: lowered with one tile, and run by the interpreter or the emulator; and why programs are none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from conftest import assert_within

from tilec.core.diagnostics import Source
from tilec.core.target import Target
from tilec.core.targets import load
from tilec.cost.chain import ChainTile, choose_chain_tile
from tilec.cost.model import Choice
from tilec.kernels import ContractionChain
from tilec.plan import chain_fusion
from tilec.semantics.interpreter import interpret
from tools.contractions import arrays, emulated
from tools.lowering import assert_reads_back, planned
from tools.lowering import lowered as lower_text
from tools.plans import rewritten


def warps(rows: int, step: int, stages: int = 2, own: int = 16, parts: int = 1) -> ChainTile:
    """A tile of warps that multiply by mma.sync, `own` rows each."""
    return ChainTile(rows, step, stages, 168, 0, ping_pong=False, parts=parts, unit="mma.sync", warp_rows=own)


WITHOUT_WGMMA = [("a100", "sm_80"), ("rtx4090", "sm_89"), ("rtx5090", "sm_120"), ("h200", "sm_90a")]
"""Targets on which chains multiply by mma.sync, `without_wgmma`, and what they are compiled for."""


def without_wgmma(name: str) -> Target:
    machine = load(name)
    rates = {kind: {u: rate for u, rate in rates.items() if u != "wgmma"} for kind, rates in machine.tensor.items()}
    return replace(machine, tensor=rates)


def chains_pay(monkeypatch) -> None:
    """Every chain that is legal is made. What its operations would take apart is not weighed, which takes a third of a lowering."""
    monkeypatch.setattr(chain_fusion, "profitable", lambda together, separate: True)
    monkeypatch.setattr(chain_fusion, "time_us", lambda *_: math.inf)


def use_tile(tile: tuple[int, int] | ChainTile, monkeypatch) -> None:
    """Every chain has this tile."""
    made = tile
    if not isinstance(made, ChainTile):
        made = ChainTile(*tile, 2, 168 if tile[0] < 192 else 128, 0, ping_pong=tile[0] > 64)
    rest = lambda t, p: [Choice(made, c.prediction) for c in choose_chain_tile(t, p)[:1]]  # noqa: E731
    monkeypatch.setattr("tilec.plan.cuda.chain.choose_chain_tile", rest)


def lowered(
    text: str, sizes: dict[str, int], tile: tuple[int, int] | ChainTile | None, monkeypatch, target: str | Target = "h200",
    texts: bool | None = None, **rewrites: Any,
):  # fmt: skip
    """`texts` are as `tools.lowering.lowered` takes them, `rewrites` those of a schedule file."""
    if tile is not None:
        use_tile(tile, monkeypatch)
    chains_pay(monkeypatch)
    schedule = rewritten(**rewrites) if rewrites else None
    specialised, result = lower_text(Source("t.tile", text), None, sizes, schedule, target, texts, locations=True)
    assert_reads_back(result)
    return specialised, result


def check(text, sizes, tile, monkeypatch, inputs=None, printed=False, target="h200", **rewrites):
    """Runs the mapped IR, thread by thread, where races are faults; or with `printed` the Python text."""
    specialised, result = lowered(text, sizes, tile, monkeypatch, target, **rewrites)
    (kernel,) = result.plan.kernels
    assert isinstance(kernel.options, ContractionChain)
    assert len(result.emitted.kernels) == (2 if kernel.options.blocks_per_row > 1 else 1)
    inputs = arrays(specialised) if inputs is None else inputs
    if printed:
        outputs = emulated(specialised, result, inputs)
    else:
        outputs = interpret(result.texts["map"], inputs)
    assert_within(text, inputs, outputs, kind="cuda")
    return result


def reasons(text: str, sizes: dict[str, int], target: str = "h200") -> str:
    plan = planned(Source("t.tile", text), None, sizes, target)
    assert not any(isinstance(k.options, ContractionChain) for k in plan.kernels)
    return "\n".join(map(str, plan.remarks))

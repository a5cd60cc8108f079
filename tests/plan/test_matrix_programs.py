"""The programs for matrix units (`tools/matrix_programs.py`) have every kind of kernel that multiplies on them."""

import pytest
from tools.lowering import lowered
from tools.matrix_programs import PROGRAMS, SCHEDULES

from tilec.core.diagnostics import Source
from tilec.kernels import Contraction, ContractionChain, WarpgroupContraction
from tilec.plan.schedule.read import read_schedule


def kinds(name: str, folder) -> set[str]:
    """Of the program's kernels."""
    text, sizes = PROGRAMS[name]
    schedule = None
    if name in SCHEDULES:
        (folder / "s.toml").write_text(SCHEDULES[name])
        schedule = read_schedule(folder / "s.toml")
    _, result = lowered(Source("t.tile", text), None, sizes, target="h200", schedule=schedule)
    found = {"several kernels"} if len(result.plan.kernels) > 1 else set()
    for options in (k.options for k in result.plan.kernels):
        match options:
            case ContractionChain():
                what = "attention" if options.weight_terms else "reduced"
                found.add(f"{what} by {options.unit}")
                found |= {"several first products"} if len(options.inner) > 1 else set()
                found |= {f"parts of {what}"} if (options.blocks_per_row or 1) > 1 else set()
            case WarpgroupContraction():
                found.add(f"{options.multiplicand} by wgmma")
                found |= {"clusters"} if options.cluster != (1, 1) else set()
                found |= {"two_level"} if options.two_level else set()
                found |= {"shared steps"} if options.stream_k else set()
                found |= {"several products"} if options.products > 1 else set()
                found |= {"several results"} if options.siblings else set()
                found |= {"windows"} if len(options.inner) > 1 else set()
            case Contraction():
                found.add(f"{options.multiplicand} by {options.unit}")
    return found


@pytest.mark.slow
def test_every_kind(tmp_path):
    found = set().union(*(kinds(name, tmp_path) for name in PROGRAMS))
    assert found >= {
        "attention by wgmma", "attention by mma.sync", "parts of attention", "reduced by wgmma", "reduced by mma.sync",
        "parts of reduced", "bf16 by wgmma", "bf16 by mma.sync", "i8 by wgmma", "f8e4m3 by wgmma", "tf32 by wgmma", "clusters",
        "two_level", "several products", "several results", "windows", "several kernels",
        "shared steps", "several first products",
    }, found  # fmt: skip

"""The cost of `panels`: register tiles."""

from dataclasses import replace

from tools.machines import CPU

from tilec.cost.panels import Blocking, PanelProblem, panel_us

WIDE = replace(CPU, core=replace(CPU.core, simd_bytes=64, vector_registers=32), fma={"f32": 0.768, "f64": 0.384})
PRODUCT = PanelProblem((768,), (768,), (768,), 1, 4, (0, 0), ("along", "across"))


def _us(rows: int, columns: int) -> float:
    return panel_us(WIDE, PRODUCT, Blocking("fma", rows, columns, (768,), (384,), 256))


def test_sums_beyond_the_registers_wait_until_they_are_stored_and_loaded_again():
    """An AMD EPYC takes 1.3 to 1.9 times as long with one row more than 14 of two vectors, and 2.1 times as long with four vectors:
    LLVM aligns the stack to 16 bytes, so that most such stores cross a line."""
    fits, one_more, twice = _us(14, 32), _us(15, 32), _us(14, 64)
    assert 1.3 * fits < one_more < 1.9 * fits
    assert 1.6 * fits < twice < 2.2 * fits
    assert fits < _us(13, 32) < one_more

"""How rows and columns of tiles are divided among dimensions (`tilec/plan/cuda/boxes.py`)."""

from itertools import product
from math import ceil

import pytest
from tools import lowering

from tilec.core.hardware import LINE, SECTOR, WARP
from tilec.plan.cuda.boxes import Prices, Side, best_box

FLAT = Prices(1000.0, 0.0, 0.0)


def written_in_part(extents, box, size):
    """Sectors that each block writes a part of, in a tensor that begins at one."""
    places, found = {}, 0
    for at in product(*map(range, extents)):
        index = 0
        for n, i in zip(extents, at):
            index = index * n + i
        block = tuple(i // b for i, b in zip(at, box))
        sectors = places.setdefault(block, {})
        sectors[index * size // SECTOR] = sectors.get(index * size // SECTOR, 0) + size
    found = sum(n < SECTOR for sectors in places.values() for n in sectors.values())
    return found


@pytest.mark.parametrize("extents, box, size", [
    ((64, 64), (4, 8), 4), ((64, 64), (4, 16), 2), ((64, 72), (2, 4), 4), ((64, 66), (1, 66), 4), ((64, 66), (2, 66), 4),
    ((64, 96), (8, 2), 4), ((128, 34), (1, 17), 4), ((8, 8, 64), (2, 8, 32), 4), ((8, 8, 64), (1, 1, 64), 8),
])  # fmt: skip
def test_sectors_of_which_a_part_is_written(extents, box, size):
    elements = 1
    for n in extents:
        elements *= n
    exact = written_in_part(extents, box, size) / elements
    assert Side(extents, len(extents), size).cut(box) == pytest.approx(exact, rel=0.1, abs=1e-3)


@pytest.mark.parametrize("extents, box, behind", [
    ((64, 65), (2, 65), 2), ((64, 64), (1, 4), 2), ((9, 66), (1, 2), 4), ((64, 65), (1, 1), 2),
])  # fmt: skip
def test_runs_that_go_on_along_the_other_side(extents, box, behind):
    """They are those of elements as many times as large."""
    whole = Side(extents, len(extents), 4 * behind).cut(box) / behind
    assert Side(extents, len(extents), 4, behind=behind).cut(box) == pytest.approx(whole)


@pytest.mark.parametrize("step, at_once, run", list(product((4, 8, 64, 512), (1, 4), (1, 2, 16, 128))))
def test_lines_that_requests_touch(step, at_once, run):
    """Runs lie so far uncoalesced that no line has parts of two."""
    side = Side((4096, run), step=step, at_once=at_once)
    asked = WARP * at_once

    def touched(run):
        places = [n // run * 1_000_000 + n % run * step for n in range(asked)]
        return len({at // LINE for at in places})

    more = (touched(min(run, asked)) - touched(asked)) / asked
    assert side.uncoalesced((1, run)) == pytest.approx(more, abs=1.5 / min(run, asked))
    assert side.uncoalesced((1, 4096)) == 0 == Side((4096, run)).uncoalesced((1, run))


@pytest.mark.parametrize("extents", [(8, 508, 250), (8, 1026, 1026), (64, 130, 260), (3, 5), (7,), (16, 1, 131070)])
@pytest.mark.parametrize("size", [16, 96, 256])
def test_the_fewest_boxes_where_runs_cost_nothing(extents, size):
    box = best_box(Side(extents), size, 1, FLAT)
    powers = [[1 << p for p in range(9)] for _ in extents]
    fits = (b for b in product(*powers) if all(t < 2 * n for t, n in zip(b, extents)))
    covered = [b for b in fits if b[0] * (b[1] if len(b) > 1 else 1) * (b[2] if len(b) > 2 else 1) <= size]

    def boxes(b):
        found = 1
        for n, t in zip(extents, b):
            found *= ceil(n / t)
        return found

    assert boxes(box) <= min(map(boxes, covered))


def test_runs_are_as_long_as_they_save_more_than_products_take():
    side = Side((8, 1026, 1026), 2)
    assert best_box(side, 256, 1, Prices(1000.0, 0.0, 0.0)) == (8, 4, 8)
    widths = [best_box(side, 256, 1, Prices(1000.0, price, 0.0))[-1] for price in (0.0, 100.0, 1000.0, 100_000.0)]
    assert widths == sorted(widths) and widths[-1] > 32


CONVOLUTION = """op conv(x: f32[N, C, H + R - 1, W + S - 1], f: f32[K, C, R, S]) -> (y: f32[N, K, H, W]) {
 y[n, k, h, w] = sum[c, r, s](x[n, c, h + r, w + s] * f[k, c, r, s]) using tf32
}
"""


@pytest.mark.parametrize("places", [(508, 250), (1026, 1026), (130, 260)])
def test_results_with_channels_first_are_stored_in_runs(places):
    """Blocks of the fewest tiles would have 2, 8 and 4 columns side by side."""
    height, width = places
    sizes = {"N": 8, "C": 64, "K": 64, "H": height, "W": width, "R": 3, "S": 3}
    kernel = lowering.planned(CONVOLUTION, None, sizes).kernels[-1]
    assert kernel.options.name == "warpgroup_contraction"
    assert dict(zip(kernel.grid, kernel.tile))[kernel.options.columns[-1]] >= 32


def test_windows_that_threads_load_are_dear():
    """Each element by itself, while nothing is multiplied: a copy in another order is made for them."""
    sizes = {"N": 32, "C": 64, "K": 128, "H": 1, "W": 131070, "R": 1, "S": 3}
    assert len(lowering.planned(CONVOLUTION, None, sizes).steps("pack")) == 2


REMAINDERS = """op f(x: f32[B, C, H, W], w: f32[C, N, 4, 4]) -> (y: f32[B, N, H + 1, 2, W + 1, 2]) {
 y[b, n, i, p, j, q] = sum[c, r in 0:2, s in 0:2](pad(x[b, c, i - r, j - s], 0) * w[c, n, 2 * r + p, 2 * s + q]) using tf32
}
"""


@pytest.mark.parametrize("side", [32, 64, 77])
def test_rows_go_on_where_columns_end(side):
    """A transposed convolution with strides: the remainders by the strides are columns, and positions are rows, which lie between
    them. Blocks of one position, of as many images, store 8 bytes at a time."""
    sizes = {"B": 128, "C": 64, "N": 128, "H": side, "W": side}
    kernel = lowering.planned(REMAINDERS, None, sizes).kernels[-1]
    tile = dict(zip(kernel.grid, kernel.tile))
    assert kernel.options.name == "warpgroup_contraction" and tile[kernel.options.rows[-1]] >= 8

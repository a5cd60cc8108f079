"""What edits of a layout do to the predicted work: each term moves as the machine does. No times are measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.machines import H200

from tilec.analysis.layout import make
from tilec.core import mlir
from tilec.core.diagnostics import Source
from tilec.core.fitted import Barriers
from tilec.core.mlir import ir
from tilec.core.registers import MOST, REGISTERS, compiled, limits
from tilec.cost.model import Work, occupancy, predict
from tilec.driver.frontend import read_program
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.specialise import specialise
from tilec.plan.cuda.lines import lanes_at_work

HEADS = "op f(x: f32[B, S, H, D]) -> (y: f32[B, H, S, D]) { y[b, h, s, d] = x[b, s, h, d] * 2 }"
VARIANCE = "op f(x: f32[M, N]) -> (v: f32[N]) { u[j] = mean[i](x[i, j]) v[j] = mean[i]((x[i, j] - u[j]) * (x[i, j] - u[j])) }"
BLUR = "op f(x: f32[M, N]) -> (y: f32[M - 2, N - 2]) { y[i, j] = mean[r in 0:3, s in 0:3](x[i + r, j + s]) }"
STENCIL = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i - 1, j] + x[i, j] if i > 0 and j > 0 else x[i, j] }"
SOFTMAX = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }"
PRODUCT = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"
SMALL = replace(H200, sm=replace(H200.sm, shared_per_block=2048))  # without room for the tiles of other products


def weighed(text, sizes, *edits, target=H200):
    """The unedited kernel, and one for each of `edits`, which have values of the tile and of options."""
    found = []

    def ask(plan):
        (kernel,) = plan.kernels
        for edit in ({}, *edits):
            options = {k: v for k, v in edit.items() if k != "tile"}
            made = replace(kernel, tile=edit.get("tile", kernel.tile), options=replace(kernel.options, **options))
            found.append(made.weighed(target))
        return plan

    program = specialise(read_program(Source("program", text)).tree, None, None, dict(sizes))
    with mlir.context(), ir.Location.unknown():
        lower(build(program), target, schedule=ask, end="plan", emit=False)
    return found


def times(kernels):
    return [k.prediction.time_us for k in kernels]


# ---- starts of blocks ------------------------------------------------------------------------------------------------


def test_blocks_start_one_after_another():
    start_us = 1e-3 * H200.fit(Barriers).start_ns
    for blocks in (1 << 18, 1 << 20):
        found = predict(Work(dram_read=1 << 20, blocks=blocks), H200)
        assert found.limiter == "blocks" and found.bound == "overhead"
        assert found.time_us == pytest.approx(H200.launch.ramp_us + start_us * blocks / H200.units)
    assert "blocks" not in predict(Work(dram_read=1 << 30, blocks=1024), H200).terms  # memory takes longer


def test_blocks_of_no_tile_yet_take_no_time():
    """Before tiles are chosen, there are as many as there can be."""
    assert "blocks" not in predict(Work(dram_read=1 << 20, blocks=1 << 20, tiled=False), H200).terms


def test_tiles_of_few_elements_are_bound_by_their_starts():
    sizes = {"B": 8, "S": 4096, "H": 32, "D": 32}
    own, tiny = weighed(HEADS, sizes, {"tile": (1, 1, 1, 32)})
    assert "blocks" not in own.prediction.terms and tiny.prediction.limiter == "blocks"


# ---- registers -------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(16, 255), st.sampled_from([32, 64, 128, 256, 512, 1024]), st.integers(1, 300), st.integers(1, 300))
def test_registers_that_a_kernel_is_compiled_with(limit, threads, least, wanted):
    """The first limit that is tried which does not spill, and no more than there is use for."""
    most = min(MOST, REGISTERS // threads // 8 * 8)
    limit = min(limit, most)  # schedules refuse more
    found = compiled(limit, threads, least, wanted)
    tried = [n for n in limits(limit, threads) if n is not None]
    enough = next((n for n in tried if n >= least), most)
    assert found == max(16, min(max(least, wanted), enough))
    if least <= limit:
        assert found <= max(16, limit)
    assert compiled(limit, threads, least + 1, wanted) >= found


def test_a_low_limit_of_registers_is_given_up_before_elements_spill():
    """A row that two passes need stays in registers. What the limit would leave out takes blocks from an SM, and no traffic."""
    own, low = weighed(SOFTMAX, {"M": 8192, "N": 8192}, {"registers": 24})
    assert own.options.residency == "registers" == low.options.residency
    assert low.work.registers > 24 and low.work.l2_bytes == own.work.l2_bytes


def test_an_online_reduction_spills_what_no_registers_hold():
    sizes, wide = {"M": 16384, "N": 4096}, {"online": True, "registers": 64}
    _, some, many = weighed(VARIANCE, sizes, {"steps": (1, 16), **wide}, {"steps": (1, 128), **wide})
    assert some.work.l2_bytes <= some.work.dram_read and many.work.l2_bytes > many.work.dram_read
    plain = weighed(VARIANCE, sizes, {"steps": (1, 128), "online": False})[1]
    assert plain.work.l2_bytes <= plain.work.dram_read  # its sums take each element as it comes


def test_few_registers_leave_few_loads_of_windows_on_their_way():
    own, few = weighed(BLUR, {"M": 4096, "N": 8192}, {"registers": 40})
    assert few.work.bytes_in_flight < own.work.bytes_in_flight
    assert few.prediction.time_us > own.prediction.time_us


# ---- bytes in flight ----------------------------------------------------------------------------------------------------


def test_rounds_that_compilers_unroll_load_at_once():
    """Threads with sixteen short rounds have as many bytes on their way as sixteen times as many threads."""
    sizes = {"B": 8, "S": 4096, "H": 32, "D": 32}
    own, rounds = weighed(HEADS, sizes, {"tile": (1, 16, 1, 32)})
    assert rounds.prediction.time_us < 1.1 * own.prediction.time_us
    one = weighed(HEADS, sizes, {"tile": (1, 1, 1, 32)})[1]
    assert one.work.bytes_in_flight < own.work.bytes_in_flight / 8


def test_more_steps_have_more_bytes_in_flight():
    found = weighed(STENCIL, {"M": 8192, "N": 8192}, *({"steps": (n, 1), "tile": (8, 128)} for n in (8, 4, 2, 1)))[1:]
    flight = [k.work.bytes_in_flight for k in found]
    assert flight == sorted(flight, reverse=True) and len({*flight}) == 4
    assert times(found) == sorted(times(found))


def test_a_tensor_that_is_read_at_neighbours_too_is_read_from_memory_once():
    (own,) = weighed(STENCIL, {"M": 8192, "N": 8192})
    assert own.work.dram_read == pytest.approx(4 * 8192 * 8192)
    assert own.work.stall_ns > 0  # its neighbours come from L2


# ---- lines, lanes and passes ------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.permutations([0, 1, 2]), st.tuples(*[st.sampled_from([1, 2, 4, 8, 32])] * 3), st.tuples(*[st.integers(1, 20)] * 3),
    st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_lanes_at_work(order, threads, extents, vector):
    """By counting: of the warps of each round in which any thread has an element, the lanes that have one."""
    layout = make(extents, [d for d in order if threads[d] > 1], threads, (vector, 1, 1), (1, 1, 1))
    if not layout.order or prod(threads) > 256:
        return
    strides, size = {d: layout.stride(d) for d in layout.order}, layout.used
    working = lanes = 0
    for chunk in product(*(range(layout.chunks(d)) for d in range(3))):
        busy = set()
        for at in product(*(range(threads[d]) for d in layout.order)):
            elements = ((chunk[d] * threads[d] + n) * layout.vectors[d] < extents[d] for d, n in zip(layout.order, at))
            if all(elements):
                busy.add(sum(strides[d] * n for d, n in zip(layout.order, at)))
        lanes += len(busy)
        working += len({n // 32 for n in busy})
    assert lanes_at_work(layout) == pytest.approx(lanes / (32 * working)), (layout, size)


def test_threads_across_lines_take_longer():
    sizes = {"B": 8, "S": 4096, "H": 32, "D": 32}
    own, across = weighed(HEADS, sizes, {"thread_order": (2, 3)})
    assert own.options.thread_order == (3, 2)
    assert across.work.l2_bytes == 2 * (own.work.dram_read + own.work.dram_write)  # a sector of each line, where two go together
    assert across.prediction.time_us > own.prediction.time_us


def test_a_pass_for_each_part_of_a_line_fetches_it_anew():
    own, halves = weighed(VARIANCE, {"M": 16384, "N": 4096}, {"tile": (16,), "thread_counts": (8, 32), "thread_order": (0, 1)})
    assert halves.work.dram_read == 2 * own.work.dram_read
    assert halves.prediction.time_us > own.prediction.time_us


# ---- rows -----------------------------------------------------------------------------------------------------------------


def test_blocks_of_a_cluster_load_no_more_than_their_part():
    own, *clusters = weighed(SOFTMAX, {"M": 8192, "N": 4096}, *({"cluster": n} for n in (2, 4, 8)))
    flight = [k.work.bytes_in_flight for k in (own, *clusters)]
    assert flight == sorted(flight, reverse=True) and flight[0] > flight[1] > flight[2]
    assert times(clusters) == sorted(times(clusters))


def test_rows_that_l2_does_not_hold_are_read_again_in_part():
    """The more rows all blocks have at a time, the more of their lines are gone before the next pass."""
    found = weighed(SOFTMAX, {"M": 8192, "N": 4096}, *({"tile": (n,)} for n in (2, 3, 4, 16)))[1:]
    read = [k.work.dram_read for k in found]
    assert read == sorted(read) and read[0] < read[1] < read[2]


# ---- products without matrix units ---------------------------------------------------------------------------------------------

SIZES = {"M": 1024, "K": 1024, "N": 1024}


def product_of(*edits):
    return weighed(PRODUCT, SIZES, *edits, target=SMALL)


def test_threads_along_rows_of_a_factor_take_a_line_each():
    own, across = product_of({"thread_order": (0, 1)})
    assert own.options.thread_order == (1, 0) and own.options.name == "vector_contraction"
    assert across.work.shared_bytes > 4 * own.work.shared_bytes
    assert across.prediction.limiter == "shared" and across.prediction.time_us > 3 * own.prediction.time_us


def test_more_products_for_each_load_take_less_time():
    _, small, large = product_of({"tile": (16, 64)}, {"tile": (64, 64)})
    assert small.work.pace["fma.f32"] > large.work.pace["fma.f32"] > 1
    assert small.work.shared_bytes > large.work.shared_bytes and small.prediction.time_us > large.prediction.time_us


def test_longer_rounds_wait_less_until_they_take_blocks_from_an_sm():
    _, four, eight, sixteen = product_of(*({"steps": (4, 1, n)} for n in (4, 8, 16)))
    assert four.work.serial_us > eight.work.serial_us
    assert four.work.registers < eight.work.registers < sixteen.work.registers
    at_once = [occupancy(SMALL, k.work.threads, k.work.registers).blocks for k in (four, eight, sixteen)]
    assert at_once[0] >= at_once[1] > at_once[2] == 1
    assert sixteen.work.serial_us > eight.work.serial_us  # a block alone hides nothing


def test_threads_without_elements_issue_and_load():
    """A warp has as many requests, with few lanes at work in each."""
    found = product_of(*({"tile": (64, n)} for n in (64, 32, 16, 8, 4)))[1:]
    assert times(found) == sorted(times(found)) and times(found)[-1] > 6 * times(found)[0]



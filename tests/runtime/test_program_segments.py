"""A program's segments do what the program does, with what they are given, and need as much memory as they report."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilec
from tilec.runtime import segments
from tilec.runtime.native import tables
from tilec.runtime.program import Emitted, KernelSource, Slot, Step, Temporary
from tilec.runtime.segments import cut

INPUTS, OUTPUTS, TEMPORARIES = 4, 3, 5
SLOTS = (
    *(Slot("input", n) for n in range(INPUTS)),
    *(Slot("output", n) for n in range(OUTPUTS)),
    *(Slot("temporary", n) for n in range(TEMPORARIES)),
)
WORKSPACE = len(SLOTS)
sizes = st.lists(st.integers(0, 4000), min_size=len(SLOTS), max_size=len(SLOTS))
uses = st.lists(st.lists(st.sampled_from(SLOTS), min_size=1, max_size=4, unique=True), min_size=1, max_size=14)
some = st.sets(st.integers(0, INPUTS - 1))


def emitted(uses, sizes, clear=()) -> Emitted:
    steps = tuple(Step(f"k{n % 3}", tuple(slots), name=f"launch {n}") for n, slots in enumerate(uses))
    temporaries = tuple(Temporary(s, 0, n in clear) for n, s in enumerate(sizes[INPUTS + OUTPUTS :]))
    kernels = tuple(KernelSource(f"k{n}", "", 1, 0) for n in range(3))
    return Emitted("f", "", kernels, steps, temporaries)


def cut_of(program: Emitted, sizes, freed):
    return cut(program, sizes[:INPUTS], sizes[INPUTS : INPUTS + OUTPUTS], freed).segments


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """As many segments as spare anything."""
    monkeypatch.setattr(segments, "WORTH", 0.0)


@given(uses, sizes, some, st.sampled_from([(), (1,), (0, 4)]))
def test_segments_do_what_the_program_does(uses, sizes, freed, clear):
    """Every launch changes all arrays that are no inputs, by all that it is given; those that stay clear are as they were."""
    program = emitted(uses, sizes, clear)

    def run(step: Step, memory: dict, part: Emitted) -> None:
        lasting = {s for s in step.slots if s.kind == "temporary" and part.temporaries[s.number].stays_clear}
        seen = hash((step.kernel, step.name, *(0 if s in lasting else memory[s] for s in step.slots)))
        for k, slot in enumerate(step.slots):
            if slot.kind != "input" and slot not in lasting:
                memory[slot] = hash((seen, k))

    whole = {slot: slot.number for slot in SLOTS}
    for step in program.steps:
        run(step, whole, program)
    arrays: dict[int, int] = {n: slot.number for n, slot in enumerate(SLOTS) if slot.kind == "input"}
    order = []
    for segment in cut_of(program, sizes, freed):
        part = segment.emitted
        memory = {Slot("input", k): arrays[n] for k, n in enumerate(segment.inputs)}
        fresh = {k: SLOTS[n].number for k, n in enumerate(segment.outputs) if n != WORKSPACE}
        assert not arrays.keys() & set(segment.outputs)
        memory |= {Slot("output", k): number for k, number in fresh.items()}
        for k, t in enumerate(part.temporaries):
            assert t.stays_clear or t.within == Slot("output", segment.outputs.index(WORKSPACE))
            assert t.stays_clear or t.end <= segment.workspace
            memory[Slot("temporary", k)] = None
        began = set()
        for step in part.steps:
            order.append(step.name)
            original = next(s for s in program.steps if s.name == step.name)
            for slot, own in zip(step.slots, original.slots):
                if slot.kind == "temporary" and slot not in began:
                    began.add(slot)
                    memory[slot] = own.number
            before = {s: memory[s] for s in step.slots}
            run(step, memory, part)
            for slot, own in zip(step.slots, original.slots):  # an array that an earlier segment made is written, too
                if own.kind != "input" and slot.kind == "input":
                    seen = hash((step.kernel, step.name, *(0 if _clear(part, s) else before[s] for s in step.slots)))
                    memory[slot] = hash((seen, step.slots.index(slot)))
        for k, n in enumerate(segment.inputs):
            arrays[n] = memory[Slot("input", k)]
        for k, n in enumerate(segment.outputs):
            arrays[n] = memory.get(Slot("output", k))
        for n in segment.done:
            del arrays[n]
        assert {k.name for k in part.kernels} == {s.kernel for s in part.steps}
    assert order == [step.name for step in program.steps]
    made = [arrays[INPUTS + n] for n in range(OUTPUTS)]
    assert made == [whole[Slot("output", n)] for n in range(OUTPUTS)]


def _clear(part: Emitted, slot: Slot) -> bool:
    return slot.kind == "temporary" and part.temporaries[slot.number].stays_clear


def needed(program: Emitted, sizes, freed, bounds) -> int:
    """The most bytes at any step, counted step by step."""
    most = 0
    at = [[n for n, step in enumerate(program.steps) if slot in step.slots] for slot in SLOTS]
    for begin, end in pairwise(bounds):
        for now in range(begin, end):
            total = 0
            for slot, size, steps in zip(SLOTS, sizes, at):
                if slot.kind == "input":
                    total += size * (slot.number in freed and bool(steps) and steps[-1] >= begin)
                elif slot.kind == "output":
                    total += size * ((steps[0] if steps else 0) < end)
                elif steps:
                    inside = begin <= steps[0] and steps[-1] < end
                    alive = steps[0] <= now <= steps[-1] if inside else steps[0] < end and steps[-1] >= begin
                    total += size * alive
            most = max(most, total)
    return most


@given(uses, sizes, some)
def test_a_cut_spares_memory(uses, sizes, freed):
    program = emitted(uses, sizes)
    whole = cut(program, sizes[:INPUTS], sizes[INPUTS : INPUTS + OUTPUTS], freed)
    found, bounds = whole.segments, [0]
    for segment in found:
        bounds.append(bounds[-1] + len(segment.emitted.steps))
    assert bounds[-1] == len(program.steps) and len(found) <= segments.MOST
    assert whole.whole == needed(program, sizes, freed, [0, bounds[-1]])
    assert whole.needed == needed(program, sizes, freed, bounds)
    assert whole.needed < whole.whole or len(found) == 1


def test_activations_go_while_gradients_come():
    """A chain backward: layer k reads an activation, and writes a gradient as large."""
    steps = tuple(Step("k", (Slot("input", n), Slot("output", n))) for n in range(64))
    program = Emitted("f", "", (KernelSource("k", "", 1, 2),), steps, ())
    found = cut(program, [100] * 64, [100] * 64, range(64)).segments
    assert len(found) == segments.MOST and not any(s.workspace for s in found)
    alive, most = 6400, 0
    for segment in found:
        alive += 100 * len(segment.outputs)
        most = max(most, alive)
        alive -= 100 * len(segment.done)
    assert most <= 6400 + 100 * math.ceil(64 / segments.MOST)


def test_little_is_no_reason(monkeypatch):
    monkeypatch.setattr(segments, "WORTH", 1 / 4)
    steps = tuple(Step("k", (Slot("input", n), Slot("output", n))) for n in range(3))
    program = Emitted("f", "", (KernelSource("k", "", 1, 2),), steps, ())
    assert len(cut(program, [100] * 3, [10] * 3, range(3)).segments) == 1
    (only,) = cut(replace(program, steps=()), [100] * 3, [10] * 3, range(3)).segments
    assert only.outputs == (3, 4, 5) and only.done == (0, 1, 2)


# ---- executables -----------------------------------------------------------------------------------------------------

CHAIN = """op f(x: f32[M, K], w: f32[K, K], v: f32[K, K]) -> (y: f32[M, K], z: f32[M], top: f32[M, K]) {
    a[i, j] = tanh(sum[k](x[i, k] * w[k, j]))
    y[i, j] = sum[k](a[i, k] * v[k, j])
    b[i, j] = sum[k](y[i, k] * w[k, j]) + a[i, j]
    z[i] = sum[j](exp(b[i, j] - max[l](b[i, l])))
    c[i, j] = sum[k](b[i, k] * v[k, j])
    top[i, j] = c[i, j] * a[i, j] + sum[k](c[i, k] * w[k, j]) }"""


@pytest.mark.crossed
@pytest.mark.parametrize("most", [1, 2, 8])
@pytest.mark.parametrize("native", [True, False], ids=["machine code", "Python"])
def test_an_executables_segments_run_one_after_another(native, most, monkeypatch, rng):
    """Arrays that are done are spoiled, and what is allocated is spoiled before: nothing reads either."""
    monkeypatch.setattr(tables, "native_calls", lambda: native)
    monkeypatch.setattr(segments, "MOST", most)
    inputs = [rng.standard_normal(shape, np.float32) for shape in ((24, 64), (64, 64), (64, 64))]
    op = tilec.compile(CHAIN, target="cpu")
    expected = op(*inputs)
    found, parts = op._latest.cut(range(3))
    assert op._latest.cut([0, 1, 2])[1] is parts and op._latest.cut([1])[1] is not parts and parts[0]._parts == {}
    assert min(most, 3) <= len(parts) <= most and (most > 1 or found.segments[0].workspace)
    arrays = {n: a.copy() for n, a in enumerate(inputs)}
    for segment, part in zip(found.segments, parts):
        for n, (_, dtype, shape) in zip(segment.outputs, part.outputs):
            arrays[n] = np.full(math.prod(shape) * dtype.bytes, 0xA5, np.uint8).view(dtype.numpy).reshape(shape)
        part.program.launch([arrays[n].ctypes.data for n in (*segment.inputs, *segment.outputs)])
        for n in segment.done:
            arrays.pop(n).view(np.uint8)[...] = 0x5A
    for n, e in enumerate(expected):
        np.testing.assert_array_equal(arrays[3 + n], e)

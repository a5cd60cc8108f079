"""A program as several calls, one after another: segments of its launches.

A call holds what it is given until its end, and allocates its results at its beginning. A backward graph of PyTorch's is given all
activations of a model and returns all of its gradients: both would be in memory at once. Between segments the caller lets go of
what was read for the last time, and a result is allocated by the segment that writes it first. Kernels and their order stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tilec.runtime.program import Emitted, Slot
from tilec.runtime.temporaries import allocate, uses_of

MOST = 8
"""Segments of a program: each is a call of its own for the host."""
WORTH = 1 / 256
"""Of the memory that a program holds: how much of it a further segment must spare."""


@dataclass(frozen=True)
class Segment:
    """`inputs` are the arrays that it is given, `outputs` those that it allocates. Arrays are numbered: the program's inputs, then
    its outputs, then its temporaries, and last the workspace, in which those temporaries lie that no other segment needs. `done`:
    arrays that no later segment needs, but for the program's outputs."""

    emitted: Emitted
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    done: tuple[int, ...]

    @property
    def workspace(self) -> int:
        """Bytes of the workspace."""
        return max((t.end for t in self.emitted.temporaries if t.within is not None), default=0)


@dataclass(frozen=True)
class Cut:
    """A program's segments, and the most bytes that they need at a time, of those that are not inputs all the while; `whole`: what
    one call would need."""

    segments: tuple[Segment, ...]
    needed: int
    whole: int


def cut(emitted: Emitted, inputs: Sequence[int], outputs: Sequence[int], freed: Collection[int]) -> Cut:
    """Cuts a program, whose arrays have so many bytes. `freed`: the inputs that are freed when the caller lets them go. There is a
    single segment where more of them would spare little. The first one is given all inputs."""
    spans = _Spans(emitted, inputs, outputs, freed)
    bounds = chosen = [0, len(emitted.steps)]
    least = whole = spans.needed(*bounds)
    while len(bounds) <= MOST:  # the segment that needs most is cut, again and again: it may take several cuts to spare anything
        worst = max(pairwise(bounds), key=lambda ends: spans.needed(*ends))
        cuts = [(spans.needed(worst[0], k), spans.needed(k, worst[1]), k) for k in range(worst[0] + 1, worst[1])]
        if not cuts:
            break
        bounds = sorted([*bounds, min(cuts, key=lambda c: (max(c[:2]), sum(c[:2])))[2]])
        now = max(spans.needed(*ends) for ends in pairwise(bounds))
        if now < least and now <= least * (1 - WORTH * (len(bounds) - len(chosen))):
            least, chosen = now, bounds
    return Cut(tuple(_segment(emitted, len(inputs), len(outputs), *ends) for ends in pairwise(chosen)), least, whole)


class _Spans:
    """The bytes of arrays, and the first and the last step that each is in memory for."""

    def __init__(self, emitted: Emitted, inputs: Sequence[int], outputs: Sequence[int], freed: Collection[int]):
        uses, end = uses_of(emitted.steps), len(emitted.steps)
        rows = [(inputs[n], -1, uses.get(Slot("input", n), (0, -1))[1], False) for n in freed]
        rows += [(size, uses.get(Slot("output", n), (0, 0))[0], end, False) for n, size in enumerate(outputs)]
        for n, t in enumerate(emitted.temporaries):
            if not t.stays_clear and (used := uses.get(Slot("temporary", n))) is not None:
                rows.append((t.bytes, *used, True))
        self.bytes, self.first, self.last, self.temporary = np.array(rows, np.int64).reshape(-1, 4).T

    def needed(self, begin: int, end: int) -> int:
        """The most bytes that a segment of these steps needs: arrays all the time, temporaries of its own while they live."""
        here = (self.first < end) & (self.last >= begin)
        own = (self.temporary == 1) & (self.first >= begin) & (self.last < end)
        change = np.zeros(end - begin + 1, np.int64)
        np.add.at(change, self.first[own] - begin, self.bytes[own])
        np.add.at(change, self.last[own] - begin + 1, -self.bytes[own])
        return int(self.bytes[here & ~own].sum() + change.cumsum().max())


def _segment(emitted: Emitted, inputs: int, outputs: int, begin: int, end: int) -> Segment:
    uses, steps = uses_of(emitted.steps), emitted.steps[begin:end]
    starts = {"input": 0, "output": inputs, "temporary": inputs + outputs}
    given = [Slot("input", n) for n in range(inputs)] if begin == 0 else []
    made = [Slot("output", n) for n in range(outputs) if Slot("output", n) not in uses] if begin == 0 else []
    own: list[int] = []  # temporaries
    done = [slot for slot in given if slot not in uses]
    for slot in dict.fromkeys(slot for step in steps for slot in step.slots):
        first, last = uses[slot]
        if slot.kind == "temporary" and (
            (first >= begin and last < end) or emitted.temporaries[slot.number].stays_clear
        ):
            own.append(slot.number)
            continue
        if slot.kind != "input" and first >= begin:
            made.append(slot)
        elif slot not in given:
            given.append(slot)
        if slot.kind != "output" and last < end:
            done.append(slot)
    became = {slot: Slot("input", n) for n, slot in enumerate(given)}
    became |= {slot: Slot("output", n) for n, slot in enumerate(made)}
    became |= {Slot("temporary", n): Slot("temporary", k) for k, n in enumerate(own)}
    steps = tuple(replace(step, slots=tuple(became[slot] for slot in step.slots)) for step in steps)
    lasting = [k for k, n in enumerate(own) if emitted.temporaries[n].stays_clear]
    temporaries = allocate([emitted.temporaries[n].bytes for n in own], steps, lasting)
    numbers = [[starts[s.kind] + s.number for s in slots] for slots in (given, made, done)]
    if len(lasting) < len(own):
        within = Slot("output", len(made))
        temporaries = tuple(t if t.stays_clear else replace(t, within=within) for t in temporaries)
        workspace = inputs + outputs + len(emitted.temporaries)
        numbers[1].append(workspace)
        numbers[2].append(workspace)
    called = {step.kernel for step in steps}
    kernels = tuple(k for k in emitted.kernels if k.name in called)
    part = replace(emitted, steps=steps, kernels=kernels, temporaries=temporaries)
    return Segment(part, *map(tuple, numbers))

"""Planted defects, for the tests of hunts: `fuzz.attempt` where a program with a word in it fails in a way of its own. And kernels
for classes of sizes that are wrong at some of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fuzz import attempt
from fuzz.attempt import Counts, draw, kind_of, write
from tilec.core.varying import number
from tilec.driver.recipe import Compiled, Recipe
from tilec.runtime import sized
from tilec.runtime.program import Emitted

__all__ = ["SIZED", "SPOILING", "Counts", "draw", "kind_of", "run", "write"]


class Spoiled(Exception):
    """What a GPU's fault is: nothing in the process goes on after it."""


SPOILING = (Spoiled,)
_spoiled = False


def run(drawn: attempt.Drawn, counts: Counts) -> None:
    global _spoiled
    text = drawn.case.text if drawn.case else drawn.text
    if _spoiled or ("cumprod[" in text and drawn.case):
        _spoiled = True
        raise Spoiled("again" if "cumprod[" not in text else "planted")
    if "sum[" in text:
        raise AssertionError("planted")
    if "exp(" in text:
        os.abort()
    if "argmax[" in text and drawn.case is None:  # a hunt waits long for programs that hang
        time.sleep(3600)


def _unmasked(patch: Any) -> None:
    """Kernels take sizes for the next multiples of 16: they go on behind the end."""
    right = sized.at

    def at(emitted: Emitted, sizes: Mapping[str, int]) -> Emitted:
        found = right(emitted, sizes)
        steps = tuple(replace(s, sizes=tuple(-(-n // 16) * 16 for n in s.sizes)) for s in found.steps)
        return replace(found, steps=steps)

    patch.setattr(sized, "at", at)


def _stale(patch: Any) -> None:
    """Kernels get the sizes of the first call of their class."""
    right, first = sized.at, {}

    def at(emitted: Emitted, sizes: Mapping[str, int]) -> Emitted:
        kept = first.setdefault(id(emitted), (emitted, sizes))[1]
        steps = [replace(s, sizes=tuple(number(n, kept) for n in s.sizes)) for s in emitted.steps]
        return replace(right(emitted, sizes), steps=tuple(steps))

    patch.setattr(sized, "at", at)


def _confused(patch: Any) -> None:
    """Kernels of several sizes get each in another one's place."""
    right = sized.at

    def at(emitted: Emitted, sizes: Mapping[str, int]) -> Emitted:
        found = right(emitted, sizes)
        return replace(found, steps=tuple(replace(s, sizes=s.sizes[::-1]) for s in found.steps))

    patch.setattr(sized, "at", at)


def _stretched(patch: Any) -> None:
    """Rows are read one element too far apart."""
    right = Recipe.compiled_here

    def compiled_here(recipe: Recipe) -> Compiled:
        found = right(recipe)
        module = re.sub(r"(= \w+\[.*? \* )([MNK])\b", r"\1(\2 + 1)", found.emitted.module)
        return replace(found, emitted=replace(found.emitted, module=module))

    patch.setattr(Recipe, "compiled_here", compiled_here)


SIZED: dict[str, Callable[[Any], None]] = {
    "a tail that is not masked": _unmasked, "the extent of an earlier call": _stale, "another size's extent": _confused,
    "a wrong stride": _stretched,
}  # fmt: skip
"""Plants a defect, with pytest's `monkeypatch`."""

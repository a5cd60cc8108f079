"""Planted defects, for the tests of hunts: `fuzz.attempt` where a program with a word in it fails in a way of its own."""

from __future__ import annotations

import os
import time

from fuzz import attempt
from fuzz.attempt import Counts, draw, kind_of, write

__all__ = ["SPOILING", "Counts", "draw", "kind_of", "run", "write"]


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

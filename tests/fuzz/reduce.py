"""Reducing a row of choices that fails: fewer, and simpler ones, that fail in the same way."""

from __future__ import annotations

from collections.abc import Generator


def reductions(choices: list[int]) -> Generator[list[int], list[int] | None, None]:
    """Yields rows to try, and is sent what such a row took where it failed in the same way, None where it did not.

    Parts go first, long before short, from the end on; then each choice becomes simpler.
    """
    best, before = list(choices), None
    while best != before:
        before = list(best)
        length = max(1, len(best) // 2)
        while length:
            at = len(best) - length
            while at >= 0:
                for attempt in (best[:at] + best[at + length :], _zeroed(best, at, length)):
                    if attempt != best and (took := (yield attempt)) is not None and _simpler(took, best):
                        best = took
                        break
                at = min(at, len(best)) - length
            length //= 2
        for at in range(len(best) - 1, -1, -1):
            low = 0  # which is simpler, and does not fail
            while at < len(best) and best[at] > low:
                middle = (low + best[at]) // 2
                took = yield [*best[:at], middle, *best[at + 1 :]]
                if took is not None and _simpler(took, best):
                    best = took
                else:
                    low = middle + 1


def _zeroed(numbers: list[int], at: int, length: int) -> list[int]:
    return [*numbers[:at], *[0] * length, *numbers[at + length :]]


def _simpler(a: list[int], b: list[int]) -> bool:
    return (len(a), a) < (len(b), b)

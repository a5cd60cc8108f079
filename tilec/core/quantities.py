"""Times and amounts as text."""

from __future__ import annotations

from collections.abc import Iterable


def duration(us: float) -> str:
    """`0.120 us`, `85.3 us`, `1.25 ms`, `2.40 s`: of microseconds."""
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    if us >= 1e3:
        return f"{us / 1e3:.2f} ms"
    return f"{us:.1f} us" if us >= 0.1 or us == 0 else f"{us:.3f} us"


def amount(n: float) -> str:
    """`1.05 M`, before a unit: decimal prefixes."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= scale:
            return f"{n / scale:.2f} {prefix}"
    return f"{n:.0f} "


def by_sizes(sizes: Iterable[int]) -> str:
    """`64 x 512`."""
    return " x ".join(map(str, sizes))


def count(n: int, one: str, many: str | None = None) -> str:
    """`1 kernel`, `3 kernels`."""
    return f"{n} {one if n == 1 else many or one + 's'}"

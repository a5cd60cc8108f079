"""Failures that PyTorch makes up for. Each is reported by one warning: what is slower than it could be is not so in silence."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

SHOWN = 4  # kinds of operations that a warning lists
LONGEST = 300  # characters of a reason


class FallbackWarning(UserWarning):
    """tilec failed at something that it should have done, such as compiling a partition, which PyTorch then runs.
    `tilec.torch.report()` lists such partitions."""


_reported: set[str] = set()


def forget() -> None:
    """Has everything reported again."""
    _reported.clear()


def report(nodes: Sequence[fx.Node], error: BaseException | str) -> None:
    """Warns that PyTorch computes these operations, and why: once for each reason and kind of operations."""
    from tilec.torch.origins import called, module_path, source_line

    why = first_line(f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error)
    kinds = Counter(called(n) for n in nodes)
    what = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in kinds.most_common(SHOWN))
    if (others := len(nodes) - sum(count for _, count in kinds.most_common(SHOWN))) > 0:
        what += f" and {others} others"
    about = f"{what}: {why}"
    if about in _reported:
        return
    where = next((" in ".join(p for p in (module_path(n), source_line(n)) if p) for n in nodes if source_line(n)), "")
    warn(
        f"tilec: PyTorch runs {what}{f', first in {where}' if where else ''}, since tilec failed: "
        f"{short(why)}. options={{'strict': True}} makes that an error with a traceback.",
        about,
    )


def first_line(text: str) -> str:
    """The first line of a reason."""
    return text.strip().partition("\n")[0]


def short(why: str) -> str:
    """A reason of one line, up to so many characters as a warning has."""
    return f"{why[:LONGEST]}{'...' * (len(why) > LONGEST)}"


def warn(message: str, about: str = "") -> None:
    """Warns once of what is `about` the same."""
    if (key := about or message) not in _reported:
        _reported.add(key)
        warnings.warn(message, FallbackWarning, stacklevel=3)

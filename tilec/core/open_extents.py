"""What a type says of an extent that varies: nothing that a pass may take for a number.

MLIR's types have one large negative number for `?`, with which a pass that does not think of it would go on to compute: it would
take the extent for a small one, or for one that no tile divides. While a program is lowered whose sizes vary, a `?` that is read
from a type is an `Open`. It is equal to `mlir.DYNAMIC`, and to no other number; whatever else is asked of it raises `Varies`. So a
pass that has not learnt of sizes that vary makes no kernel that is wrong at some of them: it makes none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tilec.core.bindings import ir
from tilec.core.varying import Varies


class Open(int):
    """The extent of a `?`."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Open) and other is not self:
            raise Varies("whether two extents are equal")
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def _refuse(self, *_: object) -> NoReturn:
        raise Varies("the number of an extent")

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __abs__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = _refuse


_DYNAMIC = ir.ShapedType.get_dynamic_size()
_SHAPE = ir.ShapedType.shape


class _Strict(threading.local):
    on = False


_STRICT = _Strict()


def _shape(type_: ir.ShapedType) -> list[int]:
    found: list[int] = _SHAPE.__get__(type_)
    return [Open(n) if n == _DYNAMIC else n for n in found] if _STRICT.on and _DYNAMIC in found else found


ir.ShapedType.shape = property(_shape)  # type: ignore[assignment]


@contextmanager
def strict(on: bool) -> Iterator[None]:
    """While a program is lowered whose sizes vary."""
    before, _STRICT.on = _STRICT.on, on
    try:
        yield
    finally:
        _STRICT.on = before

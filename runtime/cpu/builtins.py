"""Python's `range`, `min` and `max` as printed CPU kernels use them: on integers, with positive steps.

Numba's own forms serve any program. Its `range` checks the step, counts iterations ahead and may raise; its `min` is a
function of its own to compile. These forms compile in a fraction of the time, to the loop that a C compiler makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.extending import intrinsic, models, register_model

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.datamodel import DataModelManager
    from numba.core.imputils import _IternextResult as IterResult
    from numba.core.typing import Context, Signature

_I64, _WORD = types.int64, ir.IntType(64)


class Count(types.SimpleIterableType):
    """`range(start, stop, step)` of 64-bit integers; `short`: of `short_range`."""

    def __init__(self, short: bool = False) -> None:
        self.short = short
        super().__init__("tilec_short_range" if short else "tilec_range", CountIterator(short))


class CountIterator(types.SimpleIteratorType):
    def __init__(self, short: bool) -> None:
        self.short = short
        super().__init__(f"tilec_{'short_' if short else ''}range_iterator", _I64)


COUNT, SHORT = Count(), Count(short=True)


@register_model(Count)
class _CountModel(models.StructModel):
    def __init__(self, manager: DataModelManager, type_: types.Type) -> None:
        super().__init__(manager, type_, [("start", _I64), ("stop", _I64), ("step", _I64)])


@register_model(CountIterator)
class _IteratorModel(models.StructModel):
    def __init__(self, manager: DataModelManager, type_: types.Type) -> None:
        members = [("next", types.CPointer(_I64)), ("stop", _I64), ("step", _I64)]
        super().__init__(manager, type_, members)


@intrinsic
def count(
    typingctx: Context, first: types.Type, stop: types.Type | None = None, step: types.Type | None = None
) -> tuple[Signature, Callable[..., ir.Value]] | None:
    """`range`, with one to three arguments."""
    given = [a for a in (first, stop, step) if not isinstance(a, types.Omitted) and a is not None]
    if not all(isinstance(types.unliteral(a), types.Integer) for a in given):
        return None

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> ir.Value:
        values = [context.cast(builder, v, t, _I64) for v, t in zip(arguments, given)]
        start, stop = (_WORD(0), values[0]) if len(given) == 1 else values[:2]
        return _record(builder, start, stop, values[2] if len(given) == 3 else _WORD(1))

    return COUNT(*map(types.unliteral, given), *[types.Omitted(None)] * (3 - len(given))), generate


@intrinsic
def short_range(typingctx: Context, stop: types.Type) -> tuple[Signature, Callable[..., ir.Value]]:
    """`range` of a number in the text, for a loop that shall become vectors before LLVM writes it out, the last one with a mask.

    LLVM writes out loops of few iterations first. Of a row of elements side by side it then makes vectors of the loop around
    it, whose elements lie a row apart.
    """

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> ir.Value:
        return _record(builder, _WORD(0), context.cast(builder, arguments[0], types.unliteral(stop), _I64), _WORD(1))

    return SHORT(types.unliteral(stop)), generate


@lower_builtin("getiter", Count)
def _start(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> ir.Value:
    start, stop, step = _fields(builder, arguments[0])
    following = cgutils.alloca_once(builder, _WORD)
    builder.store(start, following)
    return _record(builder, following, stop, step)


@lower_builtin("iternext", CountIterator)
@iternext_impl(RefType.UNTRACKED)
def _next(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value], result: IterResult
) -> None:
    following, stop, step = _fields(builder, arguments[0])
    value = builder.load(following)
    valid = builder.icmp_signed("<", value, stop)
    result.set_valid(valid)
    with builder.if_then(valid):
        result.yield_(value)
        builder.store(builder.add(value, step, flags=["nsw"]), following)


def _record(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
    made = ir.Constant(ir.LiteralStructType([v.type for v in values]), ir.Undefined)
    for position, value in enumerate(values):
        made = builder.insert_value(made, value, position)
    return made


def _fields(builder: ir.IRBuilder, record: ir.Value) -> list[ir.Value]:
    return [builder.extract_value(record, position) for position in range(3)]


def _choice(comparison: str) -> Callable[..., object]:
    @intrinsic
    def choose(typingctx: Context, a: types.Type, b: types.Type) -> tuple[Signature, Callable[..., ir.Value]] | None:
        type_ = typingctx.unify_types(types.unliteral(a), types.unliteral(b))
        if not isinstance(type_, (types.Integer, types.Boolean)):
            return None

        def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> ir.Value:
            signed = getattr(type_, "signed", False)
            compare = builder.icmp_signed if signed else builder.icmp_unsigned
            left, right = arguments
            return builder.select(compare(comparison, left, right), left, right)

        return type_(type_, type_), generate

    return choose


class _Hints(ir.values.MDValue):
    """A loop's name for LLVM, with what it shall do: a node that contains itself, which llvmlite has no form of."""

    def descr(self, buf: list[str]) -> None:
        buf.append(f"distinct !{{ {', '.join(v.get_reference() for v in (self, *self.operands))} }}\n")


def hints_of_short_loop(module: ir.Module) -> _Hints:
    """For `short_range`: it becomes vectors, the last one with a mask, and is written out after that, not before."""

    def hint(name: str, *values: ir.Value) -> ir.Value:
        return module.add_metadata([ir.MetaDataString(module, f"llvm.loop.{name}"), *values])

    done = hint("vectorize.followup_all", hint("isvectorized", ir.IntType(32)(1)))
    hints = [hint("unroll.disable"), hint("vectorize.predicate.enable", ir.IntType(1)(1)), done]
    return _Hints(module, hints, str(len(module.metadata)))


FORMS = {range: count, min: _choice("<"), max: _choice(">")}

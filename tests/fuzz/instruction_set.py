"""Instructions of PTX by what its manual says that they compute, over arrays with an element for each thread.

Registers of integers are arrays of unsigned numbers. What the manual leaves open is not here: divisors of 0, least integers
divided by -1, bits of NaN, and the integer that a NaN becomes, for which 0 is chosen in the kernel (as tilec's kernels do).
Nor is what LLVM does not write and ptxas of CUDA 13.0 gets wrong: shifts by the width and more, fields of bits beyond the
number's end, `prmt` with signs, `lop3` of one register twice, 8 bits of a register of 64 that are extended to 16, and floats that
are rounded up or down to integers in one instruction.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from fuzz import instruction_values as V

WRITTEN_OUT = ("place", "count", "bytes")
ALIASES = {f"{name}{w}": "b32" for name in ("amount", *WRITTEN_OUT) for w in (16, 32, 64)}
ALIASES |= {f"{sign}divisor{w}": f"b{w}" for sign in "us" for w in (16, 32, 64)}
"""Operands of which not any register will do, by the width of what they are for: amounts of shifts, places and counts of bits and
choices of bytes, which are always written out, divisors."""


@dataclass(frozen=True)
class Op:
    """`text` has places for the result {d}, operands {0}..., a number {n} of its own for labels. `numbers` are the operands that
    may be written out; `weight` is how often it is drawn."""

    name: str
    result: str
    operands: tuple[str, ...]
    value: Callable[..., np.ndarray]
    text: str
    numbers: tuple[int, ...] = ()
    weight: float = 1.0

    @property
    def unsigned(self) -> bool:
        return ".u" in self.name


OPS: dict[str, Op] = {}


def _op(name, result, operands, value, text=None, numbers=(), weight=1.0) -> None:
    operands = tuple(operands.split())
    text = text or f"{name} " + ", ".join(["{d}", *(f"{{{i}}}" for i in range(len(operands)))]) + ";"
    OPS[name] = Op(name, result, operands, value, text, numbers, weight)


def _scoped(registers: str, *lines: str) -> str:
    """Instructions with registers of their own."""
    return "\n\t".join(["{{", *(f".reg {r};" for r in registers.split("; ")), *lines, "}}"])


# ---- integers ----------------------------------------------------------------------------------------------------------


for w in (16, 32, 64):
    b = f"b{w}"
    _op(f"mov.{b}", b, b, lambda a: a, numbers=(0,), weight=0.3)
    _op(f"add.s{w}", b, f"{b} {b}", operator.add, numbers=(1,), weight=3)
    _op(f"sub.s{w}", b, f"{b} {b}", operator.sub, numbers=(0, 1), weight=3)
    _op(f"mul.lo.s{w}", b, f"{b} {b}", operator.mul, numbers=(1,), weight=3)
    _op(f"mad.lo.s{w}", b, f"{b} {b} {b}", lambda a, b, c: a * b + c, numbers=(1, 2), weight=2)
    _op(f"neg.s{w}", b, b, lambda a: -a, weight=3)
    _op(f"abs.s{w}", b, b, lambda a: np.where(V.signed(a) < 0, -a, a), weight=2)
    _op(f"not.{b}", b, b, operator.invert)
    for name, value in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        _op(f"{name}.{b}", b, f"{b} {b}", value, numbers=(1,), weight=2)
    _op(f"shl.{b}", b, f"{b} amount{w}", V.shift("l"), numbers=(0, 1), weight=2)
    _op(f"selp.{b}", b, f"{b} {b} pred", lambda a, b, p: np.where(p, a, b), numbers=(0, 1), weight=3)
    for sign in "su":
        t = f"{sign}{w}"
        _op(f"shr.{t}", b, f"{b} amount{w}", V.shift("r", sign), numbers=(0, 1), weight=2)
        _op(f"mul.hi.{t}", b, f"{b} {b}", V.high(sign), numbers=(1,))
        for how in ("min", "max"):
            _op(f"{how}.{t}", b, f"{b} {b}", V.extreme(how, sign), numbers=(1,), weight=3)
        for name, rest in (("div", False), ("rem", True)):
            _op(f"{name}.{t}", b, f"{b} {sign}divisor{w}", V.quotient(sign, rest), numbers=(1,), weight=0.15)
        for how in V.COMPARE:
            _op(f"setp.{how}.{t}", "pred", f"{b} {b}", V.compared(how, sign), numbers=(1,), weight=0.4)
        if w < 64:
            twice = f"b{2 * w}"
            _op(f"mul.wide.{t}", twice, f"{b} {b}", V.wide(sign, w), numbers=(1,), weight=2)
            added = lambda a, b, c, sign=sign, w=w: V.wide(sign, w)(a, b) + c  # noqa: E731
            _op(f"mad.wide.{t}", twice, f"{b} {b} {twice}", added, numbers=(1,))
    if w > 16:
        half = f"b{w // 2}"
        _op(f"popc.{b}", "b32", b, V.counted, weight=0.5)
        _op(f"clz.{b}", "b32", b, V.leading, weight=0.5)
        _op(f"brev.{b}", b, b, V.reversed, weight=0.3)
        _op(f"bfi.{b}", b, f"{b} {b} place{w} count{w}", V.inserted, numbers=(2, 3), weight=0.7)
        for sign in "su":
            _op(f"bfe.{sign}{w}", b, f"{b} place{w} count{w}", V.extracted(sign), numbers=(1, 2), weight=0.7)
        joined = lambda a, c, w=w: V.cut(a, w) | V.cut(c, w) << np.array(w // 2, f"u{w // 8}")  # noqa: E731
        _op(f"pack {b}", b, f"{half} {half}", joined, f"mov.{b} {{d}}, {{{{{{0}}, {{1}}}}}};")
        _op(
            f"lower {b}",
            half,
            b,
            lambda a, w=w: V.cut(a, w // 2),
            _scoped(f".{half} %other", f"mov.{b} {{{{{{d}}, %other}}}}, {{0}};"),
            weight=0.7,
        )
        _op(f"upper {b}", half, b, lambda a, w=w: V.cut(a >> np.array(w // 2, a.dtype), w // 2), _scoped(
            f".{half} %other", f"mov.{b} {{{{%other, {{d}}}}}}, {{0}};"), weight=0.7)  # fmt: skip

_op("prmt.b32", "b32", "b32 b32 bytes32", V.permuted, numbers=(1, 2))
for way in "lr":
    for wrap in ("wrap", "clamp"):
        _op(f"shf.{way}.{wrap}.b32", "b32", "b32 b32 amount32", V.funnel(way, wrap == "wrap"), numbers=(2,), weight=0.4)

for to in (16, 32, 64):  # the lower bits of a register that may have more
    for register in (16, 32, 64):
        for source in (8, 16, 32, 64):
            if source > register or (source == to == register):
                continue
            for sign in "su":
                if (source >= to and sign == "s") or (sign, to, register, source) == ("s", 16, 64, 8):
                    continue

                extended = lambda a, sign=sign, to=to, source=source: V.extend(V.cut(a, source), sign, to)  # noqa: E731
                name, of = f"cvt.{sign}{to}.{sign}{source}", f" of b{register}" if source != register else ""
                rare = 0.3 if source not in (register, 8) else 1
                _op(name + of, f"b{to}", f"b{register}", extended, f"{name} {{d}}, {{0}};", weight=2 * rare)

# ---- predicates --------------------------------------------------------------------------------------------------------

for name, value in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
    _op(f"{name}.pred", "pred", "pred pred", value)
_op("not.pred", "pred", "pred", operator.invert)

# ---- floats ------------------------------------------------------------------------------------------------------------


for t in ("f32", "f64"):
    rare = 0.15 if t == "f32" else 0.05
    _op(f"mov.{t}", t, t, lambda a: a, numbers=(0,), weight=0.3)
    _op(f"add.rn.{t}", t, f"{t} {t}", operator.add, numbers=(1,), weight=3)
    _op(f"sub.rn.{t}", t, f"{t} {t}", operator.sub, numbers=(0, 1), weight=3)
    _op(f"mul.rn.{t}", t, f"{t} {t}", operator.mul, numbers=(1,), weight=4)
    _op(f"fma.rn.{t}", t, f"{t} {t} {t}", V.fused, numbers=(1, 2), weight=3)
    _op(f"neg.{t}", t, t, operator.neg, weight=3)
    _op(f"abs.{t}", t, t, np.abs, weight=3)
    _op(f"div.rn.{t}", t, f"{t} {t}", operator.truediv, numbers=(0, 1), weight=rare)
    _op(f"rcp.rn.{t}", t, t, lambda a: np.array(1, a.dtype) / a, weight=rare)
    _op(f"sqrt.rn.{t}", t, t, np.sqrt, weight=rare)
    _op(f"selp.{t}", t, f"{t} {t} pred", lambda a, b, p: np.where(p, a, b), numbers=(0, 1), weight=4)
    for how in ("min", "max"):
        _op(f"{how}.{t}", t, f"{t} {t}", V.float_extreme(how), numbers=(1,), weight=3)
        if t == "f32":
            _op(f"{how}.NaN.{t}", t, f"{t} {t}", V.float_extreme(how, True), numbers=(1,))
    for how in (*V.COMPARE, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        _op(
            f"setp.{how}.{t}",
            "pred",
            f"{t} {t}",
            V.float_compared(how),
            numbers=() if how[0] == "n" else (1,),
            weight=0.6,
        )
    for how, rounded in V.ROUND.items():
        _op(f"cvt.{how}.{t}.{t}", t, t, rounded, weight=0.5)
        for sign in "su" if how in ("rzi", "rni") else "":
            for w in (16, 32, 64):
                name = f"cvt.{how}.{sign}{w}.{t}"
                text = _scoped(f".pred %nan; .b{w} %whole", f"setp.nan.{t} %nan, {{0}}, {{0}};",
                               f"{name} %whole, {{0}};", f"selp.b{w} {{d}}, 0, %whole, %nan;")  # fmt: skip
                text = None if (t, w) == ("f32", 32) else text  # of which the manual says that a NaN becomes 0
                _op(name, f"b{w}", t, V.to_integer(how, sign, w), text, weight=1 if how == "rzi" else 0.3)
    for sign in "su":
        for w in (16, 32, 64):
            _op(
                f"cvt.rn.{t}.{sign}{w}",
                t,
                f"b{w}",
                lambda a, sign=sign, t=t: V.as_sign(a, sign).astype(V.KINDS[t]),
                weight=1.5,
            )
    bits = f"b{t[1:]}"
    _op(f"{t} of bits", t, bits, lambda a, t=t: a.view(V.KINDS[t]), f"mov.{bits} {{d}}, {{0}};")
    _op(f"bits of {t}", bits, t, lambda a: np.where(np.isnan(a), 0, a.view(f"u{a.dtype.itemsize}")).astype(f"u{a.dtype.itemsize}"),
        _scoped(f".pred %nan; .{bits} %raw", f"setp.nan.{t} %nan, {{0}}, {{0}};", f"mov.{bits} %raw, {{0}};",
                f"selp.{bits} {{d}}, 0, %raw, %nan;"))  # fmt: skip

_op("cvt.f64.f32", "f64", "f32", lambda a: a.astype("f8"), weight=5)
for how, weight in (("rn", 4), ("rz", 1), ("rm", 0.4), ("rp", 0.4)):
    _op(f"cvt.{how}.f32.f64", "f32", "f64", V.narrowed(how), weight=weight)
for half, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
    text = _scoped(".b16 %half", f"cvt.rn.{half}.f32 %half, {{0}};", f"cvt.f32.{half} {{d}}, %half;")
    _op(f"through {half}", "f32", "f32", lambda a, dtype=dtype: a.astype(dtype).astype("f4"), text)

# ---- branches and loops ------------------------------------------------------------------------------------------------


def _loop(kind: str, fold: Op, step: Op | None, steps: int) -> None:
    """`acc = fold(acc, step(i, b))` for i from 0 on."""

    def value(a, b):
        for i in range(steps):
            a = fold.value(a, step.value(np.full(a.shape, i, a.dtype), b) if step else b)
        return a

    wide, count = {"b16": "cvt.u16.u32", "b64": "cvt.u64.u32"}.get(kind, "mov.b32"), f"setp.ne.s32 %more, %i, {steps};"
    lines = [f"mov.{kind} %sum, {{0}};", "mov.b32 %i, 0;", "$loop_{n}:"]
    if step:
        lines += [f"{wide} %wide, %i;", f"{step.name} %step, %wide, {{1}};"]
    lines += [
        f"{fold.name} %sum, %sum, {'%step' if step else '{1}'};",
        "add.s32 %i, %i, 1;",
        count,
        "@%more bra $loop_{n};",
    ]
    registers = f".{kind} %sum, %step, %wide; .b32 %i; .pred %more"
    name = f"loop {steps} {fold.name}" + (f" {step.name}" if step else "")
    _op(name, kind, f"{kind} {kind}", value, _scoped(registers, *lines, f"mov.{kind} {{d}}, %sum;"), weight=0.04)


def _branch(kind: str, op: Op) -> None:
    """`p ? a : op(a, b)`."""
    text = _scoped(
        f".{kind} %way", f"mov.{kind} %way, {{1}};", "@{0} bra $branch_{n};", f"{op.name} %way, {{1}}, {{2}};",
        "$branch_{n}:", f"mov.{kind} {{d}}, %way;",
    )  # fmt: skip
    value = lambda p, a, b: np.where(p, a, op.value(a, b))  # noqa: E731
    _op(f"branch {op.name}", kind, f"pred {kind} {kind}", value, text, weight=0.1)


for kind in ("b16", "b32", "b64", "f32", "f64"):
    names = [f"{n}.rn.{kind}" for n in ("add", "sub", "mul")] + [f"{n}.{kind}" for n in ("min", "max")]
    if kind[0] == "b":
        t = f"s{kind[1:]}"
        names = [f"{n}.{t}" for n in ("add", "sub", "mul.lo", "min", "max")] + [f"xor.{kind}", f"max.u{kind[1:]}"]
    for name in names:
        _branch(kind, OPS[name])
        for steps in (2, 4):
            for step in [None] if kind[0] == "f" else [OPS[f"{n}.{t}"] for n in ("sub", "add", "mul.lo", "max")]:
                _loop(kind, OPS[name], step, steps)

"""PTX written so that known faults of ptxas do not show: `docs/upstream/ptxas-*.md`."""

from __future__ import annotations

import re


def without_faults(ptx: str) -> str:
    """The same kernels in instructions that every known ptxas assembles rightly."""
    return _parted(_two_at_a_time(_wrapping(_in_words(_signed_zeros(_unordered(_upper_halves(ptx)))))))


_ZERO = (".reg .b32 %zero;", "mov.u32 %zero, %ctaid.z;")
"""A 0 that ptxas does not know: grids have one dimension."""


def _block(*lines: str, indent: str = "") -> str:
    """Instructions with registers of their own."""
    return indent + "\n\t".join(["{", *lines, "}"])


_UPPER_HALF = re.compile(r"\bmul\.hi\.u32\s+(%\w+),")
_WIDENED = re.compile(r"\bcvt\.u64\.u32(\s+)(%\w+), (%\w+);")


def _upper_halves(ptx: str) -> str:
    """The upper half of a product that is widened as a number that ptxas does not know.

    ptxas (13.0 and 13.5) subtracts from it by one multiplication with an addend, the negated lower half of the subtrahend, and
    forgets the carry of that negation: the difference is less by 2^32 where the lower half is 0.
    """
    halves = set(_UPPER_HALF.findall(ptx))

    def widened(m: re.Match[str]) -> str:
        space, to, operand = m.groups()
        if operand not in halves:
            return m[0]
        return _block(*_ZERO, f"or.b32 %zero, {operand}, %zero;", f"cvt.u64.u32{space}{to}, %zero;")

    return _WIDENED.sub(widened, ptx) if halves else ptx


_ORDERED = re.compile(r"^(\s*)setp\.(lt|le|gt|ge)(\.ftz)?\.f32(\s+)(%\w+)(,[^\n;]*;)", re.MULTILINE)
_OPPOSITE = {"lt": "geu", "le": "gtu", "gt": "leu", "ge": "ltu"}


def _unordered(ptx: str) -> str:
    """Each ordered comparison of f32 as the negation of the opposite unordered one: the negation takes no instruction.

    ptxas (13.0 and 13.5) knows a range of what `abs`, a square, `ex2` and `sin` give, and forgets that each may be NaN: it
    takes `abs(x) + 0.5 > 0` for true, also inside libdevice's functions (`fmod`). Unordered comparisons it leaves alone.
    """

    def negated(m: re.Match[str]) -> str:
        return f"{m[1]}setp.{_OPPOSITE[m[2]]}{m[3] or ''}.f32{m[4]}{m[5]}{m[6]}\n{m[1]}not.pred {m[5]}, {m[5]};"

    return _ORDERED.sub(negated, ptx)


_SELECTING = re.compile(r"^(\s*)((?:selp|min|max|mov)(?:\.NaN)?\.f32\s[^\n;]*)\b0f80000000\b([^\n;]*;)", re.MULTILINE)
_CLAMPING = re.compile(r"^(\s*)((?:min|max)\.f(32|64)\s[^\n;]*), 0([fd]3F[F8]0+);", re.MULTILINE)
_ONE = {"f3F800000": "0x3F800000", "d3FF0000000000000": "0x3FF0000000000000"}


def _signed_zeros(ptx: str) -> str:
    """Constants -0 as operands of selections, and 1 as bounds of clamps, as numbers that ptxas does not know.

    ptxas (13.0 and 13.5) takes `selp -0.0, 1.0` for a comparison's 1 or +0, `max(|x|, -0.0)` for a number whose sign
    `abs` need not clear, and the smaller of 1 and the larger of -0 (or 0) and x for its own clamping, which gives +0, also of NaN.
    """

    def chosen(m: re.Match[str]) -> str:
        indent, before, after = m.groups()
        return _unknown(indent, "32", "0x80000000", f"{before}%constant{after}")

    def clamped(m: re.Match[str]) -> str:
        indent, before, bits, constant = m.groups()
        return _unknown(indent, bits, _ONE[constant], f"{before}, %constant;") if constant in _ONE else m[0]

    return _CLAMPING.sub(clamped, _SELECTING.sub(chosen, ptx))


def _unknown(indent: str, bits: str, constant: str, instruction: str) -> str:
    """An instruction with a float `%constant`, of which ptxas knows no bit for sure."""
    widened = "cvt.u64.u32 %bits, %zero;" if bits == "64" else "mov.b32 %bits, %zero;"
    made = (widened, f"or.b{bits} %bits, %bits, {constant};", f"mov.b{bits} %constant, %bits;")
    return _block(*_ZERO, f".reg .b{bits} %bits;", f".reg .f{bits} %constant;", *made, instruction, indent=indent)


_NARROW = re.compile(
    r"^(\s*)(add|sub|mul\.lo|mul\.wide|mad\.lo|min|max|abs|neg|div|rem|shl|shr|setp\.\w+)\.([sub])16(\s+)([^\n;]*);",
    re.MULTILINE,
)


_EXTENDED = re.compile(r"^(\s*)cvt\.s16\.s8\s+(%\w+), (%\w+);", re.MULTILINE)


def _in_words(ptx: str) -> str:
    """Arithmetic of 16 bits in 32.

    ptxas of CUDA 13.0 forgets in many places that 16 bits were cut: it extends the negation of -2^15 as 2^15, compares what has
    bits above, and takes the smaller of two numbers together with another pair's larger one.
    """

    def widened(m: re.Match[str]) -> str:
        indent, op, sign, space, operands = m.groups()
        to, *values = re.split(r",\s*", operands)
        kind, shifts, compares = "s" if sign == "s" else "u", op in ("shl", "shr"), op.startswith("setp")
        lines, words = [".reg .b32 %word<4>;"], []
        for n, value in enumerate(values):
            if shifts and n:  # an amount has 32 bits
                words.append(value)
            elif not value.startswith("%"):
                number = int(value, 0) % 2**16
                words.append(str(number - 2**16 * (kind == "s" and number >= 2**15)))
            else:
                lines.append(f"cvt.{kind}32.{kind}16 %word{n}, {value};")
                words.append(f"%word{n}")
        name = "mul.lo" if op == "mul.wide" else op
        type_ = "b32" if op == "shl" else f"{kind}32"
        if op == "neg":
            name, words = "sub", ["0", *words]
        if op == "abs":  # `_wrapping` knows of abs
            type_ = "s32"
        result = to if compares or op == "mul.wide" else "%word3"
        lines.append(f"{name}.{type_}{space}{result}, {', '.join(words)};")
        if result != to:
            lines.append(f"cvt.u16.u32 {to}, %word3;")
        return _block(*lines, indent=indent)

    return _NARROW.sub(
        widened, _EXTENDED.sub(r"\1{\n\t.reg .b32 %word;\n\tcvt.s32.s8 %word, \3;\n\tcvt.u16.u32 \2, %word;\n\t}", ptx)
    )


_ABSOLUTE = re.compile(r"\babs\.s(32|64)(\s+)(%\w+), (%\w+);")


def _wrapping(ptx: str) -> str:
    """Absolute values of integers as the larger of a number and its negation: ptxas of CUDA 13.0 takes `abs(x) < 0` for false,
    though the absolute value of the least number is that number."""

    def larger(m: re.Match[str]) -> str:
        bits, space, to, operand = m.groups()
        lines = (f".reg .b{bits} %negated;", f"neg.s{bits} %negated, {operand};")
        return _block(*lines, f"max.s{bits}{space}{to}, {operand}, %negated;")

    return _ABSOLUTE.sub(larger, ptx)


_EXTREME = re.compile(r"\b(max|min)\.s32(\s+)(%\w+), ([%\w-]+), (%(?!second;)\w+);")


def _two_at_a_time(ptx: str) -> str:
    """The larger and the smaller of two signed integers with the second one computed anew.

    ptxas of CUDA 13.0 makes one instruction of `max(max(a, -b), c)` from sm_90 on and drops the negation, also of `0 - b` where
    only it knows the 0. It keeps a negation of the first operand. Here the second depends on a number that is 0 and that ptxas
    does not know: grids have one dimension.
    """

    def anew(m: re.Match[str]) -> str:
        kind, space, to, first, second = m.groups()
        lines = (*_ZERO, ".reg .b32 %second;", f"or.b32 %second, {second}, %zero;")
        return _block(*lines, f"{kind}.s32{space}{to}, {first}, %second;")

    return _EXTREME.sub(anew, ptx)


_NARROWING = re.compile(r"\bcvt\.(r[nzmp](?:\.sat)?)\.f32\.f64(\s+)([%\w$]+), ([%\w$]+);")


def _parted(ptx: str) -> str:
    """Each conversion from f64 to f32 with the lower half of its operand computed anew.

    ptxas of CUDA 13.0 takes a conversion for one that it has made before where the register of the operand's lower half did
    not change, though that of the upper half did (a choice of constants such as 0 and 1, whose lower halves are alike). Here the
    lower half depends on the upper one, through a 0 as above. Not by one `lop3`, which it merges wrongly where operands repeat.
    """

    def parted(m: re.Match[str]) -> str:
        how, space, to, operand = m.groups()
        return _block(
            *_ZERO,
            ".reg .b32 %lower, %upper;",
            ".reg .f64 %parted;",
            f"mov.b64 {{%lower, %upper}}, {operand};",
            "and.b32 %zero, %upper, %zero;",
            "or.b32 %lower, %lower, %zero;",
            "mov.b64 %parted, {%lower, %upper};",
            f"cvt.{how}.f32.f64{space}{to}, %parted;",
        )

    return _NARROWING.sub(parted, ptx)

"""PTX written so that known faults of ptxas do not show: `docs/upstream/ptxas-*.md`."""

from __future__ import annotations

import re


def without_faults(ptx: str) -> str:
    """The same kernels in instructions that every known ptxas assembles rightly."""
    return _parted(_two_at_a_time(_wrapping(_unordered(ptx))))


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


_ABSOLUTE = re.compile(r"\babs\.s(16|32|64)(\s+)(%\w+), (%\w+);")
_NEGATIVE = re.compile(r"\b(?:neg\.s16(\s+)(%\w+), |sub\.s16(\s+)(%\w+), 0, )(%\w+);")


def _wrapping(ptx: str) -> str:
    """Negations and absolute values of integers so that those of -2^(n-1) are itself.

    ptxas of CUDA 13.0 keeps 2^15 for -2^15 where what it makes of 16 bits is extended or compared, and takes `abs(x) < 0` for
    false. It is right about the larger of a number and its negation, and about products with -1.
    """

    def larger(m: re.Match[str]) -> str:
        bits, space, to, operand = m.groups()
        lines = (f".reg .b{bits} %negated;", f"neg.s{bits} %negated, {operand};")
        return "\n\t".join(["{", *lines, f"max.s{bits}{space}{to}, {operand}, %negated;", "}"])

    def product(m: re.Match[str]) -> str:
        return f"mul.lo.s16{m[1] or m[3]}{m[2] or m[4]}, {m[5]}, -1;"

    return _NEGATIVE.sub(product, _ABSOLUTE.sub(larger, ptx))


_EXTREME = re.compile(r"\b(max|min)\.s(16|32)(\s+)(%\w+), ([%\w-]+), (%(?!second;)\w+);")
_XOR_WHERE_BOTH = 0xF0 ^ (0xCC & 0xAA)  # lop3's table of a ^ (b & c)


def _two_at_a_time(ptx: str) -> str:
    """The larger and the smaller of two signed integers with the second one computed anew.

    ptxas of CUDA 13.0 makes one instruction of `max(max(a, -b), c)` from sm_90 on and drops the negation, also of `0 - b` where
    only it knows the 0. It keeps a negation of the first operand. Here the second depends on a number that is 0 and that ptxas
    does not know: grids have one dimension.
    """

    def anew(m: re.Match[str]) -> str:
        kind, bits, space, to, first, second = m.groups()
        lines = {
            "32": [f"lop3.b32 %second, {second}, {second}, %zero, {_XOR_WHERE_BOTH};"],
            "16": [
                "cvt.u16.u32 %second, %zero;",
                f"and.b16 %second, {second}, %second;",
                f"xor.b16 %second, {second}, %second;",
            ],
        }[bits]
        declared = [".reg .b32 %zero;", f".reg .b{bits} %second;", "mov.u32 %zero, %ctaid.z;"]
        return "\n\t".join(["{", *declared, *lines, f"{kind}.s{bits}{space}{to}, {first}, %second;", "}"])

    return _EXTREME.sub(anew, ptx)


_NARROWING = re.compile(r"\bcvt\.(r[nzmp](?:\.sat)?)\.f32\.f64(\s+)([%\w$]+), ([%\w$]+);")


def _parted(ptx: str) -> str:
    """Each conversion from f64 to f32 with the lower half of its operand computed anew.

    ptxas of CUDA 13.0 takes a conversion for one that it has made before where the register of the operand's lower half did
    not change, though that of the upper half did (a choice of constants such as 0 and 1, whose lower halves are alike). Here the
    lower half depends on the upper one, through a 0 as above.
    """

    def parted(m: re.Match[str]) -> str:
        how, space, to, operand = m.groups()
        return "\n\t".join([
            "{",
            ".reg .b32 %lower, %upper, %zero;",
            ".reg .f64 %parted;",
            "mov.u32 %zero, %ctaid.z;",
            f"mov.b64 {{%lower, %upper}}, {operand};",
            f"lop3.b32 %lower, %lower, %upper, %zero, {_XOR_WHERE_BOTH};",
            "mov.b64 %parted, {%lower, %upper};",
            f"cvt.{how}.f32.f64{space}{to}, %parted;",
            "}",
        ])  # fmt: skip

    return _NARROWING.sub(parted, ptx)

"""sin and cos of float32 for CUDA: a dozen instructions for arguments that are not huge, libdevice's for the others.

libdevice's own functions take some forty instructions an element, so that two in a row are slower than memory. Here, as in
`runtime/cpu/math_trig.py`: x = q pi + r by three steps of Cody and Waite with FMA, sin(x) = (-1)^q sin(r) by one odd polynomial on
[-pi/2, pi/2], and a cosine half a period on. Beyond `LIMIT` a branch that no ordinary data takes calls libdevice.
Elementwise kernels compute all elements of a thread with the form that lacks it and branch once, see `passes/cuda/kernel.py`.
The same coefficients as on the CPU, and the same bound in `tilec.core.functions`.
"""

from __future__ import annotations

import math

from tilec.runtime.cpu.math_tables import SIN_F32
from tilec.runtime.cuda.device.define import DeviceFunction, asm, define

LIMIT = 2.0**17
# pi as a sum of three floats of 24 bits; all are positive, so that no turns at all leave a zero its sign
_PI = (3.141592502593994, 1.5099578831723193e-07, 1.0780605906948477e-14)
_SHORT = (-0.1661289781332016, 0.0076564098708331585)  # as SIN_F32, error 2^-12.8
_MAGIC = 12582912.0  # 1.5 * 2^23: adding it leaves a float's integer part in its last bits


def approx(name: str) -> DeviceFunction:
    """`sin_approx_f32` or `cos_approx_f32`: right up to `LIMIT`, and without a branch."""
    return _without_branch(name, "approx", SIN_F32)


def short(name: str) -> DeviceFunction:
    """`sin_short_f32` or `cos_short_f32`: the same, with a relative error of 2^-12.8."""
    return _without_branch(name, "short", _SHORT)


def absolute(name: str) -> DeviceFunction:
    """`sin_absolute_f32` or `cos_absolute_f32`: the same, with an absolute error of 2^-20 (PTX ISA: 2^-20.5 within pi)."""
    lines = [_constant("inverse", 0.5 / math.pi), _constant("magic", _MAGIC)]
    lines += [
        "%sum = math.fma %x, %inverse, %magic : f32",
        "%whole = arith.subf %sum, %magic : f32",
        *_reduced([-2 * piece for piece in _PI[:2]]),
        f"%result = {asm(f'{name}.approx.ftz.f32 $0, $1;', 'f', [('f', '%rest1')], pure=True)}",
    ]
    return define(f"{name}_absolute_f32", {"x": "f32"}, "f32", "\n".join(lines))


def _without_branch(name: str, form: str, coefficients: tuple[float, ...]) -> DeviceFunction:
    lines = _reduced_sine(0.5 if name == "cos" else 0.0, coefficients)
    lines[-1] = lines[-1].replace("%approx", "%result")
    return define(f"{name}_{form}_f32", {"x": "f32"}, "f32", "\n".join(lines))


def trigonometric(name: str) -> DeviceFunction:
    """`sin_f32` or `cos_f32`: a device function of float32.

    It works on |x|, though the approximate forms work on x: where both follow each other, the assembler would else keep what
    they have in common for all elements of a thread, in twice the registers.
    """
    odd = name == "sin"
    lines = [
        _constant("limit", LIMIT),
        f"%size = {asm('abs.f32 $0, $1;', 'f', [('f', '%x')], pure=True)}",  # math.absf would declare libdevice's twice
        "%far = arith.cmpf ogt, %size, %limit : f32",
        "%result = scf.if %far -> f32 {",
        f"  %slow = math.{name} %x : f32",
        "  scf.yield %slow : f32",
        "} else {",
        *("  " + line.replace("%x", "%size") for line in _reduced_sine(0.0 if odd else 0.5, SIN_F32)),
        *("  " + line for line in (_with_sign_of_x() if odd else [])),
        f"  scf.yield {'%odd' if odd else '%approx'} : f32",
        "}",
    ]
    return define(f"{name}_f32", {"x": "f32"}, "f32", "\n".join(lines))


def _reduced(pieces: list[float]) -> list[str]:
    """Lines that add to x a multiple of each piece, the largest first: `%rest0`, ..."""
    lines, rest = [], "%x"
    for n, piece in enumerate(pieces):
        lines += [_constant(f"pi{n}", piece), f"%rest{n} = math.fma %whole, %pi{n}, {rest} : f32"]
        rest = f"%rest{n}"
    return lines


def _reduced_sine(shift: float, coefficients: tuple[float, ...]) -> list[str]:
    lines = [_constant("inverse", 1 / math.pi), _constant("shift", shift), _constant("magic", _MAGIC)]
    lines += [
        "%turns = math.fma %x, %inverse, %shift : f32",
        "%sum = arith.addf %turns, %magic : f32",
        "%nearest = arith.subf %sum, %magic : f32",
        "%whole = arith.subf %nearest, %shift : f32",
    ]
    lines += _reduced([-piece for piece in _PI])
    rest = f"%rest{len(_PI) - 1}"
    lines += [f"%square = arith.mulf {rest}, {rest} : f32", _constant("p0", coefficients[-1])]
    value = "%p0"
    for n, coefficient in enumerate(reversed(coefficients[:-1]), 1):
        lines += [_constant(f"p{n}", coefficient), f"%q{n} = math.fma {value}, %square, %p{n} : f32"]
        value = f"%q{n}"
    lines += [
        f"%cube = arith.mulf %square, {rest} : f32",
        f"%sine = math.fma {value}, %cube, {rest} : f32",
        "%bits = arith.bitcast %sum : f32 to i32",
        "%last = arith.constant 31 : i32",
        "%sign = arith.shli %bits, %last : i32",
        *_plain(rest, signed=shift == 0),
        "%signed = arith.xori %plain, %sign : i32",
        "%approx = arith.bitcast %signed : i32 to f32",
    ]
    return lines


def _with_sign_of_x() -> list[str]:
    return [
        "%given = arith.bitcast %x : f32 to i32",
        "%top = arith.constant -2147483648 : i32",
        "%side = arith.andi %given, %top : i32",
        "%mirrored = arith.xori %signed, %side : i32",
        "%odd = arith.bitcast %mirrored : i32 to f32",
    ]


def _plain(rest: str, signed: bool) -> list[str]:
    """The sine's bits. Its sum loses the sign of a zero, which `rest` has."""
    if not signed:
        return ["%plain = arith.bitcast %sine : f32 to i32"]
    return [
        "%absolute = arith.constant 2147483647 : i32",
        "%minus = arith.constant -2147483648 : i32",
        "%unsigned = arith.bitcast %sine : f32 to i32",
        "%magnitude = arith.andi %unsigned, %absolute : i32",
        f"%turned = arith.bitcast {rest} : f32 to i32",
        "%negative = arith.andi %turned, %minus : i32",
        "%plain = arith.ori %magnitude, %negative : i32",
    ]


def _constant(name: str, value: float) -> str:
    return (
        f"%{name} = arith.constant {value!r} : f32"
        if "e" not in repr(value)
        else f"%{name} = arith.constant {value:.17e} : f32"
    )

"""Definitions of device functions: a few lines of MLIR, or one piece of PTX, with a name and a signature.

`numba-cuda-mlir` links the MLIR text of such a function into the kernel and inlines it. This is the only
module that touches that private mechanism. Signatures are given here rather than read back from the MLIR,
because MLIR integers have no sign and Numba's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Protocol

_CHIP: ContextVar[str] = ContextVar("chip", default="sm_80")

# Numba's name of each scalar type, and MLIR's.
NUMBA = {
    **{f"i{b}": f"int{b}" for b in (8, 16, 32, 64)},
    **{f"u{b}": f"uint{b}" for b in (8, 16, 32, 64)},
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bool": "boolean",
}
_LETTER = {"r": "i32", "l": "i64", "f": "f32", "d": "f64", "h": "i16"}  # PTX constraints of inline assembly


def mlir_type(name: str) -> str:
    """`u32` is `i32` and `bool` is `i1` in MLIR; floats keep their names."""
    return "i1" if name == "bool" else name.replace("u", "i")


def memref(element: str) -> str:
    """The type by which a device function receives a `cuda.local.array`.

    The array is read and written at constant indices only, so that it is promoted to registers after
    inlining.
    """
    return f"memref<?x{mlir_type(element)}, strided<[1], offset: ?>>"


@contextmanager
def target(chip: str) -> Iterator[None]:
    """Device functions are defined for `chip` ("sm_90a") within: a few have a faster form on newer chips."""
    token = _CHIP.set(chip)
    try:
        yield
    finally:
        _CHIP.reset(token)


def chip_number() -> int:
    """80, 89, 90, 100, ... of the chip that is compiled for."""
    return int("".join(c for c in _CHIP.get().removeprefix("sm_") if c.isdigit()))


@dataclass(frozen=True)
class Array:
    """A parameter that is a `cuda.local.array` of this element type."""

    element: str


Parameter = str | Array


class Signature(Protocol):
    """Numba's, by its types."""

    args: tuple[object, ...]
    return_type: object


class Library(Protocol):
    source: str


class DeviceFunction(Protocol):
    """A function that kernels call, with its text in MLIR."""

    name: str
    sig: Signature
    library: Library


Intrinsic = DeviceFunction | Callable[..., object]
"""What kernels call: a function with a text, or one of libdevice's."""


def define(name: str, parameters: dict[str, Parameter], result: str | None, body: str) -> DeviceFunction:
    """A function callable in kernels. `body` is MLIR that refers to `%name` of each parameter and returns
    `%result`.

    Equal definitions are one object, so a kernel may import a function many times.
    """
    return _define(name, tuple(parameters.items()), result, body)


@cache
def _define(name: str, parameters: tuple[tuple[str, Parameter], ...], result: str | None, body: str) -> DeviceFunction:
    from numba_cuda_mlir import types
    from numba_cuda_mlir.typing.externals import ExternMLIRLibrary

    _initialize()

    def numba(parameter: Parameter) -> types.Type:
        if isinstance(parameter, Array):
            return types.Array(getattr(types, NUMBA[parameter.element]), 1, "A")
        return getattr(types, NUMBA[parameter])

    def mlir(parameter: Parameter) -> str:
        return memref(parameter.element) if isinstance(parameter, Array) else mlir_type(parameter)

    signature = (numba(result) if result else types.void)(*(numba(p) for _, p in parameters))
    arguments = ", ".join(f"%{n}: {mlir(p)}" for n, p in parameters)
    returns = f" -> {mlir(result)}" if result else ""
    end = f"return %result : {mlir(result)}" if result else "return"
    text = f"func.func private @{name}({arguments}){returns} attributes {{always_inline}} {{\n{body}\n{end}\n}}"
    return getattr(ExternMLIRLibrary({name: signature}, text), name)


@cache
def _initialize() -> None:
    from numba_cuda_mlir.descriptor import mlir_target

    mlir_target.ensure_initialized()


def asm(text: str, outs: str, ins: list[tuple[str, str]], *, pure: bool = False, ties: int = 0) -> str:
    """The operation `llvm.inline_asm`; `outs` and `ins` are constraint letters, `ins` with the value's name.

    `pure` assembly may be moved, merged and dropped; all other is ordered with memory accesses. The first
    `ties` inputs share a register with the output of the same number.
    """
    constraints = [f"={c}" for c in outs]
    constraints += [str(i) if i < ties else letter for i, (letter, _) in enumerate(ins)]
    effects = "" if pure else "has_side_effects "
    constraints += [] if pure else ["~{memory}"]
    result = "()"
    if outs:
        result = _LETTER[outs] if len(outs) == 1 else struct(outs)
    types = ", ".join(_LETTER[letter] for letter, _ in ins)
    values = ", ".join(value for _, value in ins)
    escaped = text.replace("\n", "\\0A")
    return f'llvm.inline_asm {effects}"{escaped}", "{",".join(constraints)}" {values} : ({types}) -> {result}'


def struct(letters: str) -> str:
    """The type of the result of assembly with several outputs."""
    return f"!llvm.struct<({', '.join(_LETTER[c] for c in letters)})>"


def ptx(name: str, text: str, ins: str = "", outs: str = "", *, pure: bool = False) -> DeviceFunction:
    """A function that is one piece of PTX on scalars: `$0` counts the output first, then the inputs."""
    parameters: dict[str, Parameter] = {f"x{i}": _LETTER[c] for i, c in enumerate(ins)}
    operation = asm(text, outs, [(c, f"%x{i}") for i, c in enumerate(ins)], pure=pure)
    return define(name, parameters, _LETTER[outs] if outs else None, ("%result = " if outs else "") + operation)


def indices(array: str, at: str, count: int, step: int = 1) -> str:
    """MLIR constants `%array_0`, `%array_1`, ...: the indices `at + step * j` of a local array."""
    lines = [f"%{array}_first = arith.index_cast %{at} : i64 to index"]
    for j in range(count):
        lines.append(f"%{array}_c{j} = arith.constant {step * j} : index")
        lines.append(f"%{array}_{j} = arith.addi %{array}_first, %{array}_c{j} : index")
    return "\n".join(lines)


def read(array: str, element: str, count: int) -> str:
    """MLIR that loads `%array_v0`, ... from the array at its indices."""
    return "\n".join(f"%{array}_v{j} = memref.load %{array}[%{array}_{j}] : {memref(element)}" for j in range(count))


def write(array: str, element: str, values: list[str]) -> str:
    """MLIR that stores the values to the array at its indices."""
    return "\n".join(f"memref.store {v}, %{array}[%{array}_{j}] : {memref(element)}" for j, v in enumerate(values))


def extract(value: str, letters: str, prefix: str) -> str:
    """MLIR that takes assembly's outputs apart: `%prefix0`, `%prefix1`, ..."""
    if len(letters) == 1:
        kind = _LETTER[letters]
        return f"%{prefix}0 = llvm.bitcast {value} : {kind} to {kind}"
    return "\n".join(f"%{prefix}{j} = llvm.extractvalue {value}[{j}] : {struct(letters)}" for j in range(len(letters)))

"""Runs the IR of any stage on NumPy, and reports undefined behaviour.

    results = interpret(text_or_module, [x, w])

It runs `linalg` on tensors as well as mapped kernels of a GPU. Errors are `Fault`s: an access outside of a buffer, a read
of memory that nothing wrote, threads that race, diverge at a barrier, or wait for ever. Operations that the interpreter does
not know are `Unsupported`. A run-time check of the program that fails raises the same `CallError` as in a launch.

`code` makes closures of operations, and the other modules enter their operations into its table: `scalars`, `elementary`,
`control`, `tensors`, `memrefs`, `threads`, `warps`, `asynchronous`, `clusters`, `wgmma`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tilec.core import mlir
from tilec.core.diagnostics import CallError
from tilec.core.extents import texts_of
from tilec.core.mlir import ir
from tilec.semantics.interpreter import (
    asynchronous,
    boxes,
    control,
    elementary,
    memrefs,
    ranks,
    scalars,
    tensors,
    warps,
)
from tilec.semantics.interpreter.code import Code, Context, dtype_of, shape_of
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.flight import is_mapped, launch
from tilec.semantics.interpreter.memory import Buffer, View
from tilec.semantics.interpreter.sizes import shape_at, sizes_at

__all__ = ["Fault", "Unsupported", "interpret", "prepare"]

Arrays = Sequence[np.ndarray] | Mapping[str, np.ndarray]


def interpret(module: ir.Module | str, arrays: Arrays) -> dict[str, np.ndarray]:
    """The results of a program's IR after any stage, by name, in their order.

    `module` is the IR or its text (as `Lowered.texts` and `tilec dump` have it; with locations, faults name source lines).
    `arrays` are the inputs in order or by name, of the declared types and shapes. Results have the types of the IR, whose
    integers have no sign: those of unsigned results come as signed ones of the same bits.

    Raises CallError for arrays that do not fit and for the program's own checks, Fault and Unsupported for the IR.
    """
    return prepare(module)(arrays)


def prepare(module: ir.Module | str) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """`interpret` for one module and many inputs, whose operations become closures once."""
    if isinstance(module, str):
        with mlir.reading_context():
            module = mlir.parse(module)
    program = _Program(module)

    def run(arrays: Arrays) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            return program.run(arrays)

    return run


class _Program:
    def __init__(self, module: ir.Module):
        self.module = module  # its operations live as long as it does
        operations = [o.operation for o in module.operation.regions[0].blocks[0].operations]
        self.functions = {mlir.symbol(o): o for o in operations if o.name == "func.func"}
        self.codes: dict[str, Code] = {}
        self.sizes: dict[str, int] = {}  # of the latest run, which arguments of a kernel may not say
        entries = [f for f in mlir.functions(module) if "tilec.kernel" not in f.attributes]
        if len(entries) != 1:
            raise CallError(f"the module has {len(entries)} functions besides kernels; it must have one, the program")
        (self.entry,) = entries

    def is_declared(self, name: str) -> bool:
        """Whether there is a function's name, and no body."""
        return not len(self.functions[name].regions[0].blocks)

    def code(self, name: str) -> Code:
        if name not in self.codes:
            self.codes[name] = Code(self, self.functions[name])
        return self.codes[name]

    def call(self, name: str, context: Context, arguments: list) -> list:
        code = self.code(name)
        if is_mapped(code.function):
            launch(code, arguments, self.sizes)
            return []
        if (blocks := ranks.cluster_of(code.function)) > 1:
            ranks.call(code, context, arguments, blocks)
            return []
        return code.call(context, arguments)

    # ---- the program's inputs and results ----------------------------------------------------------------------------

    def run(self, arrays: Arrays) -> dict[str, np.ndarray]:
        parameters = list(mlir.entry(self.entry).arguments)
        names = _names(self.entry, "arg_attrs", len(parameters))
        count = mlir.get_integer(self.entry, "tilec.inputs")
        count = len(parameters) if count is None else count
        shapes = _shapes(self.entry, "arg_attrs", len(parameters))
        given = [
            _fitting(n, a, p, shape)
            for n, a, p, shape in zip(names, _in_order(arrays, names[:count]), parameters, shapes)
        ]
        sizes = self.sizes = sizes_at(self.entry, [a.shape for a in given], shapes)
        views = [_input(n, a, _extents(p, sizes)) for n, a, p in zip(names, given, parameters)]
        made = [_output(n, p, _extents(p, sizes)) for n, p in zip(names[count:], parameters[count:])]
        name = mlir.symbol(self.entry)
        returned = self.call(name, Context(), [*views, *made])
        if returned:
            made, names = returned, [*names[:count], *_names(self.entry, "res_attrs", len(returned))]
            shapes = [*shapes[:count], *_shapes(self.entry, "res_attrs", len(returned))]
        results = zip(names[count:], made, shapes[count:])
        return {
            n: _result(self.entry, n, v).reshape(v.shape if shape is None else shape_at(list(map(str, shape)), sizes))
            for n, v, shape in results
        }


def _names(function: ir.Operation, attribute: str, count: int) -> list[str]:
    if attribute not in function.attributes:
        return [str(n) for n in range(count)]
    found = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes[attribute])]
    return [ir.StringAttr(d["tilec.name"]).value if "tilec.name" in d else str(n) for n, d in enumerate(found)]


def _shapes(function: ir.Operation, attribute: str, count: int) -> list[tuple[int | str, ...] | None]:
    """Of arguments or results whose shape in the source is another one than in the IR. Extents that vary are texts."""
    if attribute not in function.attributes:
        return [None] * count
    found = (ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes[attribute]))
    return [_written(d["tilec.shape"]) if "tilec.shape" in d else None for d in found]


def _written(shape: ir.Attribute) -> tuple[int | str, ...]:
    if isinstance(shape, ir.ArrayAttr):
        return tuple(ir.StringAttr(word).value for word in shape)
    return tuple(ir.DenseI64ArrayAttr(shape))


def _in_order(arrays: Arrays, names: list[str]) -> list[np.ndarray]:
    if isinstance(arrays, Mapping):
        if set(arrays) != set(names):
            raise CallError(f"the inputs are {', '.join(names)}; given are {', '.join(arrays)}")
        arrays = [arrays[n] for n in names]
    if len(arrays) != len(names):
        raise CallError(f"the program takes {len(names)} inputs ({', '.join(names)}), not {len(arrays)}")
    return list(arrays)


def _fitting(name: str, array: np.ndarray, parameter: ir.Value, written: tuple[int | str, ...] | None) -> np.ndarray:
    """An input of the types of the IR."""
    array, shape, dtype = np.asarray(array), shape_of(parameter.type), dtype_of(parameter.type)
    if array.dtype.kind == "u":
        array = array.view(f"i{array.dtype.itemsize}")
    whole, fits = written or shape, array.dtype == dtype and array.ndim == len(written or shape)
    if not fits or any(n not in (e, mlir.DYNAMIC) and not isinstance(n, str) for n, e in zip(whole, array.shape)):
        wanted = ", ".join("?" if n == mlir.DYNAMIC else str(n) for n in whole)
        raise CallError(f"'{name}' is {dtype}[{wanted}] in the IR, and the array is {array.dtype}{list(array.shape)}")
    return array


def _extents(parameter: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Of a parameter, at some sizes."""
    argument: ir.BlockArgument = ir.BlockArgument(parameter)
    words = texts_of(argument.owner.owner.operation, argument.arg_number)
    return shape_of(parameter.type) if words is None else shape_at(words, sizes)


def _input(name: str, array: np.ndarray, shape: tuple[int, ...]) -> View:
    data = np.ascontiguousarray(array).reshape(-1)
    return View.whole(Buffer(data, None, f"'{name}'", readonly=True), shape)


def _output(name: str, parameter: ir.Value, shape: tuple[int, ...]) -> View:
    return View.whole(Buffer.empty(prod(shape), dtype_of(parameter.type), f"'{name}'"), shape)


def _result(entry: ir.Operation, name: str, view: View) -> np.ndarray:
    written = view.written()
    if not written.all():
        missing = np.argwhere(~written)
        subscripts = tuple(map(int, missing[0]))
        raise Fault(
            "unwritten",
            entry,
            f"result '{name}': nothing wrote {len(missing)} of {written.size} elements, from {subscripts}",
        )
    return view.array().copy()


del asynchronous, boxes, control, elementary, memrefs, scalars, tensors, warps  # imported for their entries in the table

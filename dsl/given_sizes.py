"""A call of a program whose sizes vary: its sizes, and its signature, at them or with those sizes left open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilec.core.diagnostics import CallError, InternalError
from tilec.core.dtypes import DType
from tilec.core.extents import amount
from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.check_scope import Report, suggestion
from tilec.dsl.check_sizes import declared_shape, size_names
from tilec.dsl.specialise import Argument, bind, choose_op
from tilec.index.terms import term


def sizes_at(
    program: ast.Program, name: str, inputs: Sequence[Argument] | None, given: Mapping[str, int], varies: Mapping[str, Varying]
) -> dict[str, int]:  # fmt: skip
    """The numbers of an op's sizes for such arguments. Raises CallError where they do not fit it, or leave a range."""
    op = choose_op(program, name)
    known = size_names(op)
    for size in varies:
        if size not in known:
            names = ", ".join(f"`{n}`" for n in known)
            raise CallError(f"`{op.name}` has no size `{size}`", op.span, hint=suggestion(size, known) or f"its sizes are {names}")
    sizes = {size: value.number for size, value in bind(op, inputs, dict(given), {}).items()}
    for size, v in varies.items():
        if not v.has(sizes[size]):
            message = f"the size `{size}` is {sizes[size]}, and varies in {v}"
            raise CallError(message, known[size], hint="give `varies` a wider range")
    return sizes


def size_solver(
    program: ast.Program, name: str, given: Mapping[str, int]
) -> tuple[list[str], Callable[..., tuple[int, ...] | None] | None]:
    """The names of an op's sizes, and straight-line code that computes their numbers from the shapes of inputs: None where these do
    not fit. It raises ValueError where they have another rank. None for code where a size stands alone in no shape."""
    op = choose_op(program, name)
    names = {size: f"n{n}" for n, size in enumerate(size_names(op))}
    known, lines, checks = {size: str(n) for size, n in given.items()}, [], []
    for k, tensor in enumerate(op.inputs):
        extents = [f"s{k}_{d}" for d in range(len(tensor.shape or ()))]
        lines.append(f"    [{', '.join(extents)}] = s{k}")
        for extent, size in zip(extents, tensor.shape or ()):
            if isinstance(size, ast.SizeName) and size.name not in known:
                known[size.name] = extent
            else:
                checks.append((extent, size))
    if any(size not in known for size in names) or any(t.shape is None for t in op.inputs):
        return [*names], None
    lines += [f"    {variable} = {known[size]}" for size, variable in names.items()]
    tests = [f"{extent} == {_python(size, names)}" for extent, size in checks]
    found = f"({''.join(f'{variable}, ' for variable in names.values())})"
    lines.append(f"    return {found} if {' and '.join(tests)} else None" if tests else f"    return {found}")
    made: dict[str, Callable[..., tuple[int, ...] | None]] = {}
    exec("\n".join([f"def solve({', '.join(f's{k}' for k in range(len(op.inputs)))}):", *lines]), {}, made)
    return [*names], made["solve"]


def _python(size: ast.Size, names: Mapping[str, str]) -> str:
    match size:
        case ast.SizeNumber(value=value):
            return str(value)
        case ast.SizeName(name=name):
            return names[name]
        case ast.SizeBinary(op=op, left=left, right=right):
            return f"({_python(left, names)} {op} {_python(right, names)})"
    raise InternalError(f"{size} is in no declared shape")


def declared_inputs(program: ast.Program, name: str, sizes: Mapping[str, int]) -> tuple[tuple[DType, tuple[int, ...]], ...]:
    """The types and shapes of an op's inputs at some sizes, as its text declares them."""
    terms, report = {n: term(k) for n, k in sizes.items()}, Report()
    shapes = ((t, declared_shape(t, terms, report, True)) for t in choose_op(program, name).inputs)
    return tuple((ast.dtype_of(t), tuple(n.number for n in shape or ())) for t, shape in shapes)


def inputs_at(
    program: ast.Program, name: str, inputs: Sequence[Argument] | None, sizes: Mapping[str, int], varies: Mapping[str, Varying]
) -> tuple[Argument, ...] | None:  # fmt: skip
    """The types of an op's inputs, with their shapes at some sizes where the op declares them."""
    if inputs is None:
        return None
    terms, report = {n: term(k) for n, k in sizes.items()} | {n: v.term(n) for n, v in varies.items()}, Report()
    shapes = (declared_shape(t, terms, report, True) if t.shape is not None else None for t in choose_op(program, name).inputs)
    return tuple((dtype, own if shape is None else shape) for (dtype, own), shape in zip(inputs, shapes))


def open_inputs(
    program: ast.Program, name: str, inputs: Sequence[Argument] | None, fixed: Mapping[str, int], varies: Mapping[str, Varying]
) -> tuple[tuple[DType, tuple[int | str, ...]], ...] | None:  # fmt: skip
    """The types and shapes of an op's inputs, with texts for the extents that vary."""
    if inputs is None:
        return None
    terms, report = {n: term(k) for n, k in fixed.items()} | {n: v.term(n) for n, v in varies.items()}, Report()
    found = []
    for tensor, (dtype, shape) in zip(choose_op(program, name).inputs, inputs):
        extents = declared_shape(tensor, terms, report, True) if tensor.shape is not None else tuple(map(term, shape))
        assert extents is not None
        found.append((dtype, tuple(amount(n, varies) for n in extents)))
    return tuple(found)

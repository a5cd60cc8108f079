"""Specialisation: an op of a program with numbers for its sizes, or ranges of numbers, which `build` turns into MLIR."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod

from tilec.core.diagnostics import CallError, TileError
from tilec.core.dtypes import DType
from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.bind import Binding
from tilec.dsl.check import Described, Elaborator, check_module, elaborate_open
from tilec.dsl.check_scope import Report, TensorInfo, suggestion
from tilec.dsl.check_sizes import declared_ranges, declared_shape, size_names, subscript_ranks
from tilec.dsl.index_terms import range_of, to_size
from tilec.dsl.modules import Loader, load, load_file
from tilec.dsl.short_doubts import constant_for_input, doubts
from tilec.dsl.suitable_sizes import multiple, suitable, units_of
from tilec.dsl.varying_sizes import highest, solved_sizes
from tilec.index.facts import NONE
from tilec.index.terms import Term, term

_LIMIT = 1 << 63

Argument = tuple[DType, tuple[int | Term, ...]]


@dataclass(frozen=True)
class Specialised:
    """One op with numbers for sizes: no calls but scalar functions, every type, range and conversion explicit.

    The equations named as `outputs` are the results; names with a dot come from inlined functions and ops. Where a shape or the end
    of a range depends on sizes that vary, it is an `ast.SizeTerm`.
    """

    name: str
    inputs: tuple[ast.Tensor, ...]
    outputs: tuple[ast.Tensor, ...]
    equations: tuple[ast.Equation, ...]
    expects: tuple[ast.Expect, ...]
    sizes: dict[str, int]
    varies: dict[str, Varying] = field(default_factory=dict)

    @property
    def terms(self) -> dict[str, Term]:
        """All sizes by name."""
        return {name: term(n) for name, n in self.sizes.items()} | {name: v.term(name) for name, v in self.varies.items()}

    def at(self, sizes: Mapping[str, int]) -> Specialised:
        """The same op where sizes that vary have these numbers. Its expressions still compute with them by name."""
        if not self.varies:
            return self
        numbers = {leaf: term(sizes[name] // v.multiple) for name, v in self.varies.items() for leaf in v.term(name).free}

        def size(of: ast.Size) -> ast.Size:
            return to_size(NONE.rebuilt(of.term, numbers)) if isinstance(of, ast.SizeTerm) else of

        def fixed(r: ast.Range) -> ast.Range:
            low, high = map(size, ast.ends_of(r))
            return ast.replace(r, low=low, high=high)

        def value(expr: ast.Expr) -> ast.Expr:
            expr = ast.with_children(expr, tuple(map(value, ast.children(expr))))
            match expr:
                case ast.Reduce(ranges=ranges):
                    return ast.replace(expr, ranges=tuple(map(fixed, ranges)))
                case ast.Scan(range=range_):
                    return ast.replace(expr, range=fixed(range_))
            return expr

        inputs, outputs = (
            tuple(replace(t, shape=tuple(map(size, t.shape or ()))) for t in tensors) for tensors in (self.inputs, self.outputs)
        )
        equations = tuple(replace(e, value=value(e.value), ranges=tuple(map(fixed, e.ranges))) for e in self.equations)
        known = self.sizes | {name: sizes[name] for name in self.varies}
        return replace(self, inputs=inputs, outputs=outputs, equations=equations, sizes=known, varies={})


def specialise(
    program: ast.Program,
    op: str | None = None,
    inputs: Sequence[Argument] | None = None,
    sizes: Mapping[str, int] | None = None,
    loader: Loader = load_file,
    checked: bool = False,
    varies: Mapping[str, Varying] | None = None,
) -> Specialised:
    """Binds the sizes of an op from its arguments' shapes and from `sizes`, and elaborates it. `checked`: the whole program, with
    its sizes left open, has been found without mistakes (`mistakes.read`). `varies`: sizes that stay open, with their ranges: all
    that is decided of the program holds for each number in these.

    Raises CallError where the arguments do not fit the op, TileError where the program is wrong.
    """
    report = Report()
    if not checked:
        check_module(load(program, report, loader), report)
        _raise(report)
    chosen = choose_op(program, op)
    varies = dict(varies or {})
    bound = bind(chosen, inputs, dict(sizes or {}), varies)
    try:
        elaborator = program.elaborated.get(chosen.name) or _elaborated(program, chosen, inputs, bound, loader)
    except TileError as error:
        if varies:
            raise _where_it_fails(error, program, chosen, bound, varies, loader) from None
        raise _with_multiples(error, program, chosen, bound, loader) from None
    tensors, equations = [elaborator.tensors[t.name] for t in chosen.inputs], elaborator.equations
    known = {size.name for size in solved_sizes([t.shape or () for t in tensors], varies)}
    if missing := [name for name in varies if name not in known]:
        hint = "one dimension of an input is the size, or a multiple of it and a number: `M`, `2 * M + 1`"
        raise CallError(f"no input determines the size `{missing[0]}`, so that it cannot vary", chosen.span, hint=hint)
    _addressable(tensors, equations, bound)
    outputs = tuple(_tensor(elaborator.tensors[t.name], t) for t in chosen.outputs)
    return Specialised(
        chosen.name,
        tuple(map(_tensor, tensors, chosen.inputs)),
        outputs,
        tuple(equations),
        tuple(s for s in chosen.body if isinstance(s, ast.Expect)),
        {name: value.number for name, value in bound.items() if name not in varies},
        varies,
    )


def _elaborated(
    program: ast.Program, op: ast.Op, inputs: Sequence[Argument] | None, sizes: Mapping[str, Term], loader: Loader
) -> Elaborator:  # fmt: skip
    """The op with these sizes, and with the types and shapes of arguments where it declares none."""
    report = Report()
    module = load(program, report, loader)
    tensors: dict[str, TensorInfo] = {}
    for k, tensor in enumerate(op.inputs):
        dtype, shape = tensor.dtype, declared_shape(tensor, sizes, report, True) if tensor.shape is not None else None
        if dtype is None or tensor.shape is None:
            assert inputs is not None, "arguments tell what a signature leaves out"
            dtype, shape = dtype or inputs[k][0], shape if tensor.shape is not None else tuple(map(term, inputs[k][1]))
        tensors[tensor.name] = TensorInfo(tensor.name, dtype, shape, tensor.span)
    elaborator = Elaborator(op, module, tensors, sizes, report, decided=True)
    _raise(report)
    elaborator.run()
    _raise(report)
    return elaborator


_LARGE = 400  # statements: a larger op is not tried with other sizes


def accepted_sizes(
    program: ast.Program, op: ast.Op, wanted: Mapping[str, int], fixed: Mapping[str, int], loader: Loader = load_file
) -> dict[str, int] | None:  # fmt: skip
    """Sizes near `wanted` that an op of a checked program accepts, as its divisors allow; the sizes `fixed` stay. None where none
    was found."""
    report = Report()
    open_ = elaborate_open(op, load(program, report, loader), report, fixed)
    tries = _accepts(program, op, loader)
    return suitable(wanted, tries, units_of(program), open_.ranges.undecided, fixed) if len(op.body) <= _LARGE else None


def _accepts(program: ast.Program, op: ast.Op, loader: Loader) -> Callable[[Mapping[str, int]], bool]:
    def accepts(sizes: Mapping[str, int]) -> bool:
        try:
            bound = bind(op, None, dict(sizes), {})
            _elaborated(program, op, None, bound, loader)
            return True
        except TileError:
            return False

    return accepts


def _with_multiples(
    error: TileError, program: ast.Program, op: ast.Op, bound: Mapping[str, Term], loader: Loader
) -> TileError:  # fmt: skip
    """The error of a program that is right at some sizes, and the size of which it accepts multiples."""
    sizes = {name: value.number for name, value in bound.items()}
    if len(op.body) > _LARGE or any(t.dtype is None or t.shape is None for t in op.inputs):
        return error
    first, *others = error.diagnostics
    for name in sizes:
        if (found := multiple(name, sizes, _accepts(program, op, loader), units_of(program))) is not None:
            suitable = f"`{name}` is {sizes[name]} here, and multiples of {found[0]}, such as {found[1]}, are accepted"
            return TileError([replace(first, hint=f"{suitable}; else {first.hint}" if first.hint else suitable), *others])
    return error


_TRIED = 64  # choices of sizes at which a program that is not proved for all of them is looked at


def _where_it_fails(
    error: TileError, program: ast.Program, op: ast.Op, bound: Mapping[str, Term], varies: Mapping[str, Varying],
    loader: Loader,
) -> TileError:  # fmt: skip
    """The error of a program that is not proved for all of its sizes: with those at which it is wrong, if some are found, and what
    is wrong then."""
    ranges = ", ".join(f"`{name}` in {v}" for name, v in varies.items())
    tried = [dict.fromkeys((v.low, min(v.low + v.multiple, v.high), v.middle, v.high)) for v in varies.values()]
    few = () if len(op.body) > _LARGE or any(t.dtype is None or t.shape is None for t in op.inputs) else product(*tried)
    for chosen in islice(few, _TRIED):
        numbers = dict(zip(varies, chosen))
        try:
            _elaborated(program, op, None, {**bound, **{name: term(n) for name, n in numbers.items()}}, loader)
        except TileError as exact:
            first, *others = exact.diagnostics
            at = " and ".join(f"`{name}` = {n}" for name, n in numbers.items())
            return TileError([replace(first, message=f"for {at}: {first.message}"), *others])
    first, *others = error.diagnostics
    advice = f"this must be proved for {ranges}: a smaller range may help, or multiples, `if`, `pad`, or a size that is a number"
    hint = f"{first.hint}; {advice}" if first.hint else advice
    return TileError([replace(first, hint=hint), *others])


def _addressable(inputs: Iterable[TensorInfo], equations: list[ast.Equation], sizes: Mapping[str, Term]) -> None:
    """Offsets are 64-bit integers: no size, and no tensor in bytes, reaches 2^63."""
    for name, value in sizes.items():
        if (most := highest(value)) >= _LIMIT:
            raise CallError(f"the size `{name}` is too large: {most} is not below 2^63")
    for equation in equations:
        for r in (*equation.ranges, *ast.bound_in(equation.value)):
            low, high = (NONE.bounds(x)[end] for end, x in enumerate(range_of(r)))
            if max(abs(low), abs(high)) >= _LIMIT:
                message = f"`{r.index}` runs from {low} to {high}, beyond integers of 64 bits"
                raise CallError(message, r.span)
    shapes = [(t.name, t.dtype, t.shape or (), t.span) for t in inputs]
    shapes += [(e.name, e.dtype, tuple(range_of(r)[1] for r in e.ranges), e.span) for e in equations]
    for name, dtype, extents, span in shapes:
        assert dtype is not None, "every type is known now"
        shape = [highest(x) for x in extents]
        if prod(shape) * dtype.bytes >= _LIMIT:
            raise CallError(f"`{name}` is too large: no memory holds {dtype}{shape}", span)


def _raise(report: Report) -> None:
    if report.diagnostics:
        raise TileError(report.diagnostics)


def _tensor(info: TensorInfo, declared: ast.Tensor) -> ast.Tensor:
    assert info.shape is not None
    return ast.Tensor(info.name, info.dtype, tuple(map(to_size, info.shape)), declared.span)


def choose_op(program: ast.Program, name: str | None) -> ast.Op:
    """The op of that name; without a name, the only one."""
    ops = {op.name: op for op in program.ops}
    if name is not None and name in ops:
        return ops[name]
    if name is not None:
        raise CallError(f"the program has no op `{name}`", hint=suggestion(name, ops) or _list(ops))
    if len(ops) == 1:
        return next(iter(ops.values()))
    raise CallError(
        "the program has several ops: name one (`op=`, or `--op`)" if ops else "the program has no op", hint=_list(ops)
    )


def _list(ops: Mapping[str, ast.Op]) -> str | None:
    return "it has " + ", ".join(f"`{name}`" for name in ops) if ops else None


def bind(
    op: ast.Op, inputs: Sequence[Argument] | None, given: dict[str, int], varies: dict[str, Varying]
) -> dict[str, Term]:  # fmt: skip
    """Every size as a number, or as the term of one that varies. A range of one number is that number."""
    known = size_names(op)
    for name in (*given, *varies):
        if name not in known:
            message = f"`{op.name}` has no size `{name}`"
            raise CallError(message, op.span, hint=suggestion(name, known) or _sizes_hint(known))
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CallError(f"the size `{name}` must be a whole number >= 0, not {value!r}")
    binding = Binding(op, given)
    if inputs is None and any(t.shape is None for t in op.inputs):
        names = ", ".join(f"`{t.name}`" for t in op.inputs)
        raise CallError(f"the short form has no types: it needs the type and shape of {names}", op.span)
    if inputs is not None:
        _arguments_fit(op, inputs)
        for tensor, (_, shape) in zip(op.inputs, inputs):
            if tensor.shape is not None:
                binding.give(tensor, tuple(map(term, shape)), f"`{tensor.name}`")
    binding.solve()
    for conflict in binding.conflicts:
        raise CallError(conflict.message, conflict.span, conflict.notes)
    for name, allowed in declared_ranges(op, Report()).items():
        _in_declared(name, allowed, varies.get(name) or binding.sizes[name])
    for name, v in list(varies.items()):
        _varies_so(name, v, binding.sizes.get(name, term(v.low)))
        if v.low == v.high:
            del varies[name]
        binding.sizes[name] = term(v.low) if v.low == v.high else v.term(name)
    missing = [*binding.missing, *(n for n in known if n not in binding.sizes)]
    if missing:
        hint = "give them by name: `sizes={" + ", ".join(f'"{name}": …' for name in missing) + "}`"
        raise CallError(f"{not_known(missing)} not known", known[missing[0]], hint=hint)
    return binding.sizes


def _in_declared(name: str, allowed: ast.SizeRange, found: Varying | Term) -> None:
    """Whether a size, or the range that it varies in, is in the range that the text gives it."""
    if isinstance(found, Varying):
        if not found.within(allowed.numbers):
            raise CallError(f"`{name}` varies in {found}, and the program allows {allowed.numbers}", allowed.span)
    elif found.constant is not None and not allowed.numbers.has(found.constant):
        raise CallError(f"`{name}` is {found}, and the program allows {allowed.numbers}", allowed.span)


def ranges_of(op: ast.Op, varies: Collection[str]) -> dict[str, Varying]:
    """The range of each size of these names, as the text declares it; "all" are all sizes. Raises CallError for one without."""
    if isinstance(varies, str) and varies != "all":
        raise CallError(f"`varies` has ranges or names, or is \"all\", not {varies!r}", hint=f"write `varies={{{varies!r}}}`")
    declared, known = declared_ranges(op, Report()), size_names(op)
    found = {}
    for name in known if varies == "all" else varies:
        if name not in known:
            raise CallError(f"`{op.name}` has no size `{name}`", op.span, hint=suggestion(name, known) or _sizes_hint(known))
        if name not in declared:
            hint = f"write it where the size stands alone in a type, `f32[{name}: 1..8192]`, or give it with `varies`"
            raise CallError(f"`{name}` has no range to vary in", known[name], hint=hint)
        found[name] = declared[name].numbers
    return found


def _varies_so(name: str, v: Varying, value: Term) -> None:
    """Whether its range has numbers, and the one of a call, if it has one."""
    if (wrong := v.mistake(name)) is not None:
        raise CallError(wrong[0], hint=wrong[1])
    if (number := value.constant) is not None and not v.has(number):
        raise CallError(f"`{name}` is {number}, which is not in its range, {v}")


def not_known(missing: Sequence[str]) -> str:
    """`the size `M` is`, `the sizes `M` and `N` are`: of sizes that neither arguments nor anything else tells."""
    *first, last = (f"`{name}`" for name in missing)
    return f"the sizes {', '.join(first)} and {last} are" if first else f"the size {last} is"


def _sizes_hint(known: Mapping[str, object]) -> str:
    return "its sizes are " + ", ".join(f"`{name}`" for name in known) if known else "it has no named sizes"


def _arguments_fit(op: ast.Op, inputs: Sequence[Argument]) -> None:
    """As many arguments as parameters, each of its type and rank."""
    if len(inputs) != len(op.inputs):
        names = ", ".join(f"`{t.name}`" for t in op.inputs)
        many = "argument" + "s" * (len(op.inputs) != 1)
        message = f"`{op.name}` takes {len(op.inputs)} {many} ({names}), not {len(inputs)}"
        raise CallError(message, op.span, hint=_miscounted(op, len(inputs)))
    ranks = subscript_ranks(op)
    for tensor, (dtype, shape) in zip(op.inputs, inputs):
        if tensor.dtype is not None and dtype != tensor.dtype:
            hint = f"convert the argument, or declare `{tensor.name}` as {dtype}"
            raise CallError(f"`{tensor.name}` is {tensor.dtype}, and the argument is {dtype}", tensor.span, hint=hint)
        rank = len(tensor.shape) if tensor.shape is not None else ranks.get(tensor.name, len(shape))
        if len(shape) != rank:
            dims = f"{rank} dimension{'s' * (rank != 1)}"
            message = f"`{tensor.name}` has {dims}, and the argument has {len(shape)}: {list(shape)}"
            raise CallError(message, tensor.span)


def _miscounted(op: ast.Op, given: int) -> str | None:
    """Why the short form may have more inputs than were meant, or fewer."""
    if given > len(op.inputs):
        return constant_for_input(op)
    return next((f"{d.message}; {d.hint}" for d in doubts(op)), None)


def describe_ranges(
    program: ast.Program,
    op: str | None = None,
    sizes: Mapping[str, int] | None = None,
    loader: Loader = load_file,
) -> list[Described]:
    """The inferred facts of each name of an op: type, shape and the ranges of its indices; open sizes stay names."""
    report = Report()
    module = load(program, report, loader)
    _raise(report)
    described = elaborate_open(choose_op(program, op), module, report, sizes).described
    _raise(report)
    return described

"""Operators of PyTorch that are `.tile` programs: `tilec.torch.op(source, backward=source)`.

An operator is registered by `torch.library.Library`: kernels for the CPU and for CUDA, a fake kernel, a kernel for autograd, for
autocast and for `vmap`. So PyTorch's compiler, `torch.export` and `torch.func` take it as they take its own operators.
"""

from __future__ import annotations

import hashlib
import keyword
import re
import threading
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload

from tilec.api import Op, _schedule_of
from tilec.api import compile as compile_program
from tilec.core.diagnostics import CallError, Source, TileError
from tilec.core.dtypes import DType
from tilec.core.source import read_source
from tilec.driver.frontend import Program, read_program
from tilec.dsl.batched_op import Unbatched, batched
from tilec.dsl.check_sizes import size_names
from tilec.dsl.specialise import choose_op
from tilec.process.reading import read_bytes
from tilec.runtime import buffers
from tilec.torch import kernels
from tilec.torch.aten.table import TABLE, Row
from tilec.torch.failures import first_line
from tilec.torch.gradient import Gradient, match
from tilec.torch.signature import Signature
from tilec.torch.splice import splicer

Operand: TypeAlias = torch.Tensor | float | torch.SymInt
_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)")
_RESERVED = {"Tensor", "Scalar", "int", "float", "bool", "str", "self", "out", "inf", "nan"}
"""Words that mean something else in PyTorch's schemas, beside Python's keywords."""


@dataclass(frozen=True)
class Options:
    """What `tilec.compile` takes beside a program; `sizes` in the order of their names."""

    op: str | None
    sizes: tuple[tuple[str, int], ...]
    target: str | None
    schedule: Path | None
    deferred_checks: bool

    def compiled(self, program: Program, sizes: Mapping[str, int] | None = None) -> Op:
        """The program's op, for some more sizes."""
        known = {**dict(self.sizes), **(sizes or {})}
        return Op(program, self.op, known, self.target, self.schedule, self.deferred_checks)


@dataclass(frozen=True)
class Batched:
    """An operator with one more dimension, and which of its `results` have it."""

    operator: Operator
    results: tuple[bool, ...]


class Operator:
    """A program as an operator of PyTorch. Made by `op`; equal programs of one name have one operator.

    `name` is its name in `torch.ops`, `overload` what `torch.ops` has there, `signature` what its text says, and `gradient` how
    `backward`, another operator, is called, or None."""

    def __init__(
        self, name: str, program: Program, options: Options, backward: Operator | None, gradient: Gradient | None = None
    ):
        self.name, self.program, self.options, self.backward = name, program, options, backward
        self.compiled = options.compiled(program)
        self.signature = Signature(program, options.op, dict(options.sizes))
        self.gradient = gradient
        if backward is not None and gradient is None:
            self.gradient = match(self.signature, backward.signature)
        if not self.signature.inputs:
            raise CallError(f"the op `{self.signature.name}` has no inputs, so that nothing tells PyTorch its device")
        self._by_size: dict[tuple[tuple[str, int], ...], Op] = {}
        self._batched: dict[tuple[bool, ...], Batched | str] = {}
        self._scalars = [
            (k, _argument_name(name), dtype, None if dtype is None else buffers.to_torch(dtype.name))
            for k, (name, dtype) in enumerate(zip(self.signature.inputs, self.signature.types))
            if self.signature.shapes[k] == ()
        ]
        self._tuple: Callable[..., tuple[torch.Tensor, ...]] | None = None
        if len(self.signature.results) > 1:
            self._tuple = namedtuple(self.signature.name, self.signature.results, rename=True)  # type: ignore[misc]
        self._library: torch.library.Library | None = None
        self.overload: OpOverload  # of `register`

    def __call__(self, /, *arguments: Operand, **named: Operand) -> Any:
        """Runs the op on tensors, which come in the order of the parameters, or by their names. Parameters without dimensions
        also take numbers. Returns a tensor, or a named tuple of several. Raises CallError for arguments that do not fit."""
        if self._scalars:
            arguments, named = self._with_tensors(arguments, named)
        made = self.overload(*arguments, **named)
        return made if self._tuple is None else self._tuple(*made)

    def _with_tensors(
        self, arguments: tuple[Operand, ...], named: dict[str, Operand]
    ) -> tuple[tuple[Operand, ...], dict[str, Operand]]:
        given = list(arguments)
        for k, name, dtype, theirs in self._scalars:
            at, key = (given, k) if k < len(given) else (named, name)
            if (k < len(given) or name in named) and isinstance(value := at[key], (bool, int, float)):  # type: ignore[index]
                theirs = theirs or _NUMBERS[type(value)]
                if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
                    at[key] = torch.tensor(value, dtype=theirs, device="cpu")  # type: ignore[index]
                elif not value:  # 0.0 and -0.0 are equal
                    at[key] = _number.__wrapped__(value, dtype, theirs, _CPU)  # type: ignore[index]
                else:
                    where = next((t.device for t in (*given, *named.values()) if isinstance(t, torch.Tensor)), _CPU)
                    at[key] = _number(value, dtype, theirs, where)  # type: ignore[index]
        return tuple(given), named

    def compiled_for(self, sizes: Mapping[str, int]) -> Op:
        """The compiled op for these values of `signature.keywords`."""
        if not sizes:
            return self.compiled
        key = tuple(sorted(sizes.items()))
        if (found := self._by_size.get(key)) is None:
            found = self._by_size.setdefault(key, self.options.compiled(self.program, sizes))
        return found

    def batched(self, inputs: tuple[bool, ...]) -> Batched:
        """The operator for `inputs` that have one more dimension, the first. Raises Unbatched where there is none."""
        with _registering:
            if (found := self._batched.get(inputs)) is None:
                try:
                    found = self._made_batched(inputs)
                except Unbatched as why:
                    found = str(why)
                except TileError as error:
                    found = f"tilec failed: `{self.signature.name}` with one more dimension is refused: {first_line(str(error))}"
                self._batched[inputs] = found
        if isinstance(found, str):
            raise Unbatched(found)
        return found

    def _made_batched(self, inputs: tuple[bool, ...]) -> Batched:
        source = self.program.source
        made = batched(self.program.tree, self.signature.op, inputs)
        name = f"{self.name}_{''.join('01'[more] for more in inputs)}"
        program, options = (
            read_program(Source(source.name, made.text, source.folders)),
            replace(self.options, op=made.op, schedule=None),
        )
        backward, gradient = self.backward, self.gradient
        if backward is not None and gradient is not None:
            which = {"input": inputs, "result": made.results, "gradient": made.results}
            given = tuple(which[s.kind][s.number] for s in gradient.sources)
            back = backward.batched(given)
            before = gradient.summed or ((),) * len(gradient.targets)
            summed = tuple(
                (*(d + more for d in dims), *((0,) if more and not inputs[k] else ()))
                for k, more, dims in zip(gradient.targets, back.results, before)
            )
            if any(inputs[k] and not more for k, more in zip(gradient.targets, back.results)):
                name = backward.signature.name
                raise Unbatched(f"a result of the gradient `{name}` depends on nothing that has the dimension")
            backward, gradient = back.operator, replace(gradient, summed=summed)
        return Batched(_registered(Operator(name, program, options, backward, gradient)), made.results)

    def check(self) -> None:
        """Waits for all calls made so far, where the op has `deferred_checks`. Raises CallError for a check that failed."""
        for each in (self.compiled, *self._by_size.values()):
            each.check()

    def explain(self, kernel: str | None = None, *, full: bool = False) -> str:
        """How the op was compiled for the latest call: `Op.explain`."""
        return self.compiled.explain(kernel, full=full)

    def __repr__(self) -> str:
        return f"<tilec operator {self.name}>"

    def __copy__(self) -> Operator:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Operator:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """A pickled operator is its program's text and its options; it is registered where it is loaded."""
        source = self.program.source
        return _restored, (self.name, source.name, source.text, self.options, self.backward, source.folders)

    # ---- registration ------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> str:
        """The operator's schema, without its name."""
        inputs = [f"Tensor {_argument_name(n)}" for n in self.signature.inputs]
        if self.signature.keywords:
            inputs += ["*", *(f"SymInt {n}" for n in self.signature.keywords)]
        results = ["Tensor"] * len(self.signature.results)
        return f"({', '.join(inputs)}) -> {'Tensor' if len(results) == 1 else '(' + ', '.join(results) + ')'}"

    def same(self, other: Operator) -> bool:
        """Whether the other one is the same program with the same options."""
        mine, theirs = ((o.program.source, o.program.digest, o.options) for o in (self, other))
        return mine == theirs and self.backward is other.backward

    def register(self) -> None:
        space, _, name = self.name.partition("::")
        library = torch.library.Library(space, "FRAGMENT")
        library.define(name + self.schema, tags=_tags())
        self._library = library  # what it registered ends with it
        self.overload = getattr(getattr(torch.ops, space), name).default
        kernels.register(self, library, name)
        TABLE[self.name] = Row(splicer(self.signature))

    def unregister(self) -> None:
        if self._library is not None:
            self._library._destroy()


def _tags() -> tuple[torch.Tag, ...]:
    found = (getattr(torch.Tag, n, None) for n in ("pt2_compliant_tag", "needs_contiguous_strides"))
    return tuple(t for t in found if t is not None)


def _argument_name(name: str) -> str:
    """A parameter's name in a schema."""
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float32}
"""The types of numbers for parameters without a declared type."""
_CPU = torch.device("cpu")


@lru_cache(maxsize=1024, typed=True)
def _number(value: float, dtype: DType | None, theirs: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number as a tensor, which is made once. Raises CallError where the type does not have it."""
    if dtype is not None:
        buffers.number(value, dtype)
    if device.type == "cuda" and buffers.captures():
        device = _CPU
    with torch.inference_mode(False):  # else gradients could not keep it
        return torch.tensor(value, dtype=theirs, device=device)


# ---- the registry ----------------------------------------------------------------------------------------------------

_operators: dict[str, Operator] = {}
_registering = threading.RLock()


def op(
    source: str | Path, *, backward: str | Path | Operator | None = None, name: str | None = None, op: str | None = None,
    sizes: Mapping[str, int] | None = None, target: str | None = None, schedule: str | Path | None = None,
    deferred_checks: bool = False, path: str | Path | Sequence[str | Path] = (),
) -> Operator:  # fmt: skip
    """Registers a program as an operator of PyTorch, and returns it, ready to be called with tensors.

    `source`, `op`, `sizes`, `target`, `schedule`, `deferred_checks` and `path` are those of `tilec.compile`. Sizes that neither
    `sizes` nor arguments tell are keyword arguments of the operator. `name` is "library::operator", by which `torch.ops` knows
    it; by default "tilec::" with the op's name and a digest of the program. An operator of the same name is replaced.

    `backward` is a program for the gradient, or an operator. Its parameters have the names of inputs, of results, and `y_grad` for
    the gradient of the result `y`; its result `x_grad` is the gradient of the input `x`. A file of several ops may hold both:
    the program's op is then `op=`, and its gradient the op called `{op}_backward`.

    Raises TileError for mistakes in a program, CallError for wrong options, and for names, types or shapes of a gradient that
    do not fit its op.
    """
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise CallError(f"name= must be two names, not {name!r}", hint='name="mylib::softmax"')
    compiled = compile_program(
        source, op=op, sizes=sizes, target=target, schedule=schedule, deferred_checks=deferred_checks, path=path
    )
    if not isinstance(compiled._program, Program):
        raise CallError("an operator is a program, not a spelling of einsum", hint="`torch.einsum` takes the spelling")
    program, known = compiled._program, tuple(sorted(compiled._sizes.items()))
    options = Options(compiled.name, known, target, compiled._schedule, deferred_checks)
    with _registering:
        if name is None:
            name = f"tilec::{compiled.name}_{_digest(program, options, backward)}"
        if backward is not None and not isinstance(backward, Operator):
            backward = _backward(f"{name}_backward", read_source(backward, program.source.folders), program, options)
        made = Operator(name, program, options, backward)
        if backward is not None:
            made.backward = _registered(backward)
        return _registered(made)


def _backward(name: str, text: Source, forward: Program, options: Options) -> Operator:
    """The operator of a gradient, with the options of its op; not registered yet."""
    program = read_program(text)
    named = f"{options.op}_backward"
    chosen = program.op(named if named in program.ops or text == forward.source else None).name
    known = size_names(choose_op(program.tree, chosen))
    sizes = tuple((n, v) for n, v in options.sizes if n in known)
    schedule = _schedule_of(text)
    if schedule == options.schedule:
        schedule = None  # which has the op's kernels
    return Operator(name, program, replace(options, op=chosen, sizes=sizes, schedule=schedule), None)


def _registered(made: Operator) -> Operator:
    """The operator, or the equal one that is there."""
    with _registering:
        known = _operators.get(made.name)
        if known is not None:
            if known.same(made):
                return known
            known.unregister()
        made.register()
        _operators[made.name] = made
        return made


def _digest(program: Program, options: Options, backward: str | Path | Operator | None) -> str:
    """The part of a name that tells programs apart: the same in every process, so that exported programs find their operators."""
    gradient = backward.name if isinstance(backward, Operator) else "" if backward is None else read_source(backward).text
    schedule = read_bytes(options.schedule) if options.schedule is not None else None
    imported = program.digest if program.tree.imports else ""
    written = [program.source.text, imported, repr(replace(options, schedule=None)), schedule, gradient]
    return hashlib.sha256(repr(written).encode()).hexdigest()[:8]


def _restored(
    name: str, path: str, text: str, options: Options, backward: Operator | None, folders: tuple[str, ...] = ()
) -> Operator:
    """The operator that was pickled."""
    return _registered(Operator(name, read_program(Source(path, text, folders)), options, backward))


__all__ = ["Operator", "op"]

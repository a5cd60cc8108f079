"""Programs as operations of JAX, through its foreign function interface: `tilec.jax.op(source)`.

An operation is a custom call of XLA's on the CPU and on CUDA. So `jax.jit` compiles programs that have it. `jax.vmap` calls the
program with one more dimension, where the language has it, and else one element after another.
"""

from __future__ import annotations

import hashlib
import threading
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tilec.api import Op, compiled
from tilec.api import compile as compile_program
from tilec.core.diagnostics import CallError, Source
from tilec.core.dtypes import DType, from_numpy
from tilec.driver import arguments
from tilec.driver.frontend import Program, read_program
from tilec.dsl.batched_op import Unbatched, batched
from tilec.dsl.specialise import choose_op
from tilec.jax.call_frames import Memory, handler
from tilec.runtime.buffers import Buffer, Device

PLATFORMS = {"cpu": "cpu", "CUDA": "cuda"}
"""XLA's names of platforms, and kinds of targets."""
_handlers: dict[str, object] = {}  # which XLA calls for as long as the process lives
_registering = threading.Lock()


class Options(NamedTuple):
    """What `tilec.compile` takes beside a program."""

    sizes: tuple[tuple[str, int], ...]
    target: str | None
    schedule: Path | None


class Operator:
    """A program as an operation of JAX, called with arrays or numbers in the order of its parameters, or by their names."""

    def __init__(self, op: Op, program: Program, options: Options):
        self._op, self._program, self._options = op, program, options
        self._batched: dict[tuple[bool, ...], tuple[Operator, tuple[bool, ...]]] = {}
        written = repr((op.name, program.digest, options))
        self.name = f"tilec_{op.name}_{hashlib.sha256(written.encode()).hexdigest()[:16]}"
        with _registering:
            for platform, kind in PLATFORMS.items():
                if self.name + platform not in _handlers:
                    made = _handlers[self.name + platform] = handler(partial(self._run, kind))
                    jax.ffi.register_ffi_target(self.name, jax.ffi.pycapsule(made), platform=platform)

    def __call__(self, /, *arrays: object, **named: object) -> jax.Array | tuple[jax.Array, ...]:
        """The results, arrays of JAX: one, or a named tuple of several. Raises CallError for arguments that do not fit."""
        inputs = self._op._declared.inputs
        given = arguments.in_order(self._op.name, inputs, arrays, named)
        if len(given) != len(inputs):
            raise CallError(f"{self._op.name} takes {len(inputs)} arguments, not {len(given)}")
        values = [_array(value, name, dtype) for value, (name, dtype) in zip(given, inputs)]
        results = self._called(values)
        if len(results) == 1:
            return results[0]
        names = [name for name, _, _ in self._outputs(values)]
        return namedtuple(self._op.name, names, rename=True)(*results)

    def _called(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        shapes = []
        for name, dtype, shape in self._outputs(values):
            if jax.dtypes.canonicalize_dtype(dtype.numpy) != dtype.numpy:
                message = f"`{name}` is {dtype}, which JAX has only with 64-bit types"
                raise CallError(message, hint='jax.config.update("jax_enable_x64", True), or declare a type of 32 bits')
            shapes.append(jax.ShapeDtypeStruct(shape, dtype.numpy))
        call = jax.custom_batching.custom_vmap(jax.ffi.ffi_call(self.name, shapes, vmap_method="sequential"))
        call.def_vmap(self._with_dimension)
        return list(call(*values))

    def _with_dimension(
        self, size: int, mapped: Sequence[bool], *values: jax.Array
    ) -> tuple[list[jax.Array], list[bool]]:  # fmt: skip
        """The results for values of which the `mapped` ones have one more dimension, the first."""
        try:
            operator, results = self._of_dimension(tuple(mapped))
            return operator._called(values), list(results)
        except Unbatched:
            fixed = {k: v for k, v in enumerate(values) if not mapped[k]}

            def one(varying: dict[int, jax.Array]) -> list[jax.Array]:
                each = {**fixed, **varying}
                return self._called([each[k] for k in range(len(values))])

            found = jax.lax.map(one, {k: v for k, v in enumerate(values) if mapped[k]})
            return found, [True] * len(found)

    def _of_dimension(self, mapped: tuple[bool, ...]) -> tuple[Operator, tuple[bool, ...]]:
        if (found := self._batched.get(mapped)) is None:
            source, tree = self._program.source, self._program.tree
            made = batched(tree, choose_op(tree, self._op.name), mapped)
            program = read_program(Source(source.name, made.text, source.folders))
            options = self._options._replace(schedule=None)
            op = compiled(program, op=made.op, sizes=dict(options.sizes), target=options.target)
            found = Operator(op, program, options), tuple(made.results)
            self._batched[mapped] = found
        return found

    def _outputs(self, values: Sequence[jax.Array]) -> Sequence[tuple[str, DType, tuple[int, ...]]]:
        """Of the results, for values of these types and shapes. What computes them is compiled, for JAX's default device."""
        signature = []
        for value, (name, _) in zip(values, self._op._declared.inputs):
            if (dtype := from_numpy(value.dtype)) is None:
                raise CallError(f"`{name}` has the type {value.dtype}, which the language does not have")
            signature.append((dtype, tuple(map(int, value.shape))))
        device: Device = "cpu" if jax.default_backend() == "cpu" else 0
        return self._op._executable(tuple(signature), device).outputs

    def _run(self, kind: str, inputs: Sequence[Memory], outputs: Sequence[Memory], stream: Callable[[], int]) -> None:
        """A call by XLA."""
        device: Device = "cpu"
        if kind == "cuda":
            from tilec.runtime.cuda.driver import device_of

            device = next((device_of(at) for at, _, _ in (*inputs, *outputs) if at), 0)
        views, outs = ([_buffer(memory, device) for memory in each] for each in (inputs, outputs))
        executable = self._op._executable(tuple((v.dtype, v.shape) for v in views), device)
        executable.run(views, outs, stream() if kind == "cuda" else None)


def _buffer(memory: Memory, device: Device) -> Buffer:
    at, shape, dtype = memory
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d], step = step, step * shape[d]
    return Buffer(at, shape, tuple(strides), dtype, device, False, None)


def _array(value: object, name: str, dtype: DType | None) -> jax.Array:
    """An argument as JAX has it: a number takes its parameter's type."""
    if isinstance(value, bool | int | float) and dtype is not None:
        value = arguments.as_declared(value, dtype)
    found = jnp.asarray(value)
    if dtype is not None and from_numpy(found.dtype) != dtype:
        hint = f"{name}.astype({str(dtype.numpy)!r})"
        raise CallError(f"`{name}` is {found.dtype}, and its parameter {dtype}", hint=hint)
    return found


def op(
    source: str | Path, *, op: str | None = None, sizes: Mapping[str, int] | None = None, target: str | None = None,
    schedule: str | Path | None = None, path: str | Path | Sequence[str | Path] = (),
) -> Operator:  # fmt: skip
    """Makes a program an operation of JAX, to be called by itself, under `jax.jit` and under `jax.vmap`. Results are JAX's arrays.

    `source` and the options are those of `tilec.compile`. Raises TileError for mistakes in the program, and CallError for wrong
    options.
    """
    made = compile_program(source, op=op, sizes=sizes, target=target, schedule=schedule, path=path)
    if not isinstance(made._program, Program):
        raise CallError("an operation is a program, not a spelling of einsum", hint="`jax.numpy.einsum` takes the spelling")
    return Operator(made, made._program, Options(tuple(sorted(made._sizes.items())), target, made._schedule))

"""A partition's program as a function of the partition's values: by machine code, and for values at any address."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import fx

from tilec.api import Op
from tilec.core.diagnostics import CallError, CheckError
from tilec.driver import fast_call
from tilec.driver.executable import Executable
from tilec.runtime import huge_pages
from tilec.torch import segments
from tilec.torch.aliases import returns
from tilec.torch.failures import report
from tilec.torch.layout import Layout, row_major
from tilec.torch.types import Call, Results
from tilec.torch.write import Argument, Result, Written


def bind(
    built: Executable, device: str | int, written: Written, otherwise: Call, into: Mapping[int, int],
    freed: Collection[int] | None = None,
) -> Call | None:  # fmt: skip
    """A function of a partition's values, by machine code: the program reads them as they lie in memory, and its results have the
    promised strides; what has gaps is copied. `otherwise` is called for values that lie otherwise than they did when the graph was
    traced. None where nothing is read, or what changes in place has gaps. `into`, `freed`: see Partition."""
    arguments, results = written.arguments, written.results
    gapped = {a.number for a in arguments if a.layout is None}
    remade = {k: _restride(r) for k, r in enumerate(results) if r.layout is None and not r.plain}
    if not arguments or gapped & {*into.values()} or remade.keys() & into.keys():
        return None
    types = [dtype for _, dtype, _ in built.compiled.inputs]
    lie = [(a.shape, row_major(a.shape) if a.layout is None else a.strides) for a in arguments]
    inputs = [(dtype, *how) for dtype, how in zip(types, lie)]
    made = [(r.made, row_major(r.made)) if k in remade else (r.shape, r.strides) for k, r in enumerate(results)]
    outputs = [(dtype, *how) for (_, dtype, _), how in zip(built.outputs, made)]
    fresh = [new_strided(*how, r.dtype, device) for how, r in zip(made, results)]
    numbers = [a.number for a in arguments]
    if freed is not None and not (into or gapped or remade or built.emitted.sites):
        read = [k for k, n in enumerate(numbers) if n in freed]
        found = segments.prepare(built, device, written.given, numbers, inputs, outputs, fresh, new_strided, read, otherwise)
        if found is not None:
            return found
    shared = {k: n for k, n in into.items() if n not in numbers or built.emitted.may_share(numbers.index(n), k)}
    new = [shared.get(k, make) for k, make in enumerate(fresh)]
    built = built.with_scratch_results([k for k in range(len(new)) if k not in into])
    fast = fast_call.prepare(built, device, written.given, numbers, inputs, outputs, new, otherwise)
    if fast is not None and len(shared) < len(into):
        fast = copying(fast, {k: n for k, n in into.items() if k not in shared})
    if fast is not None and (gapped or remade):
        fast = _without_gaps(fast, sorted(gapped), remade)
    return fast


def _without_gaps(call: Call, gapped: Sequence[int], remade: Mapping[int, Callable[[torch.Tensor], torch.Tensor]]) -> Call:
    """The call, of copies of the values of these numbers, and with these results copied into the promised strides."""

    def copied(*values: torch.Tensor) -> Results:
        given = list(values)
        for number in gapped:
            given[number] = values[number].contiguous()
        made = call(*given)
        if not remade:
            return made
        if isinstance(made, torch.Tensor):
            return remade[0](made)
        return [remade[k](m) if k in remade else m for k, m in enumerate(made)]

    return copied


def new_strided(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: str | int
) -> Callable[[], torch.Tensor]:
    """A function that allocates a tensor of a shape, strides without gaps and a type, by PyTorch's shortest way: that of generated
    code."""
    empty = getattr(torch._C._dynamo.guards, f"_empty_strided_{'cpu' if device == 'cpu' else 'cuda'}")
    new = partial(empty, shape, strides, dtype)
    return huge_pages.allocator(new, math.prod(shape) * dtype.itemsize) if device == "cpu" else new


def _arrays(arguments: Sequence[Argument], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the op is given: row-major where the values are so in another order of dimensions."""

    def seen(value: torch.Tensor, found: Layout | None) -> torch.Tensor:
        value = value.detach()  # a parameter, whose gradient is another program's
        return value if found is None or found.plain else value.as_strided(found.stored, found.steps)

    return [seen(values[a.number], a.layout) for a in arguments]


def general(
    op: Op, written: Written, types: Sequence[torch.dtype], otherwise: Call, eager: Call, graph: fx.Graph
) -> Call:  # fmt: skip
    """As `bind`, for values at any address. `otherwise` is called for strides that the program was not made for; `eager` for other
    types than `types`: some of PyTorch's operators return another type than they are traced with."""
    arguments, results = written.arguments, written.results
    permuted = [(a.number, a.strides) for a in arguments if a.layout is not None and not a.layout.plain]
    restrided = [None if r.plain else _restride(r) for r in results]
    single = len(results) == 1
    typed = [(a.number, dtype) for a, dtype in zip(arguments, types)]
    operations = [n for n in graph.nodes if n.op == "call_function"]

    def call(*values: torch.Tensor) -> Results:
        if any(values[number].dtype != dtype for number, dtype in typed):
            return eager(*values)
        if any(values[number].stride() != strides for number, strides in permuted):
            return otherwise(*values)
        try:
            if arguments:
                made = op(*_arrays(arguments, values))
            else:
                made = op(out=[huge_pages.advised(torch.empty(r.made, dtype=r.dtype)) for r in results])
        except CheckError:  # a CallError, too: of the values, and PyTorch would compute with the same ones
            raise
        except CallError as error:  # an array that kernels cannot read
            report(operations, error)
            return eager(*values)
        if single:
            return made if restrided[0] is None else restrided[0](made)
        return [m if f is None else f(m) for m, f in zip(made, restrided)]

    return call


def copying(call: Call, into: Mapping[int, int]) -> Call:
    """The call, with results copied into values."""
    if not into:
        return call

    def copied(*values: torch.Tensor) -> Results:
        made = call(*values)
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        pending = [(k, values[n]) for k, n in into.items() if results[k] is not values[n]]
        if pending:  # by one kernel on a GPU
            torch._foreach_copy_([target for _, target in pending], [results[k] for k, _ in pending])
        for k, target in pending:
            results[k] = target
        return results[0] if isinstance(made, torch.Tensor) else results

    return copied


def _restride(result: Result) -> Callable[[torch.Tensor], torch.Tensor]:
    """From the row-major tensor to the promised one."""
    shape, strides = result.shape, result.strides
    if result.layout is not None:
        return lambda made: made.as_strided(shape, strides)

    def copied(made: torch.Tensor) -> torch.Tensor:
        new = torch.empty_strided(shape, strides, dtype=made.dtype, device=made.device)
        return huge_pages.advised(new).copy_(made.view(shape))

    return copied


def eager_call(graph: fx.Graph) -> Call:
    """The graph as PyTorch runs it."""
    module = fx.GraphModule({}, graph)
    if len(returns(graph)) != 1:
        return module.forward
    return lambda *values: module.forward(*values)[0]

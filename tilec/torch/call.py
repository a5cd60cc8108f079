"""A partition that can be called: its program for the sizes of the call, or PyTorch where there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import fx

from tilec.api import Op
from tilec.core.diagnostics import CallError, CheckError
from tilec.core.dtypes import DTYPES, DType
from tilec.driver import fast_call
from tilec.driver.cuda_executable import CudaExecutable
from tilec.driver.executable import Executable
from tilec.process.forking import compiling
from tilec.process.workers import workers
from tilec.torch import segments
from tilec.torch.aten import dtype_of
from tilec.torch.aten.scatters import CHANGES
from tilec.torch.background import in_background, wait
from tilec.torch.concrete import concrete, is_symbolic, traced
from tilec.torch.layout import Layout, row_major
from tilec.torch.options import Options
from tilec.torch.schedules import schedule_of
from tilec.torch.shared import program
from tilec.torch.write import Argument, Result, Unwritten, Written, blamed, write

Call = Callable[..., Any]
Note = Callable[[Written | None, str | None], None]
AT_ONCE = 4  # partitions that are compiled at a time
MOST_SIZES = 512
"""Sizes of one partition that are kept compiled; of further ones the oldest is forgotten."""


class Partition:
    """`partition(*values)` takes the values of the graph's placeholders, and returns its output, or several.

    A partition whose sizes are symbols is compiled for each set of sizes that it is called with; for those that it was traced with,
    at once. `note` is told what was compiled (a program, None where PyTorch runs it) and the reason where PyTorch runs it. Raises
    Unwritten, unless `last`, where one operation is why the partition cannot be compiled. `into`: results that are written into
    values that the partition is given, by their numbers. `freed`: the numbers of values that are freed when the partition lets them
    go, in a training step; the call may then be `Segmented`."""

    def __init__(
        self, graph: fx.Graph, options: Options, mode: Any, note: Note, last: bool = True,
        into: Mapping[int, int] | None = None, freed: Collection[int] | None = None,
    ):  # fmt: skip
        self.graph, self.options, self.mode, self.note, self.last = graph, options, mode, note, last
        self.into, self.freed = into or {}, freed
        self.eager = _copying(eager_call(graph), self.into)
        self.made: dict[tuple[Any, ...], Call] = {}
        self._exact = set[Call]()  # those that find out themselves that values are of other sizes
        self._lock = threading.Lock()
        symbolic = is_symbolic(graph)
        self.call: Call = self._by_size if symbolic else self.eager
        given = [n.meta.get("val") for n in graph.nodes if n.op == "placeholder"]
        self._numbers = [k for k, value in enumerate(given) if not isinstance(value, torch.Tensor)]
        self._recent: tuple[Call, list[Any]] = self._any_size, [None] * len(self._numbers)
        if options.background:
            self.last = True
            in_background(self._prepare_traced if symbolic else self._prepare)
        elif symbolic:
            self._prepare_traced()
        else:
            self._prepare()
        self.last = True

    @property
    def fixed(self) -> Call:
        """What to call: this, or what it would call each time."""
        return self if self.options.background else self.call

    @staticmethod
    def ahead(graphs: Sequence[fx.Graph], into: Sequence[Mapping[int, int]], options: Options, mode: Any) -> Call:
        """Writes what partitions of these graphs will ask for, and returns what compiles it, several programs at a time. What
        fails, fails there again."""

        def compiled(asked: tuple[Written, Any, Any, str | int]) -> None:
            written, over, inputs, device = asked
            with suppress(Exception):
                built = _program(written, options, over).build_for(inputs, device)
                if isinstance(built, CudaExecutable) and device != "cpu":
                    with compiling():
                        _ = built.cubins

        asked = {}
        for graph, own in zip(graphs, into):
            with suppress(Exception):
                known = _traced(graph, mode)
                written = write(known)
                over = _over(known, written, own, options)
                asked[written.text, over] = written, over, _inputs(known, written), _device(known)

        def compile_all() -> None:
            with suppress(CancelledError), workers(AT_ONCE, "tilec-ahead", spare=True) as pool:
                pool.map(compiled, asked.values())

        return compile_all

    def _prepare(self) -> None:
        self.call = self._compiled(self.graph)

    def _prepare_traced(self) -> None:
        known = _traced(self.graph, self.mode)
        values = [n.meta.get("val") for n in known.nodes if n.op == "placeholder"]
        key = _key(values)
        self.made[key] = self._compiled(known, key)

    def __call__(self, *values: Any) -> Any:
        return self.call(*values)

    def _by_size(self, *values: Any) -> Any:
        """First as the latest call was done, whose machine code compares sizes."""
        call, numbers = self._recent
        return call(*values) if numbers == [values[k] for k in self._numbers] else self._any_size(*values)

    def _any_size(self, *values: Any) -> Any:
        key = _key(values)
        found = self.made.get(key)
        if found is None:
            found = self._for(key, values)
        if found in self._exact:
            self._recent = found, [values[k] for k in self._numbers]
        return found(*values)

    def _missed(self, key: tuple[Any, ...], slow: Call, *values: Any) -> Any:
        """Values that the call for the sizes of `key` did not take: of these sizes, but at another address, or of others."""
        return slow(*values) if _key(values) == key else self._any_size(*values)

    def _for(self, key: tuple[Any, ...], values: Sequence[Any]) -> Call:
        with self._lock:
            if (found := self.made.get(key)) is not None:
                return found
            while len(self.made) >= MOST_SIZES:
                self._exact.discard(self.made.pop(next(iter(self.made))))
            like = [_fake(v, self.mode) for v in values]

            def build() -> None:
                self.made[key] = self._compiled(_sized(self.graph, like, self.mode), key)

            if self.options.background:
                self.made[key] = self.eager
                in_background(build)
            else:
                build()
            return self.made[key]

    def _compiled(self, graph: fx.Graph, key: tuple[Any, ...] | None = None) -> Call:
        """The call of a graph of known sizes; `key` says which, if there are others. Where it cannot be compiled, PyTorch's, and
        the reason is told."""
        written = None
        try:
            written = write(graph)
            made = self._bound(written, graph, key)
        except Exception as error:  # of any kind: PyTorch can run it
            found = error if isinstance(error, Unwritten) else blamed(error, written) if written is not None else None
            if found is not None and found.nodes and not self.last:
                raise found from error
            if self.options.strict:
                raise
            self.note(None, f"{type(error).__name__}: {error}")
            return self.eager
        self.note(written, None)
        return made

    def _bound(self, written: Written, graph: fx.Graph, key: tuple[Any, ...] | None) -> Call:
        device, over = _device(graph), _over(graph, written, self.into, self.options)
        op = _program(written, self.options, over)
        if not written.arguments and device != "cpu":
            raise ValueError("a program on a GPU that reads nothing")
        built = op.build_for(_inputs(graph, written), device)
        slow = self.eager if over else _copying(_general(op, written, self._any_size, self.eager), self.into)
        freed = self.freed if key is None and not self.options.background else None
        fast = bind(op, built, device, written, slow if key is None else partial(self._missed, key, slow), self.into, freed)
        copied = [k for k, n in over if fast is None or built.emitted.reads(n)]
        if copied:  # PyTorch writes in place what a kernel would copy
            raise Unwritten([_outputs(graph)[k] for k in copied], "writes to computed positions")
        if fast is not None and key is not None:
            self._exact.add(fast)
        return fast or slow


def _key(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in values)


def _program(written: Written, options: Options, over: tuple[tuple[int, int], ...] = ()) -> Op:
    return program(written.text, options.target, schedule_of(written.text, options.schedule), over)


def _over(
    graph: fx.Graph, written: Written, into: Mapping[int, int], options: Options
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """Results of which one position is written, and the program's arguments in whose memory they are. A schedule of the program is
    one that computes all of them: it is obeyed."""
    numbers, outputs = [a.number for a in written.arguments], _outputs(graph)
    found = tuple((k, numbers.index(n)) for k, n in into.items() if outputs[k].meta.get(CHANGES) and n in numbers)
    return found if found and schedule_of(written.text, options.schedule) is None else ()


def _inputs(graph: fx.Graph, written: Written) -> tuple[tuple[DType, tuple[int, ...]], ...]:
    """Types and shapes of the program's arguments."""
    values = [n.meta.get("val") for n in graph.nodes if n.op == "placeholder"]
    return tuple((DTYPES[dtype_of(values[a.number].dtype)], _stored(a)) for a in written.arguments)


def _traced(graph: fx.Graph, mode: Any) -> fx.Graph:
    """The graph for the sizes that it was traced with."""
    if not is_symbolic(graph):
        return graph
    return _sized(graph, [traced(n.meta.get("val"), mode) for n in graph.nodes if n.op == "placeholder"], mode)


def _checks(built: Executable) -> str:
    """The messages of all run-time checks."""
    return "\n".join(built.emitted.sites)


def _device(graph: fx.Graph) -> str | int:
    """The device that the graph's results are on, as tilec names it."""
    device = _outputs(graph)[0].meta["val"].device
    return "cpu" if device.type == "cpu" else device.index or 0


def _outputs(graph: fx.Graph) -> Sequence[fx.Node]:
    (output,) = (n for n in graph.nodes if n.op == "output")
    return output.args[0]


def _stored(argument: Argument) -> tuple[int, ...]:
    return argument.shape if argument.layout is None else argument.layout.stored


def bind(
    op: Op, built: Executable, device: str | int, written: Written, otherwise: Call, into: Mapping[int, int],
    freed: Collection[int] | None = None,
) -> Call | None:  # fmt: skip
    """A function of a partition's values, by machine code: the program reads them as they lie in memory, and its results have the
    promised strides; what has gaps is copied. `otherwise` is called for values that lie otherwise than they did when the graph was
    traced. Raises IndexError for an index that is outside of its tensor. None where nothing is read, or what changes in place has
    gaps. `into`, `freed`: see Partition."""
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
    empty = empty_strided(device)
    fresh = [partial(empty, *how, r.dtype) for how, r in zip(made, results)]
    numbers = [a.number for a in arguments]
    if freed is not None and not (into or gapped or remade or _checks(built)):
        read = [k for k, n in enumerate(numbers) if n in freed]
        found = segments.prepare(built, device, written.given, numbers, inputs, outputs, fresh, empty, read, otherwise)
        if found is not None:
            return found
    shared = {k: n for k, n in into.items() if n not in numbers or built.emitted.may_share(numbers.index(n), k)}
    new = [shared.get(k, make) for k, make in enumerate(fresh)]
    built = built.lodging([k for k in range(len(new)) if k not in into])
    fast = fast_call.prepare(built, device, written.given, numbers, inputs, outputs, new, otherwise)
    if fast is not None and len(shared) < len(into):
        fast = _copying(fast, {k: n for k, n in into.items() if k not in shared})
    if fast is not None and (gapped or remade):
        fast = _without_gaps(fast, sorted(gapped), remade)
    if fast is None or not _checks(built):
        return fast

    def checked(*values: Any) -> Any:
        try:
            return fast(*values)
        except CheckError as error:
            raise IndexError(str(op.told(error, _arrays(arguments, values)))) from None

    return checked


def _without_gaps(call: Call, gapped: Sequence[int], remade: Mapping[int, Call]) -> Call:
    """The call, of copies of the values of these numbers, and with these results copied into the promised strides."""

    def copied(*values: Any) -> Any:
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


def empty_strided(device: str | int) -> Callable[..., torch.Tensor]:
    """PyTorch's shortest way to a tensor of a shape, strides and a type: that of generated code."""
    made = torch._C._dynamo.guards
    return made._empty_strided_cpu if device == "cpu" else made._empty_strided_cuda


def _arrays(arguments: Sequence[Argument], values: Sequence[Any]) -> list[Any]:
    """What the op is given: row-major where the values are so in another order of dimensions."""

    def seen(value: Any, found: Layout | None) -> Any:
        return value if found is None or found.plain else value.as_strided(found.stored, found.steps)

    return [seen(values[a.number], a.layout) for a in arguments]


def _general(op: Op, written: Written, otherwise: Call, eager: Call) -> Call:
    """As `bind`, for values at any address. `otherwise` is called for strides that the program was not made for; `eager` for types:
    some of PyTorch's operators return another type than they are traced with."""
    arguments, results = written.arguments, written.results
    permuted = [(a.number, a.strides) for a in arguments if a.layout is not None and not a.layout.plain]
    restrided = [None if r.plain else _restride(r) for r in results]
    single = len(results) == 1

    def call(*values: Any) -> Any:
        if any(values[number].stride() != strides for number, strides in permuted):
            return otherwise(*values)
        try:
            if arguments:
                made = op(*_arrays(arguments, values))
            else:
                made = op(out=[torch.empty(r.made, dtype=r.dtype) for r in results])
        except CheckError as error:
            raise IndexError(str(error)) from None
        except CallError:
            return eager(*values)
        if single:
            return made if restrided[0] is None else restrided[0](made)
        return [m if f is None else f(m) for m, f in zip(made, restrided)]

    return call


def _copying(call: Call, into: Mapping[int, int]) -> Call:
    """The call, with results copied into values."""
    if not into:
        return call

    def copied(*values: Any) -> Any:
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
        return torch.empty_strided(shape, strides, dtype=made.dtype, device=made.device).copy_(made.view(shape))

    return copied


def eager_call(graph: fx.Graph) -> Call:
    """The graph as PyTorch runs it."""
    module = fx.GraphModule({}, graph)
    (output,) = (n for n in graph.nodes if n.op == "output")
    single = len(output.args[0]) == 1
    if not single:
        return module.forward
    return lambda *values: module.forward(*values)[0]


def _fake(value: Any, mode: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _sized(graph: fx.Graph, values: Sequence[Any], mode: Any) -> fx.Graph:
    """The graph for these values."""
    made, became = concrete(graph, values, mode, lambda name: None)
    (output,) = (n for n in graph.nodes if n.op == "output")
    made.output(tuple(became[n] for n in output.args[0]))
    return made


__all__ = ["MOST_SIZES", "Partition", "bind", "eager_call", "empty_strided", "program", "wait"]

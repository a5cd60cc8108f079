"""A partition that can be called: its program for the sizes of the call, or PyTorch where there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import fx

from tilec.api import Op
from tilec.core.diagnostics import TileError
from tilec.core.dtypes import DTYPES
from tilec.driver.cuda_executable import CudaExecutable
from tilec.driver.recipe import Signature
from tilec.process.forking import compiling
from tilec.process.interrupts import pass_on
from tilec.process.logs import log
from tilec.process.workers import workers
from tilec.runtime import buffers
from tilec.torch.aliases import returns
from tilec.torch.aten import dtype_of
from tilec.torch.aten.scatters import CHANGES
from tilec.torch.background import in_background, wait
from tilec.torch.bound import bind, copying, eager_call, general
from tilec.torch.concrete import Undecided, concrete, is_symbolic, traced
from tilec.torch.failures import report, warn
from tilec.torch.options import Options
from tilec.torch.outside import checking, remember
from tilec.torch.schedules import schedule_of
from tilec.torch.shared import program
from tilec.torch.types import Call, Results, Value
from tilec.torch.varied import varied
from tilec.torch.write import Unwritten, Written, blamed, write

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

Key = tuple[Hashable, ...]
"""What tells the sizes of a call: shapes and strides of its tensors, and its numbers."""
Note = Callable[[Written | None, str | None, str], None]
MOST_FAILED = 3
"""Classes of sizes for which the program of a partition may fail, before all of its sizes are numbers."""
AT_ONCE = 4  # partitions that are compiled at a time
MOST_SIZES = 512
"""Sizes of one partition that are kept compiled; of further ones the oldest is forgotten."""


class Partition:
    """`partition(*values)` takes the values of the graph's placeholders, and returns its output, or several.

    A partition whose sizes are symbols is compiled for each class of sizes that it is called with (`tilec/torch/varied.py`), or for
    each set of sizes where these cannot vary; for those that it was traced with, at once. `note` is called with what was compiled
    (a program, None where PyTorch runs it), the reason where PyTorch runs it, and the reason why sizes do not vary.
    Raises Unwritten, unless `last`, where one operation is why the partition cannot be compiled. `into`: results that are written
    into values that the partition is given, by their numbers. `freed`: the numbers of values that are freed when the partition lets
    them go, in a training step; the call may then be `Segmented`."""

    def __init__(
        self, graph: fx.Graph, options: Options, mode: FakeTensorMode, note: Note, last: bool = True,
        into: Mapping[int, int] | None = None, freed: Collection[int] | None = None,
    ):  # fmt: skip
        self.graph, self.options, self.mode, self.note, self.last = graph, options, mode, note, last
        self.into, self.freed = into or {}, freed
        self.eager = copying(eager_call(graph), self.into)
        self.made: dict[Key, Call] = {}
        self._exact = set[Call]()  # those that find out themselves that values are of other sizes
        self._lock = threading.Lock()
        symbolic = is_symbolic(graph)
        self._varied = varied(graph) if symbolic and not options.measures else None
        self._why = ""
        self._classes = self._failed = 0
        self.call: Call = self._by_size if symbolic else self.eager
        given = _given(graph)
        self._numbers = [k for k, value in enumerate(given) if not isinstance(value, torch.Tensor)]
        self._recent: tuple[Call, list[Value]] = self._any_size, [None] * len(self._numbers)
        if options.background:
            self.last = True
            in_background(partial(self._or_raising, self._prepare_traced if symbolic else self._prepare))
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
    def ahead(
        graphs: Sequence[fx.Graph], into: Sequence[Mapping[int, int]], options: Options, mode: FakeTensorMode
    ) -> Callable[[], None]:
        """Writes what partitions of these graphs will ask for, and returns what compiles it, several programs at a time. What
        fails, fails there again."""

        def compiled(asked: tuple[Written, tuple[tuple[int, int], ...], Signature, str | int]) -> None:
            written, donated, inputs, device = asked
            with suppress(Exception):
                built = _program(written, options, donated).build_for(inputs, device, written.sizes)
                if isinstance(built, CudaExecutable) and device != "cpu":
                    with compiling():
                        _ = built.cubins

        asked = {}
        for graph, own in zip(graphs, into):
            with suppress(Exception):
                known = _traced(graph, mode)
                of = varied(graph).at(_given(known)) if is_symbolic(graph) else None
                written = write(known) if of is None else of[0]
                donated = _donated(known, written, own, options)
                asked[written.text, donated] = written, donated, _inputs(known, written), _device(known)

        def compile_all() -> None:
            with suppress(CancelledError), workers(AT_ONCE, "tilec-ahead", spare=True) as pool:
                pool.map(compiled, asked.values())

        return compile_all

    def _or_raising(self, build: Callable[[], None]) -> None:
        """Has the next call raise the error of a build that nobody waits for, which there is under `strict`."""
        try:
            build()
        except Exception as error:
            self.call = partial(_raise, error)

    def _prepare(self) -> None:
        self.call = self._compiled(self.graph)

    def _prepare_traced(self) -> None:
        known = _traced(self.graph, self.mode)
        values = _given(known)
        key = _key(values)
        self.made[key] = self._of_class(values, key) or self._compiled(known, key)

    def __call__(self, *values: Value) -> Results:
        return self.call(*values)

    def _by_size(self, *values: Value) -> Results:
        """First as the latest call was done, whose machine code compares sizes."""
        call, numbers = self._recent
        return call(*values) if numbers == [values[k] for k in self._numbers] else self._any_size(*values)

    def _any_size(self, *values: Value) -> Results:
        key = _key(values)
        found = self.made.get(key)
        if found is None:
            found = self._for(key, values)
        if found in self._exact:
            self._recent = found, [values[k] for k in self._numbers]
        return found(*values)

    def _missed(self, key: Key, slow: Call, *values: Value) -> Results:
        """Values that the call for the sizes of `key` did not take: of these sizes, but at another address, or of others."""
        return slow(*values) if _key(values) == key else self._any_size(*values)

    def _for(self, key: Key, values: Sequence[Value]) -> Call:
        with self._lock:
            if (found := self.made.get(key)) is not None:
                return found
            while len(self.made) >= MOST_SIZES:
                self._exact.discard(self.made.pop(next(iter(self.made))))
            like = [_fake(v, self.mode) for v in values]

            log("torch", f"a partition meets new sizes: {', '.join(map(_described, values))}")

            def build() -> None:
                self.made[key] = self._of_class(like, key) or self._compiled(_sized(self.graph, like, self.mode), key)

            if self.options.background:
                self.made[key] = self.eager
                in_background(partial(self._or_raising, build))
            else:
                build()
            return self.made[key]

    def _of_class(self, values: Sequence[Value], key: Key) -> Call | None:
        """The call of the program whose sizes vary, for the sizes of these values; None where there is none for them."""
        if self._varied is None:
            return None
        if (found := self._varied.at(values)) is None:
            self._why = self._varied.why
            return None
        written, graph = found
        try:
            made = self._bound(written, graph, key)
        except Exception as error:  # of any kind: the partition is compiled for sizes that are numbers
            pass_on(error)
            self._why = f"{type(error).__name__}: {error}"
            self._failed += 1
            if self._failed == MOST_FAILED:
                self._varied = None
                self._why += f" (and so for {MOST_FAILED} classes: no other is tried)"
            return None
        served = _program(written, self.options, _donated(graph, written, self.into, self.options)).classes()
        if len(served) > self._classes:
            self._classes = len(served)
            self.note(written, None, next((f"{names}: {why}" for s in served for names, why in s.refused), ""))
        return made

    def _compiled(self, graph: fx.Graph, key: Key | None = None) -> Call:
        """The call of a graph of known sizes; `key` says which, if there are others. Where it cannot be compiled, PyTorch's, and
        the reason is reported."""
        written = None
        try:
            written = write(graph)
            made = self._bound(written, graph, key)
        except Exception as error:  # of any kind: PyTorch can run it
            pass_on(error)
            found = error if isinstance(error, Unwritten) else blamed(error, written) if written is not None else None
            if found is not None and found.nodes and not self.last:
                if found.failed and not self.options.strict:
                    report(found.nodes, found.reason)
                raise found from error
            if self.options.strict:
                raise
            self.note(None, f"{type(error).__name__}: {error}", "")
            if not isinstance(error, Unwritten) or error.failed:
                report(_operations(graph), error)
            return self.eager
        self.note(written, None, self._why)
        return made

    def _bound(self, written: Written, graph: fx.Graph, key: Key | None) -> Call:
        device, donated = _device(graph), _donated(graph, written, self.into, self.options)
        op = _program(written, self.options, donated)
        if not written.arguments and device != "cpu":
            raise Unwritten(_outputs(graph), "a program on a GPU that reads nothing")
        inputs = _inputs(graph, written)
        if self.options.measures and not donated:
            op = _measured(op, written, self.options, inputs, device)
        built = op.build_for(inputs, device, written.sizes)
        slow = self.eager
        if not donated:
            types = [buffers.to_torch(dtype.name) for _, dtype, _ in built.compiled.inputs]
            slow = copying(general(op, written, types, self._any_size, self.eager, graph), self.into)
        freed = self.freed if key is None and not self.options.background else None
        fast = bind(built, device, written, slow if key is None else partial(self._missed, key, slow), self.into, freed)
        copied = [k for k, n in donated if fast is None or built.emitted.reads(n)]
        if copied:  # PyTorch writes in place what a kernel would copy
            raise Unwritten([_outputs(graph)[k] for k in copied], "writes to computed positions")
        if sites := built.emitted.sites:
            remember(built.emitted.module, sites if device != "cpu" else (), written)
            fast, slow = fast and checking(fast, written), checking(slow, written)
        if fast is not None and key is not None:
            self._exact.add(fast)
        return fast or slow


def _described(value: Value) -> str:
    return f"{list(value.shape)}" if isinstance(value, torch.Tensor) else str(value)


def _raise(error: Exception, *values: Value) -> NoReturn:
    raise error


def _key(values: Sequence[Value]) -> Key:
    return tuple((v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in values)


def _program(written: Written, options: Options, donated: tuple[tuple[int, int], ...] = ()) -> Op:
    schedule = schedule_of(written.text, options.schedule)
    return program(written.text, options.target, schedule, donated, tuple(written.varies.items()))


def _measured(op: Op, written: Written, options: Options, inputs: Signature, device: str | int) -> Op:
    """The op with the plan that measurements choose, where no schedule says what it is."""
    from tilec.semantics.fastest import fastest_schedule

    if schedule_of(written.text, options.schedule) is not None:
        return op
    try:
        path = fastest_schedule(op.recipe_for(inputs, device))
    except TileError as error:
        if options.strict:
            raise
        warn(f"tilec measured no plans of a partition, whose plan is the predicted one: {error}")
        return op
    return op if path is None else program(written.text, options.target, str(path))


def _donated(
    graph: fx.Graph, written: Written, into: Mapping[int, int], options: Options
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """Results of which one position is written, and the program's arguments in whose memory they are. A schedule of the program is
    one that computes all of them: it is obeyed."""
    numbers, outputs = [a.number for a in written.arguments], _outputs(graph)
    found = tuple((k, numbers.index(n)) for k, n in into.items() if outputs[k].meta.get(CHANGES) and n in numbers)
    return found if found and schedule_of(written.text, options.schedule) is None else ()


def _inputs(graph: fx.Graph, written: Written) -> Signature:
    """Types and shapes of the program's arguments."""
    types = {k: v.dtype for k, v in enumerate(_given(graph)) if isinstance(v, torch.Tensor)}
    return tuple((DTYPES[dtype_of(types[a.number])], a.stored) for a in written.arguments)


def _traced(graph: fx.Graph, mode: FakeTensorMode) -> fx.Graph:
    """The graph for the sizes that it was traced with."""
    if not is_symbolic(graph):
        return graph
    return _sized(graph, [traced(value, mode) for value in _given(graph)], mode)


def _device(graph: fx.Graph) -> str | int:
    """The device that the graph's results are on, as tilec names it."""
    device = _outputs(graph)[0].meta["val"].device
    return "cpu" if device.type == "cpu" else device.index or 0


def _operations(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function"]


def _given(graph: fx.Graph) -> list[Value]:
    """The values of the graph's placeholders."""
    return [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]


def _outputs(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in returns(graph) if isinstance(n, fx.Node)]


def _fake(value: Value, mode: FakeTensorMode) -> Value:
    if not isinstance(value, torch.Tensor):
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _sized(graph: fx.Graph, values: Sequence[Value | Undecided], mode: FakeTensorMode) -> fx.Graph:
    """The graph for these values."""
    made, became = concrete(graph, values, mode, lambda name: None)
    results = [became[n] for n in _outputs(graph)]
    made.output(tuple(n for n in results if not isinstance(n, Undecided)))
    return made


__all__ = ["MOST_SIZES", "Partition", "bind", "eager_call", "program", "wait"]

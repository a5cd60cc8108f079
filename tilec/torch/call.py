"""A partition that can be called: its program for the sizes of the call, or PyTorch where there is none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

import torch
from torch import fx

from tilec.api import Op
from tilec.api import compile as compile_program
from tilec.core.diagnostics import CheckError
from tilec.core.dtypes import DTYPES, DType
from tilec.driver.executable import Executable
from tilec.torch.aten import dtype_of
from tilec.torch.concrete import concrete, is_symbolic, traced
from tilec.torch.options import Options
from tilec.torch.schedules import schedule_of
from tilec.torch.write import Argument, Result, Unwritten, Written, blamed, named, write

Call = Callable[..., Any]
Note = Callable[[Written | None, str | None], None]
AT_ONCE = 4  # partitions that are compiled at a time
MOST_SIZES = 512
"""Sizes of one partition that are kept compiled; of further ones the oldest is forgotten."""


class Partition:
    """`partition(*values)` takes the values of the graph's placeholders, and returns its output, or several.

    A partition whose sizes are symbols is compiled for each set of sizes that it is called with; for those that it was traced with,
    at once. `note` is told what was compiled (a program, None where PyTorch runs it) and the reason where PyTorch runs it. Raises
    Unwritten, unless `last`, where one operation is why the partition cannot be compiled."""

    def __init__(self, graph: fx.Graph, options: Options, mode: Any, note: Note, last: bool = True):
        self.graph, self.options, self.mode, self.note, self.last = graph, options, mode, note, last
        self.eager = eager_call(graph)
        self.made: dict[tuple[Any, ...], Call] = {}
        self._lock = threading.Lock()
        symbolic = is_symbolic(graph)
        self.call: Call = self._by_size if symbolic else self.eager
        if options.background:
            self.last = True
            _in_background(self._prepare_traced if symbolic else self._prepare)
        elif symbolic:
            self._prepare_traced()
        else:
            self._prepare()
        self.last = True

    @staticmethod
    def ahead(graphs: Sequence[fx.Graph], options: Options, mode: Any) -> None:
        """Compiles what partitions of these graphs will ask for, several at a time. What fails, fails there again."""
        if len(graphs) < 2 or options.background:
            return

        def compiled(asked: tuple[Op, Any, str | int]) -> None:
            op, inputs, device = asked
            with suppress(Exception):
                op.build_for(inputs, device)

        asked = {}
        for graph in graphs:
            with suppress(Exception):
                known = _traced(graph, mode)
                written = write(known)
                op = _program(written, options)
                asked[written.text] = op, _inputs(known, written), _device(known)
        with ThreadPoolExecutor(min(len(asked) or 1, AT_ONCE)) as pool:
            list(pool.map(compiled, asked.values()))

    def _prepare(self) -> None:
        self.call = self._compiled(self.graph)

    def _prepare_traced(self) -> None:
        known = _traced(self.graph, self.mode)
        values = [n.meta.get("val") for n in known.nodes if n.op == "placeholder"]
        self.made[_key(values)] = self._compiled(known)

    def __call__(self, *values: Any) -> Any:
        return self.call(*values)

    def _by_size(self, *values: Any) -> Any:
        key = _key(values)
        found = self.made.get(key)
        if found is None:
            found = self._for(key, values)
        return found(*values)

    def _for(self, key: tuple[Any, ...], values: Sequence[Any]) -> Call:
        with self._lock:
            if (found := self.made.get(key)) is not None:
                return found
            while len(self.made) >= MOST_SIZES:
                del self.made[next(iter(self.made))]
            like = [_fake(v, self.mode) for v in values]

            def build() -> None:
                self.made[key] = self._compiled(_sized(self.graph, like, self.mode))

            if self.options.background:
                self.made[key] = self.eager
                _in_background(build)
            else:
                build()
            return self.made[key]

    def _compiled(self, graph: fx.Graph) -> Call:
        """The call of a graph of known sizes. Where it cannot be compiled, PyTorch's, and the reason is told."""
        written = None
        try:
            written = write(graph)
            made = self._bound(written, graph)
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

    def _bound(self, written: Written, graph: fx.Graph) -> Call:
        device = _device(graph)
        op = _program(written, self.options)
        if not written.arguments and device != "cpu":
            raise ValueError("a program on a GPU that reads nothing")
        built = op.build_for(_inputs(graph, written), device)
        if device != "cpu" and self.options.mode == "reduce-overhead" and (checks := _checks(built)):
            reason = "its indices are checked by the host, which a CUDA graph does not wait for"
            raise Unwritten(named(checks, written), reason)
        return bind(op, written, self._by_size)


def _key(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in values)


@lru_cache(maxsize=4096)
def program(text: str, target: str | None, schedule: str | None) -> Op:
    """The op of a text: equal partitions have one. On a GPU, an index outside of its tensor is raised by a later call, as PyTorch's
    own checks are there."""
    return compile_program(text, target=target, schedule=schedule, deferred_checks=True)


def _program(written: Written, options: Options) -> Op:
    return program(written.text, options.target, schedule_of(written.text, options.schedule))


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
    return "\n".join(site for kernel in built.emitted.kernels for site in kernel.sites)


def _device(graph: fx.Graph) -> str | int:
    """The device that the graph's results are on, as tilec names it."""
    (output,) = (n for n in graph.nodes if n.op == "output")
    device = output.args[0][0].meta["val"].device
    return "cpu" if device.type == "cpu" else device.index or 0


def _stored(argument: Argument) -> tuple[int, ...]:
    return argument.shape if argument.layout is None else argument.layout.stored


def bind(op: Op, written: Written, otherwise: Call) -> Call:
    """A function of a partition's values: it has the op read them as they lie in memory, and gives its results the promised
    strides. `otherwise` is called for values that lie otherwise than they did when the graph was traced."""
    arguments, results = written.arguments, written.results
    transposed = [a for a in arguments if a.layout is not None and not a.layout.plain]
    numbers = [a.number for a in arguments]
    restrided = [None if r.plain else _restride(r) for r in results]
    example = None
    if not arguments:
        example = [(r.made, r.dtype) for r in results]
    single = len(results) == 1

    def call(*values: Any) -> Any:
        for a in transposed:
            if values[a.number].stride() != a.strides:
                return otherwise(*values)
        arrays = [values[n] for n in numbers]
        for k, a in enumerate(arguments):
            if a.layout is not None and not a.layout.plain:
                arrays[k] = arrays[k].as_strided(a.layout.stored, a.layout.steps)
        try:
            if example is None:
                made = op(*arrays)
            else:
                made = op(out=[torch.empty(shape, dtype=dtype) for shape, dtype in example])
        except CheckError as error:
            raise IndexError(str(error)) from None
        if single:
            return made if restrided[0] is None else restrided[0](made)
        return [m if f is None else f(m) for m, f in zip(made, restrided)]

    def plain(*values: Any) -> Any:
        try:
            return op(*values)
        except CheckError as error:
            raise IndexError(str(error)) from None

    everything = (
        numbers == list(range(len(written.arguments))) and not transposed and not any(restrided) and example is None
    )
    return plain if everything and len(numbers) == written.given else call


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


# ---- in the background -----------------------------------------------------------------------------------------------


class _Worker:
    def __init__(self) -> None:
        self.process = os.getpid()
        self.tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.waiting = 0
        self.idle = threading.Condition()
        threading.Thread(target=self._work, name="tilec-torch", daemon=True).start()

    def _work(self) -> None:
        while True:
            task = self.tasks.get()
            try:
                task()
            finally:
                with self.idle:
                    self.waiting -= 1
                    self.idle.notify_all()


_worker: _Worker | None = None
_starting = threading.Lock()


def _in_background(task: Callable[[], None]) -> None:
    """Has a thread of this process do it, one task after another."""
    global _worker
    with _starting:
        if _worker is None or _worker.process != os.getpid():
            _worker = _Worker()
        with _worker.idle:
            _worker.waiting += 1
        _worker.tasks.put(task)


def wait() -> None:
    """Waits until everything is compiled that `options={"background": True}` left for later."""
    worker = _worker
    if worker is not None and worker.process == os.getpid():
        with worker.idle:
            worker.idle.wait_for(lambda: not worker.waiting)


__all__ = ["Partition", "bind", "eager_call", "program", "wait"]

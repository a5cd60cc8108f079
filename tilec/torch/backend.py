"""The back end of `torch.compile(model, backend="tilec")`: AOTAutograd's graphs, each cut into partitions and compiled."""

from __future__ import annotations

import copy
import itertools
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Unpack

import torch
from torch import fx
from torch._ops import OpOverload

from tilec.core import targets
from tilec.core.diagnostics import CallError
from tilec.core.host import available_cores
from tilec.core.target import Target
from tilec.core.targets import kind_of
from tilec.driver.recipe import end_unused_compilers, load_compilers
from tilec.process import progress
from tilec.process.collection import frozen
from tilec.process.logs import log
from tilec.process.untraced import leave_out
from tilec.runtime.cpu import threads
from tilec.torch import (
    artifacts,
    aten,
    channels_last,
    complex_numbers,
    dump,
    failures,
    flex_attention,
    outside,
    precision,
    random_numbers,
    recompute,
    reports,
    scalars,
    sinking,
    warm_up,
)
from tilec.torch.aliases import maker
from tilec.torch.aot import functions
from tilec.torch.call import Partition
from tilec.torch.concrete import UNDECIDED, Known, concrete, is_symbolic, size_by_inputs, traced
from tilec.torch.constants import SCALAR
from tilec.torch.inplace import CHANGES, is_write, leave_to_pytorch, results_in_inputs, reuse_inputs, save_old_values
from tilec.torch.options import Options, read
from tilec.torch.origins import module_path, operation, source_line
from tilec.torch.partition import Decision, Refusal, decide, is_light
from tilec.torch.segments import Segmented
from tilec.torch.split import Piece, cut, join
from tilec.torch.types import Attribute, Compiler, Compilers, Decomposition, Input, Joint, Run
from tilec.torch.write import Unwritten

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

SPARE = 4  # processors, from which on graphs are compiled that nobody has asked for yet
MADE_OUTSIDE = {random_numbers.SEEDS, SCALAR}
MOST_REFUSED = 64  # operations of one graph whose programs fail; beyond them whole partitions are left to PyTorch
_number = itertools.count()


class Backend:
    """What `torch.compile` calls, by the name "tilec" or itself: `torch.compile(model, backend=tilec.torch.backend)`."""

    compiler_name = "tilec"
    __name__ = "tilec"

    def __call__(
        self, gm: fx.GraphModule, inputs: Sequence[Input], *, mode: str | None = None, options: Mapping[str, object] | None = None,
        **unknown: object,
    ) -> Callable[..., tuple[torch.Tensor, ...]]:  # fmt: skip
        """Compiles a graph of Dynamo's for inputs like these. Raises CallError for options that there are not."""
        for name in unknown:
            raise CallError(f"torch.compile(backend='tilec') takes no {name}=")
        chosen = read(mode, options)
        _report_recompile_limit()
        return compile_graph(gm, inputs, chosen)

    @staticmethod
    def reset() -> None:
        """For `torch._dynamo.reset()`."""
        reports.forget()
        failures.forget()
        outside.forget()
        if torch.cuda.is_initialized():
            from torch._inductor.cudagraph_trees import reset_cudagraph_trees

            reset_cudagraph_trees()


backend = Backend()
leave_out()
warm_up.expect()  # whoever loads this module is about to compile
artifacts.register()


def register() -> None:
    """Makes "tilec" a name for `torch.compile` where no installed package says so."""
    if "tilec" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(backend, name="tilec")


@cache
def _table() -> dict[OpOverload, Decomposition]:
    return aten.decompositions()


def compile_graph(gm: fx.GraphModule, inputs: Sequence[Input], options: Options) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function like `gm`, forward and backward. Raises CallError for a wrong TILEC_THREADS, which in a call would
    count as a failure of the program, which PyTorch makes up for."""
    threads.settle()
    flex_attention.inline(gm)
    names = [_source(n) for n in gm.graph.find_nodes(op="placeholder")]
    kind = _kind(inputs, options)
    _refuse_other_devices(gm, inputs, options)
    warm_up.expect()
    load_compilers(kind)  # while PyTorch traces
    try:
        return functions(gm, inputs, compilers(options, names))
    finally:
        end_unused_compilers(kind)


def _refuse_other_devices(gm: fx.GraphModule, inputs: Sequence[Input], options: Options) -> None:
    """Raises CallError if no tensor of the graph is on a device of the kind that the option 'target' names."""
    if options.target is None:
        return
    values = [*inputs, *(n.meta.get("example_value") for n in gm.graph.nodes)]
    found = {x.device.type for x in torch.utils._pytree.tree_leaves(values) if isinstance(x, torch.Tensor)}
    if found and (kind := kind_of(options.target)) not in found:
        what = "a GPU" if kind == "cuda" else "the CPU"
        where = "the CPU" if found == {"cpu"} else f"devices of the type {', '.join(sorted(found))}"
        hint = f"move the model and its inputs to {what}, or leave the option out: the target is then the tensors' device"
        raise CallError(f"the option 'target' is '{options.target}', {what}, and the model's tensors are on {where}", hint=hint)


def _kind(inputs: Sequence[Input], options: Options) -> str:
    """The kind of target that most of a graph's programs have."""
    on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs)
    return kind_of(options.target) if options.target is not None else "cuda" if on_gpu else "cpu"


def compilers(options: Options, names: Sequence[str] = ()) -> Compilers:
    """What AOTAutograd is to be called with, to trace under `aot.tracing()`. `names` are the user's, of a graph's inputs."""
    graphs = None
    if options.replays:
        from tilec.torch.cuda_graphs import Replayed

        graphs = Replayed()

    def of(kind: str) -> Compiler:
        def compiled(gm: fx.GraphModule, example_inputs: Sequence[Input]) -> Run:
            _name(gm.graph, names)
            if kind == "inference":
                precision.mark(gm.graph)
            with frozen(), progress.reported(f"compiling a graph of {kind}"):  # Dynamo's trace of a backward graph is over
                run, reported = compile_aten(gm, example_inputs, kind, options)
            if graphs is not None:
                run, reported.not_replayed = graphs.wrap(run, gm, example_inputs, kind)
            return run

        return compiled

    return {
        "fw_compiler": of("forward"), "bw_compiler": of("backward"), "inference_compiler": of("inference"),
        "decompositions": _table(), "partition_fn": partial(_halves, options, names), "keep_inference_input_mutations": True,
    }  # fmt: skip


def _halves(
    options: Options, names: Sequence[str], joint: fx.GraphModule, inputs: Sequence[Input], **reported: Unpack[Joint]
) -> tuple[fx.GraphModule, fx.GraphModule]:  # fmt: skip
    """The forward and the backward graph of a training step. PyTorch asks for the backward graph's function when the first gradient
    is asked for; its programs are compiled beside those of the forward graph, where there are processors for both. They are written
    before, since they take longer to compile."""
    if not random_numbers.eager(options.fallback_random):
        random_numbers.replace(joint.graph, training=True)
    complex_numbers.as_pairs(joint.graph)
    precision.mark(joint.graph)
    forward, backward = recompute.partition(joint, inputs, partial(_target, options), **reported)
    save_old_values(forward, reported["num_fwd_outputs"])
    channels_last.save(forward, backward, reported["num_fwd_outputs"])
    if available_cores() >= SPARE and not options.background and not options.strict:
        _name(graph := copy.deepcopy(backward.graph), names)
        if (compile_them := _ahead(graph, partial(_attribute, backward), options)) is not None:
            threading.Thread(target=compile_them, name="tilec-ahead", daemon=True).start()
    return forward, backward


def _ahead(graph: fx.Graph, attribute: Attribute, options: Options) -> Callable[[], None] | None:
    """What compiles programs that `compile_aten` will ask for. What fails, fails there again."""
    with suppress(Exception), torch.no_grad():
        if not is_symbolic(graph):
            reuse_inputs(graph, by_kernels=True)
            placeholders = graph.find_nodes(op="placeholder")
            known = _known(graph, placeholders, mode := _mode(), attribute)
            _, pieces, into = _cut(graph, known, cache(aten.refusal), {})
            return Partition.ahead([piece.graph for piece in pieces], into, options, mode)
    return None


def _cut(
    graph: fx.Graph, known: Mapping[fx.Node, Known], refusal: Refusal, refused: Mapping[fx.Node, str]
) -> tuple[Decision, list[Piece], list[dict[int, int]]]:
    """The decision which operations are tilec's, the partitions, and of each the results that lie in memory of its inputs."""
    decision = decide(graph, known, refusal, refused)
    sinking.sink(graph, decision, known)
    pieces = cut(graph, decision, known)
    return decision, pieces, results_in_inputs(graph, decision, pieces)


def _target(options: Options, device: torch.device) -> Target | None:
    """What programs of tensors on a device are compiled for."""
    name = options.target or device.type
    return targets.load(name) if name in targets.names() or name.endswith(".toml") else None


def _source(node: fx.Node) -> str:
    """What the user calls an input of Dynamo's graph: `layers.0.weight`, `x`."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    text = name = str(name() if callable(name) else name)
    for word in ("_modules", "_parameters", "_buffers"):
        text = text.replace(f".{word}[", "[")
    words = [w for w in re.split(r"[\[\]'\".]+", text) if w]
    return ".".join(words[2:] if text != name else words[1:]) or node.name  # without `L['self']`


def _name(graph: fx.Graph, names: Sequence[str]) -> None:
    """Has AOTAutograd's placeholders, `primals_3` or `arg2_1`, remember the names of the user's."""
    for node in graph.find_nodes(op="placeholder"):
        if found := re.fullmatch(r"primals_(\d+)|arg(\d+)_1", node.name):
            number = int(found[1]) - 1 if found[1] else int(found[2])
            if number < len(names):
                node.meta["name"] = names[number]


def compile_aten(
    gm: fx.GraphModule, inputs: Sequence[Input], kind: str, options: Options
) -> tuple[Run, reports.GraphReport]:
    """The function of an ATen graph, which takes a list that it empties, and returns a list; and what to report. `kind` is
    "forward", "backward" or "inference". Raises CallError under `strict` where PyTorch would run an operation."""
    begin = time.perf_counter()
    number = next(_number)
    graph, attribute = gm.graph, partial(_attribute, gm)
    if kind == "inference" and not random_numbers.eager(options.fallback_random):
        random_numbers.replace(graph)
    if kind == "inference":
        complex_numbers.as_pairs(graph)
    if is_symbolic(graph):
        scalars.as_tensors(graph)
    reuse_inputs(graph, by_kernels=not (options.background or is_symbolic(graph)))
    if is_symbolic(graph):
        size_by_inputs(graph)
    placeholders = graph.find_nodes(op="placeholder")
    mode = _mode()
    folder = dump.folder(f"{number:03}-{kind}")
    with torch.no_grad():  # the graphs of a partition are no gradients' business
        known = _known(graph, placeholders, mode, attribute)
        refusal, refused = cache(aten.refusal), dict[fx.Node, str]()
        final = False
        while True:  # what a program turns out not to say, PyTorch runs, and the graph is cut anew
            decision, pieces, into = _cut(graph, known, refusal, refused)
            written = {piece.outputs[k] for piece, own in zip(pieces, into) for k in own}
            if copied := [n for n in graph.nodes if n.meta.get(CHANGES) and (final or n not in written)]:
                known = _without(graph, copied, placeholders, mode, attribute)
                continue
            reported = reports.GraphReport(f"{number:03}-{kind}", kind)
            for node, reason in decision.reasons.items():
                if not (is_light(node) or is_write(node) or MADE_OUTSIDE & node.meta.keys()):  # those compute nothing
                    reported.eager.append(reports.Eager(operation(node), reason, module_path(node), source_line(node)))
            if options.strict and reported.eager:
                raise CallError(f"PyTorch would run an operation, and the option 'strict' is set\n{reported}")
            if len(pieces) > 1 and not options.background:
                Partition.ahead([piece.graph for piece in pieces], into, options, mode)()
            try:
                calls = []
                for k, piece in enumerate(pieces):
                    about = reports.PartReport(f"part{k}", len(piece.part.nodes))
                    reported.parts.append(about)
                    note = dump.noting(about, folder, piece.graph, reported)
                    progress.at(f"partition {k + 1} of {len(pieces)}")
                    freed = _freed(piece, placeholders, kind) if kind != "inference" and not options.replays else None
                    call = Partition(piece.graph, options, mode, note, final, into[k], freed).fixed
                    if isinstance(call, Segmented):
                        about.calls, about.needed, about.whole = len(call.calls), call.cut.needed, call.cut.whole
                    calls.append(call)
                break
            except Unwritten as error:
                nodes = [maker(node.meta["origin"]) for node in error.nodes]
                if copied := [n for n in nodes if n.meta.get(CHANGES)]:
                    known = _without(graph, copied, placeholders, mode, attribute)
                    continue
                before = len(refused)
                refused.update(dict.fromkeys(nodes, error.reason))
                final = len(refused) == before or len(refused) >= MOST_REFUSED
        whole = join(graph, decision, pieces, calls, attribute)
    reported.seconds = time.perf_counter() - begin
    reports.add(reported)
    for line in str(reported).splitlines():
        log("torch", line)
    dump.whole(folder, reported, whole.text)
    run = whole.run
    run._boxed_call = True  # type: ignore[attr-defined]
    return run, reported


def _freed(piece: Piece, placeholders: Sequence[fx.Node], kind: str) -> list[int]:
    """The numbers of a piece's inputs that are freed when it lets them go: results of other operations, and what AOTAutograd says
    that nobody else has of a backward graph's inputs. None that something outside reads."""
    context = torch._guards.TracingContext.try_get() if kind == "backward" else None
    donated = getattr(getattr(context, "fw_metadata", None), "bw_donated_idxs", None) or ()
    ours = {placeholders[n] for n in donated if n < len(placeholders)}
    inside = {n.meta.get("origin") for n in piece.graph.nodes}
    return [k for k, n in enumerate(piece.inputs) if (n in ours or n.op == "call_function") and inside.issuperset(n.users)]


def _without(
    graph: fx.Graph, writes: Sequence[fx.Node], placeholders: Sequence[fx.Node], mode: FakeTensorMode, attribute: Attribute
) -> Mapping[fx.Node, Known]:  # fmt: skip
    """What is `_known` of the graph, once PyTorch is to do writes that no kernel does in place."""
    for write in writes:
        leave_to_pytorch(graph, write)
    return _known(graph, placeholders, mode, attribute)


def _mode() -> FakeTensorMode:
    """A mode for fake tensors of known sizes: apart from the one that traced the graph, whose symbols would be guarded."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def _known(
    graph: fx.Graph, placeholders: Sequence[fx.Node], mode: FakeTensorMode, attribute: Attribute
) -> Mapping[fx.Node, Known]:
    """For each node, the node with known sizes that stands for it, a number, or UNDECIDED."""
    if not is_symbolic(graph):
        return {n: n.meta["val"] if isinstance(n.meta.get("val"), (bool, int, float)) else n for n in graph.nodes}
    _, became = concrete(graph, [traced(n.meta.get("val"), mode) for n in placeholders], mode, attribute)
    return {n: became.get(n, UNDECIDED) for n in graph.nodes}


def _attribute(gm: fx.GraphModule, name: str) -> torch.Tensor | torch.nn.Module:
    value: torch.Tensor | torch.nn.Module = gm
    for part in name.split("."):
        value = getattr(value, part)
    return value


_reported = set[int]()


def _report_recompile_limit() -> None:
    """Says in one line that PyTorch will run a function eagerly from now on, for sizes or values that it was not compiled for."""
    from torch._dynamo import config
    from torch._guards import CompileContext

    compile_id = CompileContext.current_compile_id()
    frame, count = getattr(compile_id, "frame_id", None), getattr(compile_id, "frame_compile_id", None)
    limit = getattr(config, "recompile_limit", None)
    if frame is None or count is None or limit is None or count + 1 < limit or frame in _reported:
        return
    _reported.add(frame)
    warnings.warn(
        f"tilec: PyTorch has compiled one function {count + 1} times, its recompile_limit: it runs the function eagerly for "
        f"further sizes and values. Mark what changes by torch._dynamo.mark_dynamic, or raise torch._dynamo.config.recompile_limit",
        stacklevel=2,
    )

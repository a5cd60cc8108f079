"""`tilec.from_torch`: the program that the back end writes for a function or a module, as a start for one's own."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType

from tilec.core.diagnostics import CallError
from tilec.dsl.format import format_source
from tilec.torch.options import Options
from tilec.torch.reports import read


def from_torch(function: Callable[..., object], /, *inputs: object, **named: object) -> str:
    """The `.tile` text of a module or a function of PyTorch for inputs like these, on which it runs once, without gradients.

    Each partition of the graph is an op. A comment names what its parameters are, and each line's operation of PyTorch; operations
    that PyTorch keeps are comments at the top. Sizes are the inputs' numbers. Raises CallError where tilec computes nothing of it.
    """
    try:
        import torch  # `tilec.from_torch` is there without it
    except ImportError:
        raise CallError("PyTorch is not installed", hint="pip install torch") from None
    from tilec.torch import dump
    from tilec.torch.backend import compile_graph

    if not callable(function):
        raise CallError(f"from_torch takes a module or a function, not {function!r}", hint="from_torch(model, x)")

    def called(*inputs: object, **named: object) -> object:
        return function(*inputs, **named)

    # Dynamo keeps what it compiled by code object, up to a limit, and wraps what lies in a file that it leaves out. This code is
    # new at every call, lies in no file, and is forgotten after it.
    code = called.__code__.replace(co_name="from_torch", co_filename="<from_torch>")
    fresh = FunctionType(
        code, {"__name__": "from_torch", "__builtins__": builtins}, "from_torch", None, called.__closure__
    )
    with TemporaryDirectory() as folder, dump.into(Path(folder)), torch.no_grad():
        torch.compile(fresh, backend=lambda gm, given: compile_graph(gm, given, Options()), dynamic=False)(
            *inputs, **named
        )
        return _joined(Path(folder))


def _joined(folder: Path) -> str:
    """One text of all partitions."""
    try:
        graphs = read(folder).graphs
    except FileNotFoundError:
        raise CallError(
            "PyTorch's compiler made no graph of this function", hint="it computes nothing with tensors"
        ) from None
    left = [f"# PyTorch keeps {e.operation}: {e.reason}" for graph in graphs for e in graph.eager]
    paths = [folder / graph.name / f"{part.name}.tile" for graph in graphs for part in graph.parts]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.exists()]
    if not texts:
        raise CallError("\n".join(["tilec computes no operation of this function", *left]))
    if len(texts) > 1:
        texts = [re.sub(r"^op \w+", f"op part{k}", text, count=1, flags=re.MULTILINE) for k, text in enumerate(texts)]
    return format_source("\n".join([*([*left, ""] if left else []), "\n".join(texts)]))

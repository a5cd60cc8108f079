"""`TILEC_TORCH_DUMP=DIR`: a folder for each compiled graph, with the `.tile` text of its partitions, the function that calls them,
and what the report tells."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor, fx

from tilec.process.atomic_files import replace_file
from tilec.torch.origins import module_path
from tilec.torch.reports import FILE, GraphReport, PartReport
from tilec.torch.write import Written

VARIABLE = "TILEC_TORCH_DUMP"


_chosen: ContextVar[Path | None] = ContextVar("chosen", default=None)


@contextmanager
def into(path: Path) -> Iterator[None]:
    """Dumps what is compiled meanwhile into a folder, whatever the variable says."""
    before = _chosen.set(path)
    try:
        yield
    finally:
        _chosen.reset(before)


def folder(name: str) -> Path | None:
    """The folder of a graph, which is made; None where nothing is dumped."""
    chosen = _chosen.get() or os.environ.get(VARIABLE)
    if not chosen:
        return None
    made = Path(chosen) / name
    made.mkdir(parents=True, exist_ok=True)
    return made


def noting(
    about: PartReport, directory: Path | None, graph: fx.Graph, reported: GraphReport
) -> Callable[[Written | None, str | None, str], None]:
    """What a partition tells when it is compiled: into the report, and as a file."""

    def note(written: Written | None, reason: str | None, fixed: str) -> None:
        about.reason, about.fixed = reason, fixed
        if written is None:
            return
        about.sizes += 1
        about.statements = len(written.comments)
        about.device = next((v.device.type for n in written.nodes.values() if isinstance(v := n.meta.get("val"), Tensor)), "")
        if directory is None:
            return
        name = about.name if about.sizes == 1 else f"{about.name}-sizes{about.sizes}"
        _write(directory / f"{name}.tile", _head(graph, written) + written.commented)
        about.programs[f"{name}.tile"] = dict(written.sizes)
        if reported.seconds:  # the graph's own file is written already
            _write(directory / FILE, json.dumps(reported.to_json(), indent=1))

    return note


def whole(directory: Path | None, reported: GraphReport, text: str) -> None:
    if directory is not None:
        _write(directory / "run.py", text)
        _write(directory / FILE, json.dumps(reported.to_json(), indent=1))


def _head(graph: fx.Graph, written: Written) -> str:
    """What the parameters are in the whole graph."""
    lines = []
    placeholders = graph.find_nodes(op="placeholder")
    for a in written.arguments:
        node = placeholders[a.number]
        if a.layout is None:
            how = ", copied: it has gaps"
        else:
            how = "" if a.layout.plain else f", dimensions {', '.join(map(str, a.layout.order))} of {list(a.shape)}"
        path = module_path(node)
        lines.append(f"# x{a.number}: {node.meta.get('name', node.name)}{f' of {path}' if path else ''}{how}")
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode())

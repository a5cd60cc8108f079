"""Programs for matrix units, timed beside PyTorch's calls; and what the project wants of each form of them.

All is compiled beforehand, by as many processes as there are cores, into the caches on disk. Then one process checks and times, in
interleaved rounds.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.cpu import AGAIN
from benchmarks.machine import has
from benchmarks.measure import on_gpu
from benchmarks.report import best_peer, dated, table, time_text, times
from benchmarks.runner import Row
from benchmarks.workloads import Workload

ROUNDS, BUDGET = 7, 0.003  # of a candidate, seconds a round; three calls at least
PEERS, COPY, TERA = "the best peer's time over ours", "of a copy's speed", "TFLOP/s"


@dataclass(frozen=True)
class Form:
    """What is wanted of the rows of a form, in the geometric mean and of each; None where nothing is. `measure`: of what."""

    mean: float | None
    least: float | None = None
    measure: str = PEERS


FORMS = {
    "products": Form(1.0, 0.92),
    "products with an epilogue": Form(1.08),
    "products of tf32": Form(1.0),
    "products of f32": Form(1.5),
    "products of one factor": Form(1.0),
    "products of i8": Form(1.2),
    "products of f8, fast": Form(0.97),
    "products of f8": Form(1.0),
    "products of f8, scales of blocks": Form(None, 1250, TERA),
    "products of gathered rows": Form(1.0),
    "few rows of bf16": Form(None, 0.85, COPY),
    "few rows, weights of i8": Form(None, 0.85, COPY),
    "convolutions": Form(0.95),
    "convolutions of odd channels": Form(0.95),
    "depthwise convolutions": Form(None, 0.85, COPY),
    "attention": Form(1.05, 0.95),
    "attention over pages": Form(1.0),
    "relatives of attention": Form(1.1, 0.95),
    "decoding of few keys": Form(None, 1.0),
    "decoding of many keys": Form(None, 0.9, COPY),
    "linear and cross-entropy": Form(None, 650, TERA),
}


def reached(row: dict) -> float | None:
    """By the measure of the row's form."""
    us = times(row).get("tilec")
    match us and FORMS[row["form"]].measure:
        case "TFLOP/s":
            return row["flops"] / us / 1e6
        case "of a copy's speed":
            return row["bytes"] / us / (row["copy_bytes"] / row["copy_us"])
        case None:
            return None
    return (best := best_peer(row)) and best / us


def targets(rows: list[dict]) -> list[tuple[str, float, float, bool]]:
    """(what, reached, wanted, whether), of every form that has rows."""
    found = []
    for name, form in FORMS.items():
        values = [v for r in rows if r.get("form") == name and (v := reached(r))]
        if not values:
            continue
        what = f"{name} ({len(values)}), {form.measure}"
        for of, value, wanted in (("mean", _mean(values), form.mean), ("least", min(values), form.least)):
            if wanted is not None:
                found.append((f"{what}, {of}", value, wanted, value >= wanted))
    return found


REASONS = {
    "products": "in a last round of tiles that is not full most multiprocessors wait; blocks that share its steps lose more "
    "([stream-k](#stream-k))",
    "products with an epilogue": "cuBLAS adds a bias at no cost, too; the gain is in what it cannot fuse",
    "products of tf32": "`wgmma` multiplies tf32 only along contiguous k: a right factor `[k, n]` is stored once more, transposed; "
    "`[n, k]` is as fast as cuBLAS",
    "products of f8": "sums leave the matrix units every 128 products, to be exact",
    "products of f8, scales of blocks": "each 128 products are scaled and added in registers",
    "few rows of bf16": "the kernel takes 13 us, of which 4 are its start and its end",
    "few rows, weights of i8": "threads convert each weight to bf16, which takes nearly as long as the weight's byte",
    "depthwise convolutions": "the 49 products of a 7x7 window take longer than an element's bytes; there is no matrix in them",
    "attention": "of 512 places a block has few steps, and each further tile of a block takes 2.5 us beside them; why grouped "
    "heads take longer than others is not known",
    "relatives of attention": "threads load a bias in pieces of 4 bytes, as they hold scores; TMA copies no elementwise operand",
    "linear and cross-entropy": "exponentials wait for products, and the last round of tiles is not full",
}
"""Why rows of a form miss targets, as far as it is known."""


def missed(rows: list[dict]) -> list[list[str]]:
    """A line for each form that misses a target: what is wanted of it, what it reaches, its rows below that, and the reason."""
    lines = []
    for name, form in FORMS.items():
        values = {r["name"]: v for r in rows if r.get("form") == name and (v := reached(r))}
        if not values:
            continue
        ends = [("mean", _mean([*values.values()]), form.mean), ("least", min(values.values()), form.least)]
        if not (below := [(of, v, w) for of, v, w in ends if w is not None and v < w]):
            continue
        wanted = ", ".join(f"{of} {_exact(w, form)}" for of, _, w in below)
        has = ", ".join(f"{of} {_exact(v, form)}" for of, v, _ in below)
        few = {n: v for n, v in values.items() if v < max(w for *_, w in below)}
        lines.append([name, form.measure, wanted, has, _worst(few, form), REASONS.get(name, "not known")])
    return lines


def _worst(values: dict[str, float], form: Form) -> str:
    """The three rows that are furthest from what is wanted, and the number of others."""
    least = sorted(values, key=lambda n: values[n])
    reported = "; ".join(f"{n} {_exact(values[n], form)}" for n in least[:3])
    return f"{reported}; {len(least) - 3} more" if len(least) > 3 else reported


def _exact(value: float, form: Form) -> str:
    """With a third digit where two would hide that less is reached than is wanted."""
    return f"{value:.0f}" if form.measure == TERA else f"{value:.3f}".removesuffix("0")


def _mean(values: list[float]) -> float:
    return statistics.geometric_mean(values)


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(rows: list[dict]) -> str:
    """A table of the forms, then one of the rows of each."""
    mine = [r for r in rows if r.get("form")]
    if not mine:
        return ""
    lines, parts = [], []
    for name, form in FORMS.items():
        values = [v for r in mine if r["form"] == name and (v := reached(r))]
        if values:
            cells = [_figure(v, form) for v in (_mean(values), form.mean, min(values), form.least)]
            lines.append([name, str(len(values)), form.measure, *cells])
        if of := [r for r in mine if r["form"] == name]:
            parts.append(f"{name[0].upper()}{name[1:]}:\n\n{_rows(of, form)}")
    headings = ["form", "rows", "measure", "mean", "wanted", "least", "wanted"]
    return "\n\n".join([table(headings, lines, (1, 3, 4, 5, 6)), *parts])


def _figure(value: float | None, form: Form) -> str:
    return "" if value is None else f"{value:.0f}" if form.measure == TERA else f"{value:.2f}"


def _rows(rows: list[dict], form: Form) -> str:
    """Times of all candidates, the speed, the measure where it is another, and the noise."""
    names = list(dict.fromkeys(k for r in rows for k in times(r) if k != AGAIN))
    lines = []
    for row in rows:
        t = times(row)
        us = t.get("tilec")
        speed = (row["bytes"] if form.measure == COPY else row["flops"]) / us / 1e6 if us else 0.0
        cells = [f"{speed:.2f}" if form.measure == COPY else f"{speed:.0f}"] if speed else [""]
        cells += [_figure(reached(row), form)] if form.measure != TERA else []
        right = {True: "yes", False: "NO"}.get(row.get("right"), "failed")
        noise = f"{100 * row['noise']:.1f}%" if "noise" in row else ""
        lines.append([row["name"], *(time_text(t.get(n)) for n in names), *cells, noise, right])
    measures = {COPY: ["TB/s", COPY], TERA: [TERA], PEERS: [TERA, PEERS]}[form.measure]
    headings = ["", *names, *measures, "noise", "right"]
    headings, lines = dated(headings, lines, rows)
    return table(headings, lines, range(1, len(headings)))


# ---- one row ---------------------------------------------------------------------------------------------------------


def row(load: Workload, compiled: bool) -> Row:
    return Row(load.name, lambda: run(load, compiled), 90, prepare=lambda: prepare(load, compiled))


def makers(load: Workload, compiled: bool) -> Mapping[str, Callable]:
    """Makers of peers that are compiled for given tensors."""
    return load.compiled_peers if compiled and has("triton") else {}


def tensors_of(load: Workload, device: str = "cuda") -> list:
    import torch

    from benchmarks.torch_peers import draw

    generator = torch.Generator(device).manual_seed(0)
    return [draw(i, generator, device) for i in load.inputs]


def prepare(load: Workload, compiled: bool) -> dict:
    """Fills the caches on disk."""
    import tilec

    tensors = tensors_of(load)
    tilec.compile(load.program, op=load.op, deferred_checks=True)(*tensors)
    for make in makers(load, compiled).values():
        with contextlib.suppress(Exception):
            make(*tensors)()
    return {}


def run(load: Workload, compiled: bool, device: str = "cuda") -> dict:
    """Checks one program against wider types, and times it beside its peers."""
    import torch

    import tilec
    from benchmarks import torch_peers

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = False
    tensors, notes = tensors_of(load, device), {}
    op = tilec.compile(load.program, op=load.op, deferred_checks=True)  # as PyTorch's checks of indices are
    made = op(*tensors)
    results = list(made) if isinstance(made, tuple) else [made]
    share = torch_peers.error_share(load.expected or load.torch, tensors, results, load.bound)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = load.form == "products of tf32"
    out = made if len(results) == 1 else results
    calls = {"tilec": lambda: op(*tensors, out=out)}
    peers = {} if load.expected else {"torch": lambda: load.torch(*tensors)}
    peers |= {name: lambda call=call: call(*tensors) for name, call in load.peers.items()}
    made_peers = {name: lambda make=make: make(*tensors) for name, make in makers(load, compiled).items()}
    for name, peer in (*peers.items(), *made_peers.items()):
        try:
            calls[name] = peer() if name in made_peers else peer
            calls[name]()
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            calls.pop(name, None)
            notes[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    moved = sum(t.nbytes for t in (*tensors, *results))
    facts = {"bytes": moved}
    if FORMS[load.form].measure == COPY:
        source = torch.zeros(max(1, moved // 8), dtype=torch.int32, device=device)
        target = torch.empty_like(source)
        calls["copy"] = lambda: target.copy_(source)
        facts["copy_bytes"] = 2 * source.nbytes
    calls[AGAIN] = calls["tilec"]
    timed = on_gpu(calls, ROUNDS, BUDGET)
    if "copy" in timed:
        facts["copy_us"] = timed.pop("copy").median
    return facts | {
        "group": "form", "form": load.form, "flops": load.flops, "sizes": load.sizes, "kernels": len(op.kernels),
        "times_us": {k: t.median for k, t in timed.items()}, "range_us": {k: (t.low, t.high) for k, t in timed.items()},
        "predicted_us": sum(k.predicted_us for k in op.kernels), "noise": abs(timed["tilec"].median / timed[AGAIN].median - 1),
        "error_share": share, "right": share <= 1, "notes": notes,
    }  # fmt: skip

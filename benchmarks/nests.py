"""Loop nests on the CPU, drawn by a seed: the time that tilec predicts beside the time that it takes.

Each reduction and scan, along rows and columns, of rows from 3 to 4096 elements, several in one nest, of mixed types and under
conditions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import numpy as np
from rich.console import Console

from benchmarks.measure import on_cpu
from benchmarks.report import print_table, time_text
from benchmarks.runner import Row
from tilec.core.dtypes import DTYPES

OFF = 3  # times the prediction, or one over it, from which a row is told as off
LAUNCH = 10  # microseconds that are no kernel's
LENGTHS = (3, 5, 7, 8, 16, 24, 32, 33, 64, 100, 128, 256, 500, 1024, 4096)
ELEMENTS = (1 << 14, 1 << 17, 1 << 20)  # of an input
REDUCTIONS = ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all", "mean", "cumsum", "cummax")


@dataclass(frozen=True)
class Nest:
    program: str
    shape: tuple[int, int]
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.shape[0]}x{self.shape[1]}: {self.program}"


def draw(random: Random) -> Nest:
    length = random.choice(LENGTHS)
    count = max(1, random.choice(ELEMENTS) // length)
    along, dtype = random.choice(("j", "j", "i")), random.choice(("f32", "f32", "f32", "f64", "bf16", "i32", "i64", "i8"))
    number = dtype in ("f32", "f64", "bf16")
    shape, kept = ((count, length), "i") if along == "j" else ((length, count), "j")
    first = "x[i, 0]" if along == "j" else "x[0, j]"
    elements = ["x[i, j]", "x[i, j] * x[i, j]", "abs(x[i, j])", "x[i, j] if x[i, j] > 0 else 1", f"x[i, j] * {first}"]
    if number:
        elements += ["exp(x[i, j])", "x[i, j] / 3"]
    statements = []
    for n in range(random.choice((1, 1, 2, 3))):
        kind, element = random.choice(REDUCTIONS), random.choice(elements)
        if kind in ("any", "all"):
            element = f"({element}) > 0"
        if kind.startswith("cum"):
            statements.append(f"y{n}[i, j] = {kind}[{along}]({element})")
        elif kind == "mean" and not number:
            statements.append(f"y{n}[{kept}] = sum[{along}]({element})")
        else:
            statements.append(f"y{n}[{kept}] = {kind}[{along}]({element})")
    return Nest("; ".join(statements), shape, dtype)


def suite(count: int, seed: int) -> list[Row]:
    random = Random(seed)
    drawn = dict.fromkeys(draw(random) for _ in range(2 * count))
    return [Row(n.name, lambda n=n: compare(n), 60, lambda n=n: {"prepared": bool(compiled(n))}) for n in list(drawn)[:count]]


def compiled(nest: Nest):
    import tilec

    random = np.random.default_rng(0)
    x = (random.standard_normal(nest.shape) * 3).astype(DTYPES[nest.dtype].numpy)
    op = tilec.compile(nest.program, target="cpu")
    with np.errstate(all="ignore"):
        op(x)
    return op, x


def compare(nest: Nest) -> dict:
    op, x = compiled(nest)
    result = op(x)
    times = on_cpu({"tilec": lambda: op(x, out=result)}, rounds=5, budget=0.004)
    return {
        "group": "nests", "predicted_us": op.plan.time_us, "families": [k.options.name for k in op.plan.kernels],
        "times_us": {k: t.median for k, t in times.items()}, "range_us": {k: (t.low, t.high) for k, t in times.items()},
    }  # fmt: skip


def is_off(row: dict) -> bool:
    """Whether a time is far from its prediction, beside what a call takes."""
    measured, predicted = row["times_us"]["tilec"], row["predicted_us"]
    return bool(measured > OFF * predicted + LAUNCH or predicted > OFF * measured + LAUNCH)


def show(title: str, rows: list[dict], console: Console) -> None:
    """The rows with their times, those that are furthest behind PyTorch or their predictions first."""
    console.width = max(console.width, 150)
    done = [r for r in rows if "times_us" in r]
    peers = any("torch" in r["times_us"] for r in done)

    def behind(row: dict) -> float:
        return float(row["times_us"]["tilec"] / row["times_us"].get("torch", row["predicted_us"]))

    cells = []
    for row in sorted(done, key=behind, reverse=True):
        own, peer = row["times_us"]["tilec"], row["times_us"].get("torch")
        beside = [time_text(peer), f"{own / peer:.2f}"] if peer else []
        families = ", ".join(f"{n} {name}" if n > 1 else name for name, n in Counter(row["families"]).items())
        cells.append([row["name"], families, time_text(own), *beside, time_text(row["predicted_us"]), "off" if is_off(row) else ""])
    headings = ["", "families", "tilec", *(["PyTorch", "tilec over PyTorch"] if peers else []), "predicted", ""]
    print_table(console, title, headings, cells, 2)
    console.print(f"{sum(map(is_off, done))} of {len(done)} are more than {OFF} times off their predictions", highlight=False)


__all__ = ["Nest", "draw", "is_off", "show", "suite"]

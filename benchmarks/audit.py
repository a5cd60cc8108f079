"""The cost model held to account: its choices beside the other plans that there are, all measured.

A point is a program at a shape, of those that memory limits or of those for matrix units. Its candidates
(`tilec.plan.candidates`) are compiled beside those of other points, then timed one point after another: all of them shortly, then
the fastest and the model's choice again, so that luck does not pick the winner. `share` is the best measured time over that of the
model's choice, `predicted` the model's time over the measured one.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

from benchmarks import matrix_points
from benchmarks.measure import on_cpu, on_gpu
from benchmarks.memory import tensors_of
from benchmarks.memory_loads import Load, points
from benchmarks.runner import Row
from tilec.driver.tune import spread
from tilec.kernels import KernelPlan

FINAL = 4  # that are measured once more
LEAST = 0.1  # of a program's predicted time: no other plans of a kernel that takes less
SIZES = {"cuda": (2**26, 2**22), "cpu": (2**22, 2**18)}


def suite(target: str = "cuda", most: int = 24, matrix: bool = False) -> list[Row]:
    """In an order by which any first part of them is a fair sample. `matrix`: the points for matrix units."""
    of, choose = (matrix_points.points(), distinct) if matrix else (points(SIZES[target]), spread)
    return [
        Row(x.name, lambda x=x: run(x, target), 300, prepare=lambda x=x: prepare(x, target, most, choose))
        for x in sorted(of, key=lambda x: crc32(x.name.encode()))
    ]


def distinct(ranked: Sequence[KernelPlan], most: int) -> list[KernelPlan]:
    """Half of `most` are the best of as many shapes of blocks, for the best few plans differ in little. A quarter are the best of
    the others, and the rest lie further and further behind."""
    shapes: dict[tuple, KernelPlan] = {}
    for kernel in ranked:
        options = dict(kernel.options.options())
        shapes.setdefault((kernel.tile, options.get("block"), options.get("unit")), kernel)
    found = list(shapes.values())[: (most + 1) // 2]
    rest = [k for k in ranked if k not in found]
    near = (most - len(found) + 1) // 2
    found, rest, far = found + rest[:near], rest[near:], most - len(found) - near
    places = [int(len(rest) ** ((n + 1) / (far + 1))) for n in range(far)]
    return found + [rest[n] for n in dict.fromkeys(places) if n < len(rest)]


def _folder(load: Load) -> Path:
    return Path(os.environ["BENCHMARKS_FOLDER"]) / re.sub(r"\W+", "-", load.name)


def prepare(load: Load, target: str, most: int, choose: Callable = spread) -> dict:
    """Compiles all candidates into the cache on disk, and leaves their schedules in the folder, unless they are there."""
    from tilec.core.dtypes import DTYPES
    from tilec.core.source import read_source
    from tilec.core.targets import load as load_target
    from tilec.driver.executables import build_executable
    from tilec.driver.frontend import read_program
    from tilec.driver.recipe import Recipe
    from tilec.driver.tune import candidates
    from tilec.dsl.specialise import specialise

    folder, reported, refused = _folder(load), [], []
    listed = folder / "candidates.json"
    if listed.exists():
        return {}
    program, machine = read_program(read_source(load.work.program)), load_target(target)
    signature = tuple((DTYPES[i.dtype], i.shape) for i in load.work.inputs)
    op = program.op(load.work.op).name
    found = candidates(specialise(program.tree, op, list(signature), {}), machine, most, choose=choose)
    share = {k.name: k.prediction.time_us / found[0].predicted_us for k in found[0].plan.kernels}
    folder.mkdir(parents=True, exist_ok=True)
    for n, candidate in enumerate(c for c in found if share.get(c.kernel, 1) >= LEAST):
        path = folder / f"{n}.sched.toml"
        path.write_text(candidate.schedule, encoding="utf-8")
        what = candidate.describe(found[0].plan)
        try:
            executable = build_executable(Recipe(program, op, signature, {}, machine, path))
            if target == "cuda":
                _ = executable.cubins
        except Exception as error:
            refused.append(f"{what}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
            continue
        terms = [{k: round(t, 3) for k, t in kernel.prediction.terms.items()} for kernel in candidate.plan.kernels]
        options = {k.name: {"tile": k.tile} | dict(k.options.editable()) for k in candidate.plan.kernels}
        reported.append(
            {"number": n, "what": what, "predicted_us": candidate.predicted_us, "terms_us": terms, "options": options}
        )
    facts = {"plans": reported, "refused": refused}
    made = folder / "made.json"
    made.write_text(json.dumps(facts))
    made.rename(listed)  # whoever waits for it finds all of it
    return {}


def _prepared(folder: Path) -> dict | None:
    """What `prepare` left, or will leave in time where it goes on beside."""
    while not (listed := folder / "candidates.json").exists():
        if time.time() > float(os.environ.get("BENCHMARKS_WAIT", 0)):
            return None
        time.sleep(0.02)
    return json.loads(listed.read_text())


def run(load: Load, target: str) -> dict:
    """Times the candidates that `prepare` compiled, and checks their results."""
    import tilec
    from benchmarks import torch_peers

    folder = _folder(load)
    if (listed := _prepared(folder)) is None:
        return {"skipped": "not compiled in time"}
    reported = {c["number"]: c for c in listed["plans"]}
    tensors, work = tensors_of(load, target), load.work
    wide = torch_peers.expected(work.expected or work.torch, tensors)
    calls, wrong = {}, []
    for n, candidate in reported.items():
        op = tilec.compile(work.program, op=work.op, schedule=folder / f"{n}.sched.toml", deferred_checks=True)
        made = op(*tensors)
        results = list(made) if isinstance(made, tuple) else [made]
        if torch_peers.share_of(wide, results, work.bound) > 1:
            wrong.append(candidate["what"])
            continue
        out = made if len(results) == 1 else results
        calls[n] = lambda op=op, out=out: op(*tensors, out=out)
    if 0 not in calls:
        return {"error": "the model's choice is refused or wrong", "wrong": wrong}
    measure = on_gpu if target == "cuda" else on_cpu
    quick = measure(calls, 3, 0.0002)
    ranked = sorted(calls, key=lambda n: quick[n].low)  # a busy host makes some rounds longer, none shorter
    final = measure({n: calls[n] for n in dict.fromkeys([0, *ranked[:FINAL]])}, 4, 0.0005)
    best = min(final, key=lambda n: final[n].median)
    us = {n: t.low for n, t in quick.items()} | {n: t.median for n, t in final.items()}
    own_us, best_us = final[0].median, final[best].median
    return {
        "program": load.program, "kind": load.kind, "shape": list(load.shape), "dtype": load.dtype,
        "own_us": own_us, "best_us": best_us, "best": reported[best]["what"], "share": best_us / own_us,
        "predicted_us": reported[0]["predicted_us"], "terms_us": reported[0]["terms_us"],
        "candidates": [[reported[n]["what"], round(reported[n]["predicted_us"], 2), round(us[n], 2)] for n in ranked],
        "options": [reported[n]["options"] for n in ranked],
        "refused": listed["refused"], "wrong": wrong, "right": not wrong,
    }  # fmt: skip

"""Programs compiled by a process of their own (`tilec/process/compile_server.py`), for callers that start it before they need it.

The first program of a process takes twice as long as a later one: parser, passes and MLIR are imported, and Python and MLIR make
what they keep. The back end of torch.compile has this process do that while PyTorch traces a graph. Its forks then compile the
graph's programs, several at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilec.core import target, targets
from tilec.core.diagnostics import Source
from tilec.core.dtypes import DTYPES
from tilec.core.host import available_cores
from tilec.core.varying import Varies
from tilec.driver.classes import class_from
from tilec.driver.find_classes import Plans, plans_from
from tilec.driver.frontend import Program, parsed
from tilec.driver.recipe import Recipe, part, written

PROCESSORS = 4  # from which on a program's compilation forks

_FIRST = """op first(x: bf16[M, K], w: bf16[K, N], b: bf16[N]) -> (y: bf16[M, N], z: bf16[M, N]) {
    s[i, j]: f32 = sum[k](x[i, k] * w[k, j]) + b[j]
    p[i, j]      = s[i, j] - max[j](s[i, j]) if s[i, j] > 0 else exp(s[i, j] / 8)
    m[i]         = mean[j](p[i, j])
    y[i, j]      = (p[i, j] - m[i]) * rsqrt(mean[j](p[i, j] * p[i, j]) + 1e-5)
    z[i, j]      = y[i, (j + 1) % N]
}"""
"""Products, reductions and elementwise operations: what is loaded for it serves most programs."""


def prepare() -> None:
    """For `compile_server`: compiles one program for each kind of target."""
    for name in ("h200", "cpu"):
        Recipe(_program("<program>", _FIRST), "first", None, {"M": 256, "K": 128, "N": 256}, targets.load(name)).compiled_here()


def may_fork() -> bool:
    """For `compile_server`: whether one program is compiled by several processes."""
    return available_cores() >= PROCESSORS


def answer(wanted: dict[str, Any], on_part: Callable[[Any], None] = lambda part: None) -> dict[str, Any]:
    """The reply of `compile_server`: what a program declares, the answer to a question about its classes, or what compiling one of
    its ops makes, or why its sizes cannot vary. Of another error, the caller finds its own traceback, as it compiles itself. Of a
    program for a GPU, kernels are sent before, each as soon as it is printed."""
    try:
        program = _program(wanted["name"], wanted["text"])
        if program.imports:
            return {"error": "it imports files, which the process that asks reads"}
        if "question" in wanted:
            return {"answer": _plans(wanted["name"], wanted["text"], wanted["plans"]).answer(wanted["question"])}
        if "op" not in wanted:
            return {"ops": program.written}
        inputs, schedule = wanted["inputs"], wanted["schedule"]
        recipe = Recipe(
            program, wanted["op"], inputs and tuple((DTYPES[name], tuple(shape)) for name, shape in inputs), wanted["sizes"],
            _target(wanted["target"]), Path(schedule) if schedule else None, [(k, n) for k, n in wanted["donated"]],
            class_from(**of) if (of := wanted.get("of")) else None,
        )  # fmt: skip
        return {"program": written(recipe.compiled_here(lambda *kernel: on_part(part(*kernel))))}
    except Varies as error:
        return {"varies": str(error)}
    except Exception as error:
        return {"error": str(error)}


@lru_cache(maxsize=16)
def _program(name: str, text: str) -> Program:
    return parsed(Source(name, text))


@lru_cache(maxsize=4)
def _plans(name: str, text: str, fields: str) -> Plans:
    return plans_from(_program(name, text).tree, json.loads(fields))


@lru_cache(maxsize=4)
def _target(text: str) -> target.Target:
    return target.from_dict(json.loads(text))

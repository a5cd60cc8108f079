"""The same bits on every run: from call to call, for any number of threads, from compile to compile, and on a GPU."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import as_list, from_torch, to_gpu
from tools import TESTS, matrix_programs

import tilec
from tilec.core.diagnostics import Source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.semantics.inputs import random_inputs

PRODUCT = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"
PROGRAMS = {  # program, shapes of its f32 inputs; many blocks each
    "sums": ("y[i] = sum[j](x[i, j]); z[j] = sum[i](x[i, j])", [(1031, 1500)]),
    "split sum": ("y = sum[i, j](exp(x[i, j]))", [(1000, 1031)]),
    "products": ("y[i] = prod[j](1 + x[i, j] / 64)", [(1031, 1100)]),
    "moments": ("m[j] = mean[i](x[i, j]); v[j] = mean[i]((x[i, j] - m[j]) ** 2)", [(5000, 331)]),
    "softmax": ("y[i, j] = softmax[j](x[i, j])", [(257, 1031)]),
    "place": ("y[j] = argmax[i](floor(4 * x[i, j]))", [(5000, 331)]),
    "scans": ("y[i, j] = cumsum[j](x[i, j]); z[i, j] = cumprod[i](1 + x[i, j] / 64)", [(1031, 1100)]),
    "panels": (PRODUCT, [(290, 310), (310, 330)]),
    "few results": (PRODUCT, [(40, 16_384), (16_384, 50)]),
    "random numbers": ("y[i, j] = x[i, j] if rand(7, i * 4096 + j) > 0.5 else 0; t = sum[i, j](y[i, j])", [(300, 4096)]),
}  # fmt: skip


def inputs(name: str) -> list[np.ndarray]:
    return [np.random.default_rng(7).standard_normal(shape).astype(np.float32) for shape in PROGRAMS[name][1]]


def digest(arrays: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()


def computed(name: str) -> str:
    return digest(as_list(tilec.compile(PROGRAMS[name][0], target="cpu")(*inputs(name))))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> dict[str, str]:
    """What another process computes, with more threads than there may be cores, and nothing compiled before."""
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\nimport test_same_bits as t\n"
    code += f"print(*(t.computed(n) for n in {list(PROGRAMS)}))"
    environment = {"TILEC_THREADS": "5", "TILEC_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(PROGRAMS, done.stdout.split(), strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_cpu(name, elsewhere):
    op, arrays = tilec.compile(PROGRAMS[name][0], target="cpu"), inputs(name)
    found = {digest(as_list(op(*arrays))) for _ in range(3)}
    assert any(k.grid > 1 for k in op.kernels), "one block has nothing to deal out"
    try:
        for threads in range(1, 5):  # or as many as there are processors
            tilec.set_threads(threads)
            found.add(digest(as_list(op(*arrays))))
    finally:
        tilec.set_threads(None)
    assert found == {elsewhere[name]}


def test_sums_are_split_there():
    op = tilec.compile(PROGRAMS["split sum"][0], target="cpu")
    op(*inputs("split sum"))
    assert len(op.plan.steps("split")) == 1 and len(op.kernels) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu(name):
    pytest.importorskip("torch")
    arrays = [to_gpu(a) for a in inputs(name)]
    found = set()
    for _ in range(2):
        op = tilec.compile(PROGRAMS[name][0])
        found |= {digest([from_torch(r) for r in as_list(op(*arrays))]) for _ in range(3)}
    assert len(found) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", matrix_programs.PROGRAMS)
def test_on_matrix_units(name, tmp_path):
    """From call to call, and from compile to compile."""
    pytest.importorskip("torch")
    text, sizes = matrix_programs.PROGRAMS[name]
    given = random_inputs(specialise(parse(Source("t.tile", text)), "f", None, sizes), 0, {})
    arrays, found = [to_gpu(a) for a in given.values()], set()
    schedule = None
    if name in matrix_programs.SCHEDULES:
        schedule = tmp_path / "clusters.sched.toml"
        schedule.write_text(matrix_programs.SCHEDULES[name])
    for _ in range(2):
        op = tilec.compile(text, sizes=sizes, schedule=schedule)
        found |= {digest([from_torch(r) for r in as_list(op(*arrays))]) for _ in range(3)}
    assert len(found) == 1

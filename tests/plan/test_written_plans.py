"""What is written of a plan is read back as that plan: rewrites are forced and forbidden, and kernels are built in other ways."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tools.lowering import lowered, specialised
from tools.matrix_programs import GRADIENTS
from tools.plans import rewritten

from benchmarks.workloads import EXAMPLES
from tilec.core.diagnostics import Source
from tilec.dsl.specialise import Specialised
from tilec.plan.model import Plan
from tilec.plan.rewrites import REWRITES
from tilec.plan.schedule.read import parse_schedule
from tilec.plan.schedule.write import write_schedule

NAMES = [rewrite.name for rewrite in REWRITES]
DRAWN = 2  # choices of rewrites for a program, beside none and all
KERNELS = 1  # other ways to build a kernel that are written
CHAINED = """op f(q: f8e4m3[H, S, 64], k: f8e4m3[H, S, 64], v: f8e4m3[H, S, 64]) -> (o: bf16[H, S, 64]) {
    s[h, i, j] = sum[d](f32(q[h, i, d]) * f32(k[h, j, d])) / 8
    p[h, i, j] = softmax[j](s[h, i, j])
    o[h, i, d] = bf16(sum[j](p[h, i, j] * f32(v[h, j, d])) using bf16)
}"""
LAST = """op f(q: bf16[H, S, 64], k: bf16[H, S, 64], v: bf16[H, S, 64], z: bf16[H]) -> (o: bf16[H, S, 64]) {
    s[h, i, j]: bf16 = sum[d](q[h, i, d] * k[h, j, d]) / 8
    c[h, i, j]: bf16 = s[h, i, j] if j < S else z[h] where j in 0:S + 1
    p[h, i, j]: bf16 = softmax[j](c[h, i, j])
    o[h, i, d] = sum[j in 0:S](p[h, i, j] * v[h, j, d])
}"""
DISTANCES = """op f(x: f32[N, N]) -> (y: f32[N, N]) {
    t[i, j] = exp(log(f32(abs(i - j) + 1))) where i in 0:N, j in 0:N
    y[i, j] = x[i, j] * t[i, j] + t[j, i]
}"""
LOSS = """op f(x: bf16[M, D], w: bf16[V, D], t: i64[M]) -> (y: f32) {
    s[i, v] = sum[d](x[i, d] * w[v, d])
    z[i] = logsumexp[v](s[i, v])
    y = mean[i](z[i] - s[i, t[i]])
}"""
JOINED = """op f(x: f32[N, 64, H, W], w: f32[96, 64], v: f32[32, 64]) -> (y: f32[N, 128, H, W]) {
    s[n, k, h, i] = sum[c](x[n, c, h, i] * w[k, c]) using tf32
    t[n, k, h, i] = sum[c](x[n, c, h, i] * v[k, c]) using tf32
    y[n, k, h, i] = relu(s[n, k, h, i]) if k < 96 else t[n, k - 96, h, i] where n in 0:N, k in 0:128, h in 0:H, i in 0:W
}"""
PRODUCT = "op f(a: bf16[M, K], b: bf16[K, N]) -> (c: bf16[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"
PROGRAMS = {  # a program that the compiler plans with the rewrite, with its sizes
    "concatenation": (LAST, {"H": 64, "S": 1024}),
    "parts": (JOINED, {"N": 8, "H": 56, "W": 56}),
    "toeplitz": (DISTANCES, {"N": 4096}),
    "recompute": (LOSS, {"M": 8192, "V": 32768, "D": 4096}),
    "copies": (GRADIENTS, {"H": 64, "S": 2048, "T": 2048, "D": 64}),
    "chain_factors": (CHAINED, {"H": 16, "S": 4096}),
    "split": ("op f(x: f32[N]) -> (y: f32) { y = sum[i](x[i]) }", {"N": 1 << 22}),
    "pack": (PRODUCT, {"M": 2046, "N": 1998, "K": 2002}),
}


def read_back(plan: Plan, special: Specialised, own: Plan) -> Plan:
    """The plan of what is written of a plan, which is the same; `own` is the compiler's."""
    again = parse_schedule(Source("w.sched.toml", write_schedule(plan, special)))(own)
    assert again == replace(plan, remarks=again.remarks)
    return again


def drawn(own: Plan, seed: str) -> Iterator[tuple[Any, Plan]]:
    """No rewrite, all that apply, and some of them forbidden and forced; with the plans."""
    draw = random.Random(seed)
    some = [{name: draw.choice(([], True)) for name in draw.sample(NAMES, draw.randint(1, 5))} for _ in range(DRAWN)]
    for rewrites in ({name: [] for name in NAMES}, dict.fromkeys(NAMES, True), *some):
        yield rewrites, rewritten(**rewrites)(own)


def check(special: Specialised, target: str) -> None:
    def ask(own: Plan) -> Plan:
        seen = set()
        for rewrites, plan in drawn(own, f"{special.name} {target}"):
            read_back(plan, special, own)
            key = plan.rewrites, tuple(k.nodes for k in plan.kernels)
            if key not in seen and len(seen) < 2:
                seen.add(key)
                for other in in_other_ways(plan, f"{rewrites}"):
                    read_back(other, special, own)
        return own

    lowered(special, schedule=ask, target=target, end="plan", emit=False, texts=False)


def in_other_ways(plan: Plan, seed: str) -> Iterator[Plan]:
    """The plan with each kernel's tile, loops, options and family as they are in some of the planner's other candidates."""
    draw = random.Random(seed)
    assert plan.candidates is not None
    for name, ranked in plan.candidates().items():
        others = [k for k in ranked if k not in plan.kernels]
        for other in draw.sample(others, min(KERNELS, len(others))):
            yield plan.with_kernels([other if k.name == name else k for k in plan.kernels])


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name, target):
    example = EXAMPLES[name]
    check(specialised(example.path, example.op, example.sizes), target)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_a_rewrite_pays_for(name, target):
    check(program(name), target)


def program(name: str) -> Specialised:
    text, sizes = PROGRAMS[name]
    return specialised(Source("t.tile", text), None, sizes)


LARGE = ("copies", "concatenation")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in PROGRAMS])
def test_what_forbids_a_rewrite_is_written(name):
    special, plans = program(name), list[Plan]()

    def forbid(own: Plan) -> Plan:
        assert own.steps(name), "else nothing is forbidden"
        plans.append(rewritten(**{name: []})(own))
        assert not read_back(plans[0], special, own).steps(name)
        return plans[0]

    lowered(special, schedule=forbid, end="plan", emit=False, texts=False)
    assert f"\n{name} = []\n" in write_schedule(plans[0], special)


def test_kernels_are_the_same():
    special = program("split")
    first = lowered(special, schedule=rewritten(split=[]))[1]
    again = lowered(special, schedule=parse_schedule(Source("w.sched.toml", write_schedule(first.plan, special))))[1]
    assert again.emitted == first.emitted != lowered(special)[1].emitted


@pytest.mark.parametrize("name", ["toeplitz", "chain_factors", "pack"])
def test_steps_are_read_with_the_options_that_are_written(name):
    """Options that are left out are empty: no other step has those that are there."""
    special = program(name)

    def ask(own: Plan) -> Plan:
        table = tomllib.loads(write_schedule(own, special))["plan"][0]["rewrites"]
        assert rewritten(**table)(own).rewrites == own.rewrites
        assert len(table[name]) == len(own.steps(name))
        return own

    lowered(special, schedule=ask, end="plan", emit=False, texts=False)

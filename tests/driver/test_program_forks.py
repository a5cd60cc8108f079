"""Programs that several processes compile are those that one compiles."""

from __future__ import annotations

import json
import os

import pytest
from tools.answering import Answering

from tilec.core import targets
from tilec.driver import program_compiler
from tilec.plan import search
from tilec.process import compile_server, forks
from tilec.runtime.emit import kernels

pytestmark = pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")

SPLIT = """op f(x: f32[16, 131072]) -> (y: f32[16], z: f32[131072]) {
    y[i] = sum[j](x[i, j])
    z[j] = sum[i](x[i, j] * y[i])
}"""
PRODUCTS = """op f(g: bf16[32768, 512], x: bf16[32768, 512], w: bf16[512, 512]) -> (dw: bf16[512, 512], dx: bf16[32768, 512]) {
    p[i, j]: bf16 = g[i, j] * g[i, j]
    dw[j, k] = sum[i](p[i, j] * x[i, k])
    dx[i, k] = sum[j](p[i, j] * w[j, k])
}"""
LOSS = """op f(x: bf16[2048, 768], w: bf16[4096, 768], t: i64[2048]) -> (loss: f32[2048]) {
    s[i, c]: f32 = sum[k](x[i, k] * w[c, k])
    m[i]    = max[c](s[i, c])
    loss[i] = log(sum[c](exp(s[i, c] - m[i]))) + m[i] - s[i, t[i]]
}"""


def asked(text):
    return {
        "name": "<program>", "text": text, "op": "f", "inputs": None, "sizes": {}, "schedule": None, "donated": [],
        "target": json.dumps(targets.load("h200").to_dict()),
    }  # fmt: skip


@pytest.mark.parametrize("text", [SPLIT, PRODUCTS, LOSS], ids=["split", "products", "loss"])
def test_forks_make_what_one_process_makes(text, monkeypatch):
    monkeypatch.setattr(search, "OPERATIONS_THRESHOLD", 0)
    monkeypatch.setattr(kernels, "OPERATIONS_THRESHOLD", 0)
    choose, own = forks.choose, os.getpid()

    def noted(*given):  # by whichever process goes on
        found = choose(*given)
        chosen.append(found[0])
        return found

    chosen = []
    monkeypatch.setattr(forks, "choose", noted)

    def answer(request, report):
        chosen.clear()
        return program_compiler.answer(request, report) | {"chosen": [*chosen], "process": os.getpid()}

    made = []
    for may_fork in (False, True):
        with Answering(answer, may_fork) as process:
            parts, reply = process.ask(asked(text))
        assert "error" not in reply, reply
        assert (reply.pop("process") == process.process) is not (may_fork and any(reply["chosen"])), "who found it answers"
        made.append((sorted(parts, key=repr), reply))
    assert made[0] == made[1] and os.getpid() == own
    parts, reply = made[1]
    assert reply["chosen"], "there were alternatives"
    printed = reply["program"]["emitted"]["kernels"]
    assert sorted(p["kernel"]["name"] for p in parts) == sorted(k["name"] for k in printed)
    assert all(f"def {p['kernel']['name']}(" in p["module"] for p in parts)


def test_what_is_wrong_is_reported_once():
    text = "op f(x: f32[4, 4]) -> (y: f32[4]) { y[i] = sum[j](x[i, k]) }"
    with Answering(program_compiler.answer) as process:
        parts, reply = process.ask(asked(text))
        assert parts == [] and "unknown" in reply["error"]


def test_few_processors_are_left_to_others(monkeypatch):
    for cores, forking in ((1, False), (3, False), (4, True), (64, True)):
        monkeypatch.setattr(program_compiler, "available_cores", lambda cores=cores: cores)
        assert program_compiler.may_fork() is forking

"""Clusters as the interpreter runs them: long rows are right, and what is broken on purpose is found."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import assert_within
from expectations import EXAMPLES
from tools.broken_kernels import X, fault, filled, run, without
from tools.lowering import lowered
from tools.rows import PLANS, TOP, planned

from tilec.semantics.interpreter import Fault, interpret

# ---- two blocks that exchange what they have -------------------------------------------------------------------------

START = """%rank = gpu.cluster_block_id x
    %peer = arith.xori %rank, %c1 : index
    %n = affine.apply affine_map<(d0)[s0] -> (d0 + s0 * 32)>(%t)[%b]
    %v = memref.load %x[%n] : memref<64xf32>
    %mail = memref.alloc() : memref<2x32xf32, 7>
"""
END = "\n%w = memref.load %mail[FROM, %t] : memref<2x32xf32, 7>\nmemref.store %w, %y[%n] : memref<64xf32>\n"
MEET = "nvvm.cluster.arrive\nnvvm.cluster.wait\n"
SEND = "memref.dma_start %a[%c0], %mail[TO, %t], %c1, %tag[%c0] : memref<1xf32, #gpu.address_space<private>>, "
SEND += "memref<2x32xf32, 7>, memref<1xi64, #gpu.address_space<workgroup>>\n"
WAIT = "memref.dma_wait %tag[%c0], %c32 : memref<1xi64, #gpu.address_space<workgroup>>\n"
STORES = f"""{START}
    %tag = memref.alloc() : memref<1xi64, #gpu.address_space<workgroup>>
    %a = memref.alloca() : memref<1xf32, #gpu.address_space<private>>
    memref.store %v, %a[%c0] : memref<1xf32, #gpu.address_space<private>>
    FENCE
    MEET
    {SEND}
    AWAIT
    {END}"""
LOADS = f"{START}\nOPEN memref.store %v, %mail[%rank, %t] : memref<2x32xf32, 7>\nMEET {END} CLOSE"
LATE = f"{MEET}%p = arith.cmpi eq, %rank, %c0 : index\nscf.if %p {{ {END.replace('%w', '%u')} }} else {{ nvvm.cluster.arrive }}"
TWO = {"threads": 32, "blocks": 2, "cluster": 2}
RIGHT = {"fence": "nvvm.fence.mbarrier.init", "meet": MEET, "to": "%peer", "await": WAIT, "from": "%rank"}


def stores(**changed: str) -> str:
    return filled(STORES, **RIGHT | changed)


def loads(**changed: str) -> str:
    return filled(LOADS, **{"open": "", "meet": MEET, "from": "%peer", "close": MEET} | changed)


@pytest.mark.parametrize("body", [stores(), loads()], ids=["stores that count", "loads"])
def test_blocks_of_a_cluster_exchange(body):
    np.testing.assert_array_equal(run(body, **TWO), np.roll(X, 32))


@pytest.mark.parametrize(
    "kind, changed, message",
    [
        ("race", {"meet": ""}, "memory of block 1 of the cluster is used before it is known to have started; threads 0,"),
        ("race", {"fence": ""}, "mbarrier 0 of block 0 is used without a fence that makes it visible to the cluster"),
        ("unwritten", {"await": ""}, "nothing wrote it; threads 0"),
        ("race", {"to": "%c0"}, r"byte 256 of block 0 is written by the copies .* block 1 and written by the copies .* block 0"),
        ("race", {"from": "%peer"}, "byte 256 of block 1 is written by the copies .*; by block 0 and read by thread 0 of block 0"),
        ("race", {"await": WAIT + filled(SEND, to="%peer")}, "memory of block 0 of the cluster is used after its end; threads 0"),
        ("race", {"await": WAIT + filled(SEND, to="%peer") + MEET}, "by block 0 and read by thread 0 of block 1, without"),
        ("invalid", {"meet": "nvvm.cluster.wait"}, "waits at the cluster's barrier without arriving there; threads 0"),
        ("invalid", {"meet": "nvvm.cluster.arrive\n" + MEET}, "arrives at the cluster's barrier again"),
        ("stuck", {"meet": f"%p = arith.cmpi slt, %t, %c4 : index\nscf.if %p {{\n{MEET}\n}}"}, "56 of 64 are missing"),
    ],
)  # fmt: skip
def test_stores_that_count_wrongly(kind, changed, message):
    fault(kind, stores(**changed), message, **TWO)


@pytest.mark.parametrize(
    "kind, changed, message",
    [
        ("race", {"open": "memref.store %v, %mail[%peer, %t] : memref<2x32xf32, 7>"},
         "memory of block 1 of the cluster is used before it is known to have started; threads 0, 1"),
        ("unwritten", {"open": MEET, "meet": ""}, "at element 0 of the cluster's block . is read, and nothing wrote it; threads 0"),
        ("race", {"close": ""}, "memory of block 1 of the cluster is used after its end; threads 0"),
        ("race", {"close": "nvvm.cluster.arrive\nnvvm.cluster.wait\n" + END.replace("%w", "%u")}, "is used after its end"),
        ("race", {"close": filled(LATE, **{"from": "%peer"})}, "byte 256 of block 1 is read by thread 0 of block 0, without"),
        ("race", {"open": MEET, "meet": "memref.store %v, %mail[%c0, %t] : memref<2x32xf32, 7>"},
         r"byte 256 of block 0 is written by thread 0 of block 1 and written by thread 0 of block 0, without synchronisation"),
        ("outside", {"from": "%c2"}, "subscript 2 of dimension 0"),
    ],
)  # fmt: skip
def test_loads_from_another_block_that_are_wrong(kind, changed, message):
    fault(kind, filled(loads(**changed), **{"from": "%peer"}), message, **TWO)


def test_clusters_that_are_none():
    fault("invalid", loads(), "3 blocks cannot be divided into clusters of 2", threads=32, blocks=3, cluster=2)
    fault("invalid", loads(), "memory of 2 blocks, where a cluster has 4", threads=32, blocks=4, cluster=4)


# ---- whole kernels ---------------------------------------------------------------------------------------------------


def mapped(name: str, sizes: dict[str, int], plan: tuple, rng, stage: str = "map") -> tuple[str, dict]:
    example = EXAMPLES[name]
    inputs = example.inputs(rng, sizes)
    _, result = lowered(example.path, example.op, inputs, planned(*plan), locations=True, texts=True)
    return result.texts[stage], inputs


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["softmax", "layernorm", "rmsnorm"])
def test_rows(name, plan, rng):
    text, inputs = mapped(name, {"M": 5, "N": 456}, plan, rng)
    assert_within(EXAMPLES[name].path, inputs, interpret(text, inputs), EXAMPLES[name].op, kind="cuda")


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("name", ["softmax", "layernorm", "rmsnorm"])
def test_rows_that_wait_in_sram(name, cluster, rng):
    """A block's part of 228 elements or all 456, in rounds of 64; without its wait, a pass would find nothing there."""
    example, plan = EXAMPLES[name], planned(32, 2, cluster, 0, 0, residency="smem", steps=(1, 1))
    inputs = example.inputs(rng, {"M": 3, "N": 456})
    text = lowered(example.path, example.op, inputs, plan, locations=True)[1].texts["map"]
    assert_within(example.path, inputs, interpret(text, inputs), example.op, kind="cuda")
    with pytest.raises(Fault, match="asynchronous copy"):
        interpret(without(text, r"nvvm\.cp\.async\.wait\.group"), inputs)


@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_rows_before_threads_are_mapped(name, rng):
    text, inputs = mapped(name, {"M": 5, "N": 456}, (64, 4, 4, 1, 0), rng, "stage")
    assert "gpu.cluster_block_id" in text and "gpu.thread_id" not in text
    assert_within(EXAMPLES[name].path, inputs, interpret(text, inputs), EXAMPLES[name].op, kind="cuda")


@pytest.mark.parametrize("name", ["softmax", "layernorm", "sum"])
def test_long_rows(name, rng):
    """Few rows of 16384 columns and more, over 8 blocks, as the plan deals them out or with more to do for each thread."""
    if name == "sum":
        x = rng.standard_normal((2, 20000), dtype=np.float32)
        source = "op total(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j]) }"
        _, result = lowered(source, None, {"x": x}, planned(256, 4, 8, 1, 0))
        assert_within(source, [x], interpret(result.texts["map"], [x]), kind="cuda")
        return
    text, inputs = mapped(name, {"M": 2, "N": 16384}, (256, 4, 8, 0, 1), rng)
    assert "tilec.cluster = 8" in text
    assert_within(EXAMPLES[name].path, inputs, interpret(text, inputs), EXAMPLES[name].op, kind="cuda")


def test_places_of_the_largest(rng):
    x = rng.integers(0, 50, (4, 520)).astype(np.float32)
    x[2, 400] = np.nan
    _, result = lowered(TOP, None, {"x": x}, planned(64, 4, 4, 0, 0))
    found = interpret(result.texts["map"], [x])
    assert found["p"].tolist() == [int(np.argmax(row)) for row in x]


TURN = r"(memref\.dma_start .*?%\w+\[%\w+, )%arg\d+"


@pytest.mark.parametrize(
    "kind, change, message",
    [
        ("invalid", lambda text: without(text, r"nvvm\.cluster\.arrive"), "without arriving"),
        ("race", lambda text: without(text, r"nvvm\.cluster\.wait"), "before it is known to have started"),
        ("race", lambda text: without(text, r"nvvm\.fence\.mbarrier\.init"), "without a fence"),
        ("unwritten|race", lambda text: without(text, r"memref\.dma_wait"), "workgroup memory|nothing wrote it"),
        ("race", lambda text: without(text, r"gpu\.barrier"), "workgroup memory at byte"),
        ("stuck|invalid", lambda text: re.sub(r"(memref\.dma_start .*?, %\w+)\[%\w+,", r"\1[%c0,", text), "mbarrier"),
        ("unwritten|race", lambda text: re.sub(r"(memref\.load %\w+)\[%cluster_block_id_x(, .*2x2x2x1xf32, 7)", r"\1[%c1\2", text),
         "nothing wrote it|read by"),
    ],
    ids=["no arrival", "no cluster's barrier", "no fence", "no wait", "no block's barrier", "sent to one block",
         "read from one block"],
)  # fmt: skip
def test_a_kernel_of_long_rows_that_is_broken(kind, change, message, rng):
    text, inputs = mapped("softmax", {"M": 9, "N": 456}, (64, 4, 2, 1, 0), rng)
    changed = change(text)
    assert changed != text
    with pytest.raises(Fault, match=message) as error:
        interpret(changed, inputs)
    assert re.fullmatch(kind, error.value.kind) and error.value.line[0].endswith("softmax.tile")


def test_two_mailboxes_take_turns(rng):
    """A block that is a row ahead would write what another still reads, where only one reduction is between."""
    text, inputs = mapped("rmsnorm", {"M": 9, "N": 456}, (64, 4, 2, 1, 0), rng)
    one = re.sub(r"(memref\.(?:dma_start .*?, %\w+|load %\w+)\[%\w+), %arg\d+(.*2x2x2x1xf32, 7)", r"\1, %c0\2", text)
    assert one != text
    with pytest.raises(Fault, match=r"of block . is (read|written) by .* and written by the copies") as error:
        interpret(one, inputs)
    assert error.value.kind == "race" and error.value.line[0].endswith("rmsnorm.tile")

"""Equal kernels are one function with several calls: it is lowered, printed and compiled once, and each call keeps its own names,
lines and messages."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within
from tools import cuda_emulator
from tools.chains import lowered as lowered_chain
from tools.chains import warps
from tools.contractions import arrays
from tools.cuda_matrix_emulator import MatrixIntrinsics
from tools.lowering import emitted, lowered

import tilec
from benchmarks.large_programs import transformer
from tilec.core import mlir
from tilec.core.diagnostics import CheckError, Source
from tilec.kernels import Scan
from tilec.passes.tensor.forward import forward
from tilec.passes.tensor.outline import renaming
from tilec.plan.report.explain import explain
from tilec.plan.schedule.read import parse_schedule
from tilec.plan.schedule.write import write_schedule
from tilec.runtime.program import Emitted
from tilec.semantics.interpreter import interpret

TARGETS = pytest.mark.parametrize("target", ["cpu", "h200"])


def layers(count: int, **changed: str) -> Source:
    """Dense layers on lines of their own; `changed` replaces layers by name."""
    lines = [f"h{n}[i, k] = max(sum[j](h{n - 1}[i, j] * w{n}[j, k]) + b{n}[k], 0.5)" for n in range(1, count + 1)]
    lines = [f"h{n}[i, k] = {changed[f'h{n}']}" if f"h{n}" in changed else line for n, line in enumerate(lines, 1)]
    weights = ", ".join(f"w{n}: f32[16, 16], b{n}: f32[16]" for n in range(1, count + 1))
    return Source("f.tile", f"op f(h0: f32[16, 16], {weights}) -> (h{count}: f32[16, 16]) {{\n" + "\n".join(lines) + "\n}")


def different(source: Source, target: str, **options) -> int:
    found = lowered(source, "f", target=target, **options)[1].emitted
    assert len(found.launched) == sum(s.kernel is not None for s in found.steps) >= len(found.kernels)
    return len(found.kernels)


def compute(source: Source, target: str) -> None:
    """By the interpreter as kernels are made and as they are printed, and as printed kernels for a GPU."""
    special, result = lowered(source, "f", target=target, texts=True)
    inputs = dict(zip((t.name for t in special.inputs), arrays(special)))
    for stage in ("fuse", "map"):
        assert_within(source.text, inputs, list(interpret(result.texts[stage], inputs).values()), kind=target_kind(target))
    if target != "cpu":
        outs = [np.zeros([s.value for s in t.shape], t.dtype.numpy) for t in special.outputs]
        assert not any(cuda_emulator.run(result.emitted, list(inputs.values()), outs, MatrixIntrinsics))
        assert_within(source.text, inputs, outs, kind="cuda")


def target_kind(target: str) -> str:
    return "cpu" if target == "cpu" else "cuda"


@TARGETS
def test_more_layers_are_no_more_kernels(target):
    assert different(layers(12), target) == different(layers(3), target) <= 3


@pytest.mark.slow
@TARGETS
def test_more_layers_of_a_transformer_are_no_more_kernels(target):
    few, many = (emitted(Source("t.tile", transformer(n, 32, 64, 2, 50)), "transformer", target=target) for n in (2, 4))
    assert len(few.kernels) == len(many.kernels) and len(few.steps) < len(many.steps)


def test_states_of_blocks_that_share_rows_of_a_chain_are_those_of_a_launch(monkeypatch):
    """Attentions, each of a kernel for parts and one that combines them. The first is of another plan: it overlaps nothing."""
    one = "s{0}[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 4\n p{0}[h, i, j] = softmax[j](s{0}[h, i, j])\n"
    one += "{1}[h, i, d] = sum[j](p{0}[h, i, j] * v[h, j, d]) using bf16\n"
    queries, results = (", ".join(f"{name}: bf16[2, 16, 16]" for name in names) for names in ("qrt", "abo"))
    text = f"op f({queries}, k: bf16[2, 48, 16], v: bf16[2, 48, 16]) -> ({results}) {{\n"
    for n, (query, result) in enumerate(("qa", "rb", "to")):
        text += one.replace("q[", f"{query}[").format(n, result)
    text += "}"
    special, result = lowered_chain(text, {}, warps(16, 16, parts=3), monkeypatch)
    names = [f"f_{name}{end}" for name in "abo" for end in ("", "_combined")]
    assert [s.planned for s in result.emitted.steps] == names
    assert [s.kernel for s in result.emitted.steps] == [*names[:4], *names[2:4]]
    inputs = arrays(special)
    assert_within(text, dict(zip("qrtkv", inputs)), interpret(result.texts["map"], inputs), kind="cuda")


OTHERS = [
    "max(sum[j](h{m}[i, j] * w{n}[j, k]) + b{n}[k], 0.25)",
    "min(sum[j](h{m}[i, j] * w{n}[j, k]) + b{n}[k], 0.5)",
    "max(sum[j](h{m}[i, j] * w{n}[k, j]) + b{n}[k], 0.5)",
    "max(sum[j](h{m}[i, j] * w{n}[j, k]) + b1[k] + b{n}[k], 0.5)",
    "max(sum[j](h{m}[i, j] * w{n}[j, k]) + w{n}[i, k], 0.5)",
    "max(sum[j](h{m}[i, j] * w{n}[j, k]) + h{m}[i, k], 0.5)",
]


@pytest.mark.crossed
@TARGETS
@pytest.mark.parametrize("other", OTHERS)
def test_other_numbers_and_operations_are_other_kernels(target, other):
    assert different(layers(4, h3=other.format(m=2, n=3)), target) > different(layers(4), target)


@TARGETS
def test_each_launch_has_its_own_arguments(target):
    others = [other.format(m=n - 1, n=n) for n, other in zip((3, 5, 6, 8), OTHERS[::-1])]
    compute(layers(8, **dict(zip(("h3", "h5", "h6", "h8"), others))), target)


def test_one_tensor_read_twice_is_no_two_tensors():
    text = """op f(x: f32[40], w: f32[40]) -> (z: f32[40]) {{
        y[i] = x[39 - i] - exp(w[39 - i]) where i in 0:40
        z[i] = y[39 - i] - exp({}[39 - i]) where i in 0:40 }}"""
    for second, kernels in (("w", 1), ("y", 2)):
        source = Source("f.tile", text.format(second))
        assert different(source, "cpu") == kernels
        compute(source, "cpu")


def test_a_kernel_whose_intermediate_is_a_result_is_another():
    text = """op f(x: f32[40, 8]) -> (z: f32[40, 8], {}) {{
        m[i] = max[j](x[39 - i, j]) where i in 0:40\n y[i, j] = x[39 - i, j] - m[i]
        n[i] = max[j](y[39 - i, j]) where i in 0:40\n z[i, j] = y[39 - i, j] - n[i] }}"""
    for results, kernels in (("m: f32[40], n: f32[40]", 1), ("n: f32[40]", 2)):
        source = Source("f.tile", text.format(results))
        assert different(source, "cpu") == kernels
        compute(source, "cpu")


def test_kernels_of_other_plans_are_others():
    """A schedule that changes one of three layers."""
    special, own = lowered(layers(3), "f", target="cpu")
    text = write_schedule(own.plan, special)
    start = text.index("[plan.kernels.f_h2]")
    changed = text[:start] + text[start:].replace("tile = [16, 16]", "tile = [8, 16]", 1)
    assert text != changed
    assert different(layers(3), "cpu", schedule=parse_schedule(Source("s.toml", changed))) == 1 + len(own.emitted.kernels)


@TARGETS
def test_names_and_lines_of_all_launches_are_reported(target):
    special, result = lowered(layers(4), "f", target=target, locations=True)
    reported, found = explain(result.plan, special), result.emitted
    last = found.launched["f_h4"]
    for kernel in result.plan.kernels:
        assert found.launched[kernel.name] in found.kernels
        assert f"kernel {kernel.name}:" in reported or kernel.name in reported
        if kernel.name != last.name and found.launched[kernel.name] == last:
            assert f"{kernel.name} (f.tile:{kernel.lines[-1][1]})" in last.text
    assert "# also f_h" in last.text and 'tilec.launch = "f_h4"' in result.texts["map"]
    assert Emitted.from_json(found.to_json()) == found


def test_kernels_of_an_op_are_its_launches(tmp_path):
    source = layers(4)
    op = tilec.compile(source.text, target="cpu").build()
    assert [k.name for k in op.kernels] == [k.name for k in op.plan.kernels] == ["f_h1", "f_h2", "f_h3", "f_h4"]
    assert len({k.source for k in op.kernels}) == 1 and all(k.predicted_us > 0 for k in op.kernels)


GATHERS = """op f(a: f32[24, 8], ids: i32[24], jds: i32[24]) -> (z: f32[24, 8]) {
    x[i, j] = a[ids[i], j]
    y[i, j] = x[ids[i], j]
    z[i, j] = y[jds[i], j]
}"""


def gathered(ids: int = 0, jds: int = 0) -> dict[str, np.ndarray]:
    a = np.random.default_rng(0).standard_normal((24, 8)).astype(np.float32)
    return {"a": a, "ids": np.full(24, ids, np.int32), "jds": np.full(24, jds, np.int32)}


@TARGETS
def test_checks_speak_of_their_own_launch(target):
    source = Source("f.tile", GATHERS)
    result = lowered(source, "f", target=target, texts=True)[1]
    found = result.emitted
    assert len({id(found.launched[name]) for name in ("f_y", "f_z")}) == 1
    assert [site.split(": ")[0] for site in found.sites] == ["f.tile:2:15", "f.tile:3:15", "f.tile:4:15"]
    for line, name, wrong in ((2, "a", {"ids": 24}), (4, "y", {"jds": -1})):
        for stage in ("fuse", "map"):
            with pytest.raises(CheckError, match=rf"^f\.tile:{line}:15: .*`{name}`"):
                interpret(result.texts[stage], gathered(**wrong))
    if target == "cpu":
        with pytest.raises(CheckError, match=r":4:15: .*`y`"):
            tilec.compile(GATHERS, target="cpu")(*gathered(jds=-1).values())
    else:
        out = np.zeros((24, 8), np.float32)
        assert cuda_emulator.run(found, list(gathered().values()), [out]) == [0, 0, 0]
        assert cuda_emulator.run(found, list(gathered(jds=-1).values()), [out]) == [0, 0, 1]


def test_one_message_cannot_become_two():
    assert renaming(["a", "b"], ["c", "c"]) == {"a": "c", "b": "c"}
    assert renaming(["a", "a"], ["c", "d"]) is None


RETURNED = """
module attributes {tilec.backend = "cpu"} {
  func.func @k(%x: tensor<4xf32> {tilec.name = "x"}, %s: tensor<4xf32> {tilec.name = "s"}, %t: tensor<4xf32> {tilec.name = "t"})
      -> (tensor<4xf32>, tensor<4xf32>) attributes {tilec.kernel} {
    %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%x : tensor<4xf32>) outs(%s : tensor<4xf32>) { ^bb0(%in: f32, %out: f32): %1 = arith.negf %in : f32
      linalg.yield %1 : f32 } -> tensor<4xf32>
    return %0, %x : tensor<4xf32>, tensor<4xf32>
  }
  func.func @f(%x: tensor<4xf32> {tilec.name = "x"}) -> (tensor<4xf32> {tilec.name = "y"}, tensor<4xf32> {tilec.name = "z"}) {
    %e = tensor.empty() : tensor<4xf32>
    %0:2 = call @k(%x, %e, %e) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %1:2 = call @k(%0#0, %e, %e) {tilec.launch = "l"}
      : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    return %1#0, %1#1 : tensor<4xf32>, tensor<4xf32>
  }
}"""


def test_a_result_that_is_forwarded_is_so_for_all_launches():
    with mlir.context():
        module = mlir.parse(RETURNED)
        forward(module.operation)
        assert module.operation.verify()
        text = str(module)
        assert text.count("call @k(") == 2 and "tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>" in text
        assert text.count('tilec.launch = "l"') == 1
        x = np.arange(4, dtype=np.float32)
        outs = interpret(text, {"x": x})
        np.testing.assert_array_equal(outs["y"], x)
        np.testing.assert_array_equal(outs["z"], -x)


def test_blocks_that_share_rows_do_so_in_each_launch():
    """Two scans, each with flags of its own."""
    text = """op f(x: f32[2, 1024], w: f32[2, 1024]) -> (y: f32[2, 1024], z: f32[2, 1024]) {
        y[i, j] = cumsum[j](x[i, j])\n z[k, l] = cumsum[l](w[k, l] * w[k, l])\n }"""
    text = text.replace("w[k, l] * w[k, l]", "w[k, l]").replace("f32[2", "i32[2")

    def shared(plan):
        options = replace(plan.kernels[0].options, blocks_per_row=4, overlap_launch=False)
        assert isinstance(options, Scan)
        return plan.with_kernels([replace(k, options=options) for k in plan.kernels])

    result = lowered(Source("f.tile", text), "f", target="h200", schedule=shared)[1]
    assert len(result.emitted.kernels) == 1
    assert list(result.emitted.launched) == ["f_y", "f_z"]
    assert len({s.slots[-1] for s in result.emitted.steps if s.kernel}) == len(result.emitted.temporaries) == 2
    rng = np.random.default_rng(0)
    arrays = {n: rng.integers(-9, 9, (2, 1024)).astype(np.int32) for n in "xw"}
    outs = [np.zeros((2, 1024), np.int32) for _ in range(2)]
    assert not any(cuda_emulator.run(result.emitted, list(arrays.values()), outs))
    for found in (outs, list(interpret(result.texts["map"], arrays).values())):
        for made, x in zip(found, arrays.values()):
            np.testing.assert_array_equal(made, np.cumsum(x, 1))


def test_results_of_one_operation_keep_their_names():
    """In the kernel that reads them, as in the one that makes them."""
    text = "s[i] = sum[j](x[i, j]) q[i] = max[j](x[i, j]) y[i, k] = sum[j](a[i, j] * b[j, k]) * s[i] + q[i]"
    source = Source("f.tile", f"op f(x: f32[64, 4096], a: f32[64, 32], b: f32[32, 48]) -> (y: f32[64, 48]) {{ {text} }}")
    module = emitted(source, "f").module
    assert re.findall(r"^def .*", module, re.MULTILINE) == ["def f_s_q(x, s, q):", "def f_y(a, b, s, q, y):"]

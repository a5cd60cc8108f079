"""What backward computes again: forward saves nothing as large as attention's scores, and gradients are right."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import make_boxed_func  # noqa: E402
from tools import chains  # noqa: E402
from tools.lowering import planned  # noqa: E402
from tools.pytorch import texts_of  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from tilec.core.diagnostics import Source  # noqa: E402
from tilec.core.targets import load  # noqa: E402
from tilec.torch import aot, backend, random_numbers, recompute  # noqa: E402
from tilec.torch.layout import layout  # noqa: E402
from tilec.torch.options import Options  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
F = torch.nn.functional
attend = F.scaled_dot_product_attention


def compiled(function, target="h200", kernels=False, inside=True):
    """The function with forward and backward cut as for a target, and run here, by PyTorch or by tilec's `kernels`; and a list for
    what forward saves. `inside`: random numbers are those of seeds."""
    saved = []

    def partition(joint, inputs, **how):
        if inside:
            random_numbers.replace(joint.graph, training=True)
        forward, rest = recompute.partition(joint, inputs, targets=lambda _: load(target), **how)
        (output,) = (n for n in forward.graph.nodes if n.op == "output")
        saved.extend(n.meta["val"] for n in output.args[0][how["num_fwd_outputs"] :])
        return forward, rest

    def of(kind):
        by_tilec = lambda graph, given: backend.compile_aten(graph, given, kind, Options())[0]  # noqa: E731
        return by_tilec if kernels else lambda graph, given: make_boxed_func(graph)

    def compile_graph(gm, inputs):
        how = {"fw_compiler": of("forward"), "bw_compiler": of("backward"), "partition_fn": partition}
        return aot.functions(gm, inputs, {**how, "decompositions": backend._table()})

    return torch.compile(function, backend=compile_graph), saved


def error(got, wanted) -> float:
    return ((got.double() - wanted).norm() / wanted.norm()).item()


def inputs(heads=2, groups=2, length=96, depth=16, dtype=torch.bfloat16):
    torch.manual_seed(0)
    shapes = [(2, n, length, depth) for n in (heads, groups, groups)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


FORMS = {
    "full": {}, "causal": {"is_causal": True}, "grouped": {"is_causal": True, "enable_gqa": True}, "scaled": {"scale": 0.3}
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_attention_saves_no_scores(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_kernels(name):
    check(name, kernels=True)


def check(name, kernels=False):
    """Nothing of the size of the scores is saved, and the gradients are those of f64."""
    how = FORMS[name]
    tensors = inputs(heads=4 if "enable_gqa" in how else 2)
    run, saved = compiled(lambda *x: attend(*x, **how), kernels=kernels)
    o = run(*tensors)
    gradient = torch.randn_like(o)
    o.backward(gradient)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    wanted = attend(*exact, **how)
    wanted.backward(gradient.double())
    assert max(x.numel() for x in saved) <= max(x.numel() for x in tensors)
    assert all(x.shape[-2] * x.shape[-1] < 96 * 96 for x in saved if x.dim() > 1)
    assert error(o, wanted) < 0.01
    assert all(error(x.grad, e.grad) < 0.01 for x, e in zip(tensors, exact))


def test_attention_with_a_dropout_saves_its_seed():
    check_dropped({})


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("name", ["causal", "grouped"])
def test_gradients_of_attention_with_a_dropout(name, kernels):
    check_dropped(FORMS[name], kernels)


def check_dropped(how, kernels=False):
    """Nothing of the size of the scores is saved, and the gradients are those of f64 with the same mask, which shows where values
    are one row of the identity each."""
    q, k, v = inputs(heads=4 if "enable_gqa" in how else 2, length=64, depth=64)
    run, saved = compiled(lambda *x: attend(*x, dropout_p=0.3, **how), kernels=kernels)
    torch.manual_seed(1)
    kept = run(q, k, torch.eye(64, dtype=q.dtype).expand(v.shape).contiguous().requires_grad_()).detach() > 0
    torch.manual_seed(1)
    o = run(q, k, v)
    gradient = torch.randn_like(o)
    o.backward(gradient)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    heads = [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in exact]
    scores = heads[0] @ heads[1].mT / 8
    visible = torch.ones(64, 64, dtype=torch.bool).tril(0 if "is_causal" in how else 64)
    assert abs(kept.double().sum() / visible.expand(kept.shape).sum() - 0.7) < 0.02
    wanted = (scores.masked_fill(~visible, -torch.inf).softmax(-1) * kept / 0.7) @ heads[2]
    wanted.backward(gradient.double())
    assert all(x.numel() <= q.numel() for x in saved) and any(x.dtype == torch.int64 for x in saved)
    assert error(o, wanted) < 0.01
    assert all(error(x.grad, e.grad) < 0.01 for x, e in zip((q, k, v), exact))


def test_rows_that_attend_to_nothing():
    """Their results and gradients are 0, as in PyTorch."""
    tensors = inputs()
    mask = torch.ones(96, 96, dtype=torch.bool).tril()
    mask[5] = False
    run, saved = compiled(lambda q, k, v: attend(q, k, v, attn_mask=mask))
    o = run(*tensors)
    o.sum().backward()
    assert not o[:, :, 5].any() and not tensors[0].grad[:, :, 5].any()
    assert all(x.grad.isfinite().all() for x in tensors)
    assert max(x.numel() for x in saved if x.is_floating_point()) <= tensors[0].numel()


def test_a_product_that_is_read_again_elsewhere_is_saved():
    """A result of the program, or what PyTorch draws numbers for, is in memory all the same."""

    def weights(q, k, v):
        p = (q @ k.mT).softmax(-1)
        return p @ v, p

    for function in (weights, lambda q, k, v: attend(q, k, v, dropout_p=0.1)):
        tensors = inputs()
        run, saved = compiled(function, inside=False)
        run(*tensors)
        assert any(x.numel() == 4 * 96 * 96 for x in saved)


def test_deep_products_are_saved():
    """A product of many terms takes longer to compute again than to read."""
    for depth, again in ((64, True), (4096, False)):
        shape = torch.empty(1, 8192, depth, dtype=torch.bfloat16, device="meta")
        made = make_fx(lambda q, k, v: [(q @ k.mT).softmax(-1) @ v], tracing_mode="fake")(shape, shape, shape)
        recompute.mark(made.graph, 1, lambda _: load("h200"))
        assert any("recompute" in n.meta for n in made.graph.nodes) == again


def test_a_cpu_saves_what_it_did():
    """There the product would be stored a second time."""
    run, saved = compiled(lambda *x: attend(*x), target="cpu")
    run(*inputs())
    assert any(x.numel() == 4 * 96 * 96 for x in saved)


def test_the_statistics_of_a_softmax_of_other_types():
    """Scores in f16 go the same way."""
    tensors = inputs(dtype=torch.float16)
    run, saved = compiled(lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v)
    run(*tensors).sum().backward()
    assert max(x.numel() for x in saved) <= tensors[0].numel()


def test_parts_of_a_tensor_are_read_in_it():
    """Queries, keys and values of one product are parts with gaps: forward saves the product."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, 8), torch.randn(8, 24, requires_grad=True)

    def step(x, w):
        q, k, v = (x @ w).split(8, -1)
        return (q.sin() * k.cos() * v.exp())[:, 0].tanh()

    function, saved = compiled(step, kernels=True)
    function(x, w).sum().backward()
    wanted = w.detach().double().requires_grad_()
    step(x.double(), wanted).sum().backward()
    assert error(w.grad, wanted.grad) < 1e-6
    assert saved and not [s for s in saved if layout(s.shape, s.stride()) is None]


@pytest.mark.slow
def test_attention_with_a_dropout_is_a_chain_on_a_gpu(monkeypatch, tmp_path):
    """Forward one kernel, backward one for dq and one for dk and dv; the mask may be one more. A weight is rounded once, behind its
    mask."""
    shape = (4, 12, 1024, 64)
    families = []
    for p in (0.0, 0.1):
        given = [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        function = lambda *x: attend(*x, dropout_p=p, is_causal=True)  # noqa: B023, E731
        texts = texts_of(monkeypatch, tmp_path / str(p), function, *given)
        assert not p or not any("= bf16(exp" in text for text in texts)
        plans = [planned(Source("t.tile", text), None, {}).kernels for text in texts]
        families.append([[type(k.options).__name__ for k in kernels] for kernels in plans])
    for found in families:
        assert [names.count("ContractionChain") for names in found] == [1, 2]
    (_, before), (forward, after) = families
    assert len(forward) == 1 and len(after) <= len(before) + 1


@pytest.mark.slow
def test_a_kernel_for_a_gpu_of_attention_with_a_dropout(monkeypatch, tmp_path):
    """Run thread by thread in the interpreter, and its printed text by the emulator."""
    given = [torch.empty((1, 2, 72, 16), dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    function = lambda *x: attend(*x, dropout_p=0.3, is_causal=True)  # noqa: E731
    forward, _ = texts_of(monkeypatch, tmp_path, function, *given)
    for printed in (False, True):
        chains.check(forward, {}, (64, 32), monkeypatch, printed=printed)

"""Graphs are traced with core ATen's decompositions, but for what is translated whole, and for those of our own: each for a
reason."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled, texts_of  # noqa: E402
from torch._decomp import decomposition_table, get_decompositions  # noqa: E402

import tilec.torch  # noqa: E402
from tests.outside import opinfo  # noqa: E402
from tilec.torch import aten  # noqa: E402
from tilec.torch.aten.decompositions import NONE, OWN, is_whole  # noqa: E402
from tilec.torch.aten.table import ONE, SUMS, TABLE  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
ops = torch.ops.aten
F = torch.nn.functional


def test_graphs_are_traced_with_core_atens_table():
    """What it leaves out is translated whole here, or a composite operation without a kernel, which tracing decomposes."""
    from torch._decomp import core_aten_decompositions

    ours = aten.decompositions()
    for op in dict(core_aten_decompositions().items()).keys() - ours.keys():
        if not isinstance(op, torch._ops.OpOverload) or is_whole(op):
            continue
        assert op._can_decompose(), op
        kernels = [k for k in ("CPU", "CUDA") if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), k)]
        assert not kernels, (op, kernels)
    assert torch.ops.aten.native_channel_shuffle.default in ours


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_composite_operations_are_decomposed(mode):
    """Whatever a gradient's mode: `native_channel_shuffle` has a kernel of its own, `einsum` and `chunk` have none."""

    def function(x):
        first, second = torch.einsum("bchw,c->bchw", torch.channel_shuffle(x, 2), x.new_ones(4)).chunk(2, 1)
        return first.matmul(second.mT).movedim(1, 2)

    x = torch.randn(2, 4, 3, 5)
    with mode():
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert tilec.torch.report().share == 1


# ---- reasons ---------------------------------------------------------------------------------------------------------


def test_decompositions_of_our_own_say_why_they_are_not_pytorchs():
    """Each that PyTorch has one for, too, is one whose reason is shown here."""
    reported = {op for op, row in OWN.items() if op in decomposition_table}
    assert all((row.reason == NONE) == (op not in reported) for op, row in OWN.items())
    assert reported == {*DIGITS, *RIGHT, ops.embedding_dense_backward.default}


@cache
def CORE():
    """What core ATen decomposes."""
    from torch._decomp import _core_aten_decompositions_post_autograd

    return dict(_core_aten_decompositions_post_autograd())


def theirs(op):
    return get_decompositions([op])[op]


def narrow_dropout():
    x = torch.randn(400, dtype=torch.float64).bfloat16()
    return x, torch.rand(400) > 0.15, 1 / 0.85


DIGITS = {
    ops.soft_margin_loss_backward.default: lambda: (torch.tensor(1.0), torch.linspace(1, 20, 40), torch.ones(40), 0),
    ops.native_dropout_backward.default: narrow_dropout,
}


@pytest.mark.parametrize("op", DIGITS, ids=str)
def test_our_own_has_more_digits(op):
    given = DIGITS[op]()
    exact = OWN[op].decompose(*(v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in given))
    mine, other = (((f(*given).double() - exact) / exact.abs().clamp(min=1e-30)).abs() for f in (OWN[op].decompose, theirs(op)))
    assert mine.max() <= torch.finfo(given[0].dtype).eps * 4 and mine.mean() < other.mean() / 1.2


X = torch.tensor([-2.0, -1.0, 1.0, 2.0])
RIGHT = {
    ops.index_fill.int_Scalar: (X, 0, torch.tensor([-1]), 5.0),
    ops.index_fill.int_Tensor: (X, 0, torch.tensor([-1]), torch.tensor(5.0)),
}


@pytest.mark.parametrize("op", RIGHT, ids=str)
def test_our_own_gives_what_eager_mode_gives(op):
    wanted = op(*RIGHT[op])
    torch.testing.assert_close(OWN[op].decompose(*RIGHT[op]), wanted)
    with suppress(IndexError, RuntimeError):
        assert not torch.equal(theirs(op)(*RIGHT[op]), wanted)


def test_gradients_of_embeddings_store_no_wide_table():
    from torch.fx.experimental.proxy_tensor import make_fx

    op = ops.embedding_dense_backward.default
    given = torch.randn(3, 8, device="cpu").bfloat16(), torch.tensor([0, 1, 1]), 40, -1, False
    graph = make_fx(lambda g, i: theirs(op)(g, i, *given[2:]), tracing_mode="fake")(*given[:2]).graph
    values = [v for n in graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    assert any(v.dtype == torch.float32 and v.shape == (40, 8) for v in values)


# ---- roundings that decompositions have -------------------------------------------------------------------------------


ROUNDED_ONCE = {
    "hardswish": lambda x, y: F.hardswish(x) * 3, "xlogy": lambda x, y: torch.xlogy(x, y.abs()) * 3,
    "twice": lambda x, y: torch.xlogy(torch.xlogy(x, y.abs()), y.abs()) * 3,
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none") * 3,
}  # fmt: skip


def bf16(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_the_cast_that_ends_a_decomposition_is_no_rounding_of_its_own(name, monkeypatch, tmp_path):
    """Its result enters arithmetic as that of an operation does which is translated whole."""
    forward, *_ = texts_of(monkeypatch, tmp_path, ROUNDED_ONCE[name], bf16(24, 32).requires_grad_(), bf16(24, 32).flip(0))
    assert forward.count("bf16(") == (name == "twice"), forward


ASKED = {
    "to": lambda x: torch.log1p(x.float().abs()).bfloat16() * 3,
    "a copy": lambda x: torch.empty_like(x).copy_(torch.log1p(x.float().abs())) * 3,
    "wide by itself": lambda x: torch.log1p((x.abs() * 1.001).float()).bfloat16() * 3,
    "integers": lambda x: x.view(torch.int16).float().bfloat16() * 3,
}


@pytest.mark.parametrize("name", ASKED)
def test_a_cast_that_is_asked_for_is_a_rounding(name):
    x = bf16(24, 32)
    torch.testing.assert_close(compiled(ASKED[name])(x), ASKED[name](x), rtol=0, atol=0)


def test_a_difference_of_large_terms_keeps_its_digits():
    """Terms of a divergence cancel, of which each has a rounding of 16 bits where it is one operation, or none has."""

    def divergence(p, q):
        return F.kl_div(torch.log(p), q, reduction="batchmean")

    p, q = (torch.rand(16, 16384, generator=torch.Generator().manual_seed(n)).softmax(-1).bfloat16() for n in (0, 1))
    exact = divergence(p.double(), q.double())
    torch.testing.assert_close(compiled(divergence)(p, q).double(), exact, rtol=2.0**-8, atol=0)


A, B, C, V = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(3, 5), torch.randn(4)
I = torch.tensor([0, 2])
PLANES, AT = torch.randn(1, 2, 4, 4), torch.tensor([[[[0, 3], [8, 11]]] * 2]).view(1, 2, 2, 2)
WHOLE = {
    "_safe_softmax": lambda: (lambda x: ops._safe_softmax(x, -1), A), "logsumexp": lambda: (lambda x: x.logsumexp(-1), A),
    "silu": lambda: (lambda x: F.silu(x), A), "softplus": lambda: (F.softplus, A), "std": lambda: (lambda x: x.std(-1), A),
    "std_mean": lambda: (lambda x: torch.std_mean(x, -1), A),
    "baddbmm": lambda: (lambda a, b, c: torch.baddbmm(c, a, b, beta=2), A, B, C), "mv": lambda: (torch.mv, A[0], V),
    "dot": lambda: (torch.dot, V, V), "stack": lambda: (lambda x, y: torch.stack([x, y]), V, V + 1),
    "addmv": lambda: (lambda x, a, v: torch.addmv(x, a, v, alpha=2), A[0, :, 0], A[0], V),
    "select_scatter": lambda: (lambda x, y: x.select_scatter(y, 0, 1), A, A[0]), "tril": lambda: (torch.tril, A),
    "triu": lambda: (torch.triu, A), "roll": lambda: (lambda x: x.roll(1, 0), A), "detach": lambda: (torch.detach, A),
    **{f"{kind}_pad{n}d": (lambda kind=kind, n=n: (
        lambda x: getattr(ops, f"{kind}_pad{n}d")(x, [1, 1] * n), torch.randn(1, 2, *[4] * n)
    )) for kind in ("reflection", "replication") for n in (1, 2, 3)},
    **{f"{name}{n}d": (lambda name=name, n=n: (
        lambda x: getattr(ops, f"{name}{n}d")(x, [8] * n), torch.randn(1, 2, *[4] * n)
    )) for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)},
    "max_unpool2d": lambda: (lambda x, i: ops.max_unpool2d(x, i, [4, 4]), PLANES[..., :2, :2].contiguous(), AT),
    "max_unpool3d": lambda: (
        lambda x, i: ops.max_unpool3d(x, i, [2, 4, 4], [1, 2, 2], [0, 0, 0]), PLANES[..., :2, :2].contiguous()[None], AT[None]
    ),
    "index_add": lambda: (lambda x, i, y: x.index_add(0, i, y), A[0], I, A[0, :2]),
    "index_copy": lambda: (lambda x, i, y: x.index_copy(0, i, y), A[0], I, A[0, :2]),
    "col2im": lambda: (lambda x: F.fold(x, (4, 4), (2, 2)), torch.randn(1, 8, 9)),
}  # fmt: skip


def test_rows_that_are_whole_say_why():
    assert {name for name, row in TABLE.items() if row.whole} == {*WHOLE}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_operations_are_better_than_their_decompositions(name, monkeypatch):
    """In statements, or as the row says."""
    call, *given = WHOLE[name]()
    reason = TABLE[name].whole

    def text():
        graph, results, _ = opinfo.translated(call, given)
        return graph.program([r for r in results if hasattr(r, "shape")])

    mine = text()
    more = {op: f for op, f in CORE().items() if isinstance(op, torch._ops.OpOverload) and op._schema.name == f"aten::{name}"}
    if not more:
        pytest.skip("core ATen of this version keeps it, too")
    ours = aten.decompositions()
    monkeypatch.setattr(aten, "decompositions", lambda: ours | more)
    other = text()
    if reason in (ONE, SUMS):
        assert mine.count("\n") < other.count("\n"), other
    elif "negative" in reason:
        assert "< 0 else" in other and "< 0 else" not in mine
    elif "f64" in reason:
        assert "f64 =" in mine and "f64 =" not in other
    elif "flat" in reason:
        assert "[i0, i1]" in mine and "i1" not in other
    elif "windows" in reason:
        assert "==" in other or "clamp" in other, other
    else:
        assert name == "detach" and mine == other


@pytest.mark.parametrize("exponent", [torch.tensor([1, -2]), torch.tensor([0.5, 2.0])], ids=["integers", "floats"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_ldexp_has_the_type_of_eager_mode(dtype, exponent):
    x = torch.tensor([3, 5]).to(dtype)
    torch.testing.assert_close(aten.decompositions()[ops.ldexp.Tensor](x, exponent), torch.ldexp(x, exponent))

"""`flex_attention`: score functions and masks are part of a partition, forward and backward, with eager mode's meaning."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

from tools import chains  # noqa: E402
from tools.lowering import planned  # noqa: E402
from tools.pytorch import assert_agrees, compiled, texts_of  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.core.diagnostics import Source  # noqa: E402
from tilec.torch.flex_attention import attention  # noqa: E402

nn = torch.nn
attend, block_mask = flex.flex_attention, flex.create_block_mask


@pytest.fixture(autouse=True)
def on_a_cpu(fresh_torch, monkeypatch):
    """PyTorch refuses gradients on a CPU, though its operator has them."""
    monkeypatch.setattr(flex, "_validate_device", lambda *given: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def masked(function, rows=12, columns=12, batches=None, heads=None, **how):
    return block_mask(function, batches, heads, rows, columns, device="cpu", **how)


def causal(b, h, i, j):
    return i >= j


def qkv(heads=4, groups=4, rows=12, columns=12, depth=8, values=8, dtype=torch.float32, batches=2, keys=None, grad=True):
    torch.manual_seed(0)
    q = torch.randn(batches, heads, rows, depth, dtype=dtype)
    k, v = (torch.randn(keys or batches, groups, columns, n, dtype=dtype) for n in (depth, values))
    return [x.requires_grad_(grad) for x in (q, k, v)]


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


DOCUMENTS, LENGTHS = torch.arange(12) // 5, torch.tensor([3, 7])
VISIBLE, OFFSET = torch.rand(12, 12, generator=torch.Generator().manual_seed(1)) < 0.6, torch.tensor(4)
WIDTH, CAP = 3, 20.0


def near(width):
    def inside(b, h, i, j):
        return i - j <= width

    return inside


def natten(side, reach):
    def visible(b, h, i, j):
        return ((i // side - j // side).abs() <= reach) & ((i % side - j % side).abs() <= reach)

    return visible


MASKS = {
    "causal": causal,
    "window": flex.and_masks(causal, near(WIDTH)),
    "band": flex.or_masks(lambda b, h, i, j: i == j, lambda b, h, i, j: (i - j).abs() == 2),
    "documents": lambda b, h, i, j: (i >= j) & (DOCUMENTS[i] == DOCUMENTS[j]),
    "prefixes": lambda b, h, i, j: (i >= j) | (j < LENGTHS[b]),
    "padded": lambda b, h, i, j: j < LENGTHS[b],
    "natten": natten(4, 1),
    "table": lambda b, h, i, j: VISIBLE[i, j],
    "rows of a table": lambda b, h, i, j: VISIBLE[i][j],
    "heads": lambda b, h, i, j: (h % 2 == 0) | (i >= j),
    "dilated": lambda b, h, i, j: (i >= j) & ((i - j) % 3 == 0),
    "cache": lambda b, h, i, j: i + OFFSET >= j,
    "nothing in some rows": lambda b, h, i, j: (i > 4) & (j > 2) & (i != 9),
}
"""Functions of batch, head, row and column; what they name outside is captured."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    """Block masks as they are made for 128 rows and columns, and for few."""
    batched = {"batches": 2} if name in ("prefixes", "padded") else {}
    by_heads = {"heads": 4} if name == "heads" else {}
    for how in {}, {"BLOCK_SIZE": 4}:
        mask = masked(MASKS[name], **batched, **by_heads, **how)
        assert_agrees(lambda q, k, v: attend(q, k, v, block_mask=mask), *qkv(), backward=True)  # noqa: B023
        assert tilec.torch.report().share == 1, str(tilec.torch.report())


def slopes(s, b, h, i, j, slope):
    return s - slope[h] * (i - j)


SCORES = {
    "slopes": (slopes, [(4,)]),
    "softcap": (lambda s, b, h, i, j: CAP * torch.tanh(s / CAP), []),
    "bias": (lambda s, b, h, i, j, bias: s + bias[b, h, i, j], [(2, 4, 12, 12)]),
    "bias of heads": (lambda s, b, h, i, j, bias: s + bias[h, i, j], [(4, 12, 12)]),
    "distances": (lambda s, b, h, i, j, table: s + table[h, i - j + 11], [(4, 23)]),
    "clamped distances": (lambda s, b, h, i, j, table: s + table[(i - j).clamp(-3, 3) + 3, h], [(7, 4)]),
    "documents' biases": (lambda s, b, h, i, j, bias: s + bias[DOCUMENTS[i], DOCUMENTS[j]], [(3, 3)]),
    "first of a bias": (lambda s, b, h, i, j, bias: s + bias[0] * j, [(3,)]),
    "temperatures": (lambda s, b, h, i, j, t, u: s * t[h].exp() + u[i] * j, [(4,), (12,)]),
    "cosines": (lambda s, b, h, i, j: s * torch.cos((i - j) * 0.1), []),
    "masked by hand": (lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")), []),
    "no slope": (lambda s, b, h, i, j: s / (i - j), []),
    "places alone": (lambda s, b, h, i, j: s * 0 + i * 0.1 - j * 0.2, []),
    "rounded": (lambda s, b, h, i, j: s.to(torch.float16).to(s.dtype) * 1.5, []),
    "sigmoid": (lambda s, b, h, i, j, g: torch.sigmoid(g[b, i]) * s, [(2, 12)]),
}
"""Functions of a score and its place, with the shapes of what they capture."""


@pytest.mark.parametrize("name", [n if n == "distances" else pytest.param(n, marks=pytest.mark.slow) for n in SCORES])
def test_scores(name):
    """Gradients of what is captured, too. One of a score whose slope is infinite where it is masked is no NaN."""
    function, shapes = SCORES[name]
    mask = masked((lambda b, h, i, j: i > j) if name == "no slope" else causal)

    def run(q, k, v, *captured):
        return attend(q, k, v, lambda *at: function(*at, *captured), block_mask=mask)

    assert_agrees(run, *qkv(), *(leaf(*shape) for shape in shapes), backward=True)
    counts = tilec.torch.report().reasons
    assert not counts if name not in ("clamped distances", "documents' biases") else set(counts) <= {
        "index_put: writes to computed positions"
    }, str(tilec.torch.report())  # fmt: skip


@pytest.mark.slow
def test_a_gradient_that_eager_mode_has_not():
    """That of a number which every score is multiplied by."""
    q, k, v = qkv()
    temperature = torch.tensor(0.7, requires_grad=True)
    found = compiled(lambda q, k, v: attend(q, k, v, lambda s, b, h, i, j: s * temperature))(q, k, v)
    wanted = ((q @ k.mT * 8**-0.5) * temperature).softmax(-1) @ v
    torch.testing.assert_close(found, wanted)
    given = (q, k, v, temperature)
    torch.testing.assert_close(*(torch.autograd.grad(o.square().sum(), given) for o in (found, wanted)))


OPTIONS = {
    "scale": ({"scale": 0.3}, {}),
    "groups": ({"enable_gqa": True}, {"groups": 2}),
    "one group": ({"enable_gqa": True}, {"groups": 1}),
    "options": ({"kernel_options": {"BLOCK_M": 32, "ROWS_GUARANTEED_SAFE": True}}, {}),
    "keys of one batch": ({}, {"keys": 1}),
    "wider values": ({}, {"values": 16}),
    "other lengths": ({}, {"rows": 7, "columns": 20}),
    "one row": ({}, {"rows": 1}),
    "f64": ({}, {"dtype": torch.float64}),
    "bf16": ({}, {"dtype": torch.bfloat16}),
    "f16": ({}, {"dtype": torch.float16}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    how, sizes = OPTIONS[name]
    mask = masked(lambda b, h, i, j: i + 4 >= j, sizes.get("rows", 12), sizes.get("columns", 12), 2 if "keys" in sizes else None)
    function = lambda q, k, v: attend(q, k, v, lambda s, b, h, i, j: s - 0.1 * (i - j), block_mask=mask, **how)  # noqa: E731
    assert_agrees(function, *qkv(**sizes), backward=True)
    assert tilec.torch.report().share == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics(dtype):
    """Rows that see nothing have results of 0, sums of -inf and no gradient; gradients by the sums as well."""
    mask = masked(MASKS["nothing in some rows"])

    def run(q, k, v):
        o, aux = attend(q, k, v, block_mask=mask, return_aux=flex.AuxRequest(lse=True))
        return o, aux.lse

    given = qkv(dtype=dtype)
    assert_agrees(run, *given, backward=True)
    with torch.no_grad():
        o, lse = compiled(run)(*given)
    assert not o[:, :, 9].any() and (lse[:, :, 9] == -torch.inf).all() and lse[:, :, 8].isfinite().all()


def test_results_are_those_of_pytorchs_formula():
    """Maxima of rows, too, which PyTorch does not return on a CPU."""
    from torch._higher_order_ops.flex_attention import math_attention

    given = qkv(groups=2)
    score = torch.fx.symbolic_trace(lambda s, b, h, i, j: s * 2 - (i - j).abs() * h)
    mask = torch.fx.symbolic_trace(lambda b, h, i, j: (i > 3) & (i >= j + b))
    for found, wanted in zip(attention(*given, score, (mask,), 0.3, {}), math_attention(*given, score, (mask,), 0.3, {})):
        torch.testing.assert_close(found, wanted)


@pytest.mark.slow
def test_results_lie_as_queries_do():
    """Heads behind places, as a projection leaves them."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.slope = nn.Linear(32, 96), nn.Parameter(torch.randn(4))

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
            slope = self.slope
            o = attend(q, k, v, lambda s, b, h, i, j: s - slope[h].abs() * (i - j), block_mask=masked(causal))
            return o.transpose(1, 2).flatten(-2)

    torch.manual_seed(0)
    assert_agrees(Layer(), torch.randn(2, 12, 32, requires_grad=True), backward=True)
    assert tilec.torch.report().share == 1


@pytest.mark.slow
def test_autocast_and_checkpoints():
    from torch.utils.checkpoint import checkpoint

    mask = masked(causal)

    def under_autocast(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(q, k, v, block_mask=mask)

    def again(q, k, v):
        return checkpoint(lambda *x: attend(*x, block_mask=mask).sin(), q, k, v, use_reentrant=False)

    for function in (under_autocast, again):
        given = qkv()
        found, wanted = compiled(function)(*given), function(*given)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(o.float().sum(), given) for o in (found, wanted)]
        torch.testing.assert_close(*gradients, rtol=0.02 if found.dtype == torch.bfloat16 else 1e-5, atol=0.02)


@pytest.mark.slow
def test_sizes_that_change():
    slope = torch.rand(4)

    def run(q, k, v):
        mask = masked(causal, q.shape[2], k.shape[2])
        return attend(q, k, v, lambda s, b, h, i, j: s - slope[h] * (i - j), block_mask=mask)

    function = compiled(run, dynamic=True)
    for length in (12, 20, 33):
        given = qkv(rows=length, columns=length, grad=False)
        torch.testing.assert_close(function(*given), run(*given))
    assert tilec.torch.report().share == 1


@pytest.mark.slow
@pytest.mark.parametrize("name, chains", [
    ("full", (1, 2)), ("causal", (1, 2)), ("window", (1, 2)), ("softcap", (1, 2)), ("slopes", (1, 3)), ("sums", (1, 2)),
])  # fmt: skip
def test_one_kernel_for_a_gpu(name, chains, monkeypatch, tmp_path):
    """Forward is one contraction chain, whose loop a mask bounds. Backward has one for dq, one for dk and dv, or one for each where
    scores need integers, and a kernel for sums of rows."""
    slope = torch.rand(12)
    function = {"softcap": SCORES["softcap"][0], "slopes": lambda s, b, h, i, j: s - slope[h] * (i - j)}.get(name)
    mask = {"full": None, "window": masked(lambda b, h, i, j: (i >= j) & (i - j < 256), 1024, 1024)}
    mask = mask.get(name, masked(causal, 1024, 1024))
    aux = flex.AuxRequest(lse=True) if name == "sums" else None

    def run(q, k, v):
        made = attend(q, k, v, function, block_mask=mask, return_aux=aux)
        return made if aux is None else made[0] + made[1].lse.unsqueeze(-1).bfloat16()

    given = [torch.empty((4, 12, 1024, 64), dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    plans = [planned(Source("t.tile", text), None, {}) for text in texts_of(monkeypatch, tmp_path, run, *given)]
    found = tuple([type(k.options).__name__ for k in plan.kernels].count("ContractionChain") for plan in plans)
    assert found == chains and tuple(len(plan.kernels) for plan in plans) == (1, chains[1] + 1)


@pytest.mark.slow
def test_a_kernel_for_a_gpu(monkeypatch, tmp_path):
    """Run thread by thread in the interpreter, and its printed text by the emulator."""
    documents = torch.arange(72) // 30
    mask = masked(lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]), 72, 72)
    given = [torch.empty((1, 2, 72, 16), dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    run = lambda *x: attend(*x, SCORES["softcap"][0], block_mask=mask)  # noqa: E731
    forward, _ = texts_of(monkeypatch, tmp_path, run, *given)
    for printed in (False, True):
        chains.check(forward, {}, (64, 32), monkeypatch, printed=printed)

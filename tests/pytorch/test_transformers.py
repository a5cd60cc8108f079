"""PyTorch's fast paths of transformers in inference are operations that partitions have."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
nn, aten = torch.nn, torch.ops.aten


def layer(**how):
    torch.manual_seed(0)
    made = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, **how).eval()
    for p in made.parameters():
        nn.init.normal_(p, std=0.3)
    return made


PADDING = torch.arange(6) >= torch.tensor([[6], [4]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
LAYERS = {
    "plain": ({}, {}),
    "gelu": ({"activation": "gelu", "norm_first": True}, {}),
    "padded": ({}, {"src_key_padding_mask": PADDING}),
    "causal": ({"norm_first": True}, {"src_mask": CAUSAL}),
    "of bools": ({}, {"src_mask": CAUSAL < 0}),
    "both": ({"activation": "gelu"}, {"src_mask": CAUSAL < 0, "src_key_padding_mask": PADDING}),
    "for each head": ({}, {"src_mask": CAUSAL.expand(4, 6, 6).contiguous()}),
    "eps": ({"layer_norm_eps": 0.1, "norm_first": True}, {}),
}


@pytest.mark.parametrize("name", [n if n == "padded" else pytest.param(n, marks=pytest.mark.slow) for n in LAYERS])
def test_layers_of_an_encoder(name):
    how, masks = LAYERS[name]
    run = Masked(layer(**how), masks)
    with torch.no_grad():
        assert_agrees(run, torch.randn(2, 6, 16))
    report = tilec.torch.report()
    assert report.share == 1 and len(report.graphs[0].parts) == 1, str(report)


class Masked(nn.Module):
    def __init__(self, inner, masks):
        super().__init__()
        self.inner, self.masks = inner, masks

    def forward(self, x):
        return self.inner(x, **self.masks)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder(dtype):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(layer(), 2, norm=nn.LayerNorm(16)).eval().to(dtype)
    with torch.no_grad():
        assert_agrees(model, torch.randn(2, 6, 16, dtype=dtype))
    assert tilec.torch.report().share == 1


@pytest.mark.slow
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("kind", [None, 0, 1, 2])
def test_attention_of_several_heads(kind, average):
    """Of one tensor and of three, with the weights; a row that sees nothing is NaN, as in PyTorch."""
    torch.manual_seed(0)
    hidden = torch.rand(2, 2, 6, 6) < 0.3
    mask = {None: None, 0: CAUSAL < 0, 1: PADDING, 2: hidden}[kind]
    weights = [torch.randn(48, 16) / 4, torch.randn(48), torch.randn(16, 16) / 4, torch.randn(16)]

    def run(q, k, v, *given):
        attend = lambda *x: aten._native_multi_head_attention(*x, 16, 2, *given, mask, True, average, kind)  # noqa: E731
        return *attend(q, q, q), *attend(q, k, v)

    with torch.no_grad():
        assert_agrees(run, *(torch.randn(2, 6, 16) for _ in range(3)), *weights)
    assert tilec.torch.report().share == 1


@pytest.mark.slow
def test_masked_softmaxes():
    x, rows = torch.randn(2, 3, 6, 6), torch.zeros(6, 6, dtype=torch.bool)
    rows[2] = True

    def run(x):
        return (
            aten._masked_softmax(x, CAUSAL < 0, 3, 0),
            aten._masked_softmax(x, PADDING, None, 1),
            aten._masked_softmax(x, (x > 0.4), -1, 2),
            aten._masked_softmax(x, rows, 3, 0),
        )

    with torch.no_grad():
        found, wanted = torch.compile(run, backend="tilec")(x), run(x)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert found[3][0, 0, 2].isnan().all() and tilec.torch.report().share == 1


@pytest.mark.slow
def test_gradients_need_the_whole():
    """With gradients PyTorch takes no fast path, and so it is here."""
    assert_agrees(layer(dropout=0.0).train(), torch.randn(2, 6, 16, requires_grad=True), backward=True)
    assert tilec.torch.report().share == 1

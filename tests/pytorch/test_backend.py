"""Models compiled by `torch.compile(model, backend="tilec")` are the models."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, mlp  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

nn, F = torch.nn, torch.nn.functional


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, groups=2), nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(F.relu(self.second(x)).mean((2, 3)))


class Block(nn.Module):
    """Of a GPT: attention with a causal mask, and two layers behind it."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.layers(self.norm2(x))


class Cached(nn.Module):
    """One step of attention: keys and values are written into a cache at a given place."""

    def __init__(self, width: int = 8, length: int = 6) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.register_buffer("keys", torch.zeros(2, length, width))
        self.register_buffer("values", torch.zeros(2, length, width))

    def forward(self, x, place):
        self.keys.index_copy_(1, place, self.k(x))
        self.values[:, place] = self.v(x)
        seen = torch.arange(self.keys.shape[1]) <= place
        return F.scaled_dot_product_attention(self.q(x), self.keys, self.values, attn_mask=seen[None, None, :])


def test_mlp():
    assert_agrees(mlp(), torch.randn(6, 8))
    (graph,) = tilec.torch.report().graphs
    assert graph.kind == "inference" and graph.taken == graph.operations == 3 and len(graph.parts) == 1


def test_mlp_is_trained():
    assert_agrees(mlp(), torch.randn(6, 8, requires_grad=True), backward=True)
    forward, backward = tilec.torch.report().graphs
    assert (forward.kind, backward.kind) == ("forward", "backward") and tilec.torch.report().share == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_convolutions(mode):
    model = Convolutions()
    assert_agrees(getattr(model, mode)(), torch.randn(2, 3, 16, 16), backward=mode == "train", calls=2)


@pytest.mark.slow
def test_channels_last():
    model = Convolutions().to(memory_format=torch.channels_last)
    assert_agrees(model, torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last), backward=True)


@pytest.mark.slow
def test_block():
    assert_agrees(Block(), torch.randn(2, 6, 16, requires_grad=True), backward=True)
    report = tilec.torch.report()
    assert report.share == 1 and all(len(g.parts) == 1 for g in report.graphs), str(report)


@pytest.mark.slow
def test_attention_of_16_bits_multiplies_16_bits(tmp_path, monkeypatch):
    """PyTorch's formula casts its factors to f32; no product of the programs does."""
    monkeypatch.setenv("TILEC_TORCH_DUMP", str(tmp_path))
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    q, k, v = (torch.randn(2, 2, 6, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    assert_agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v, backward=True)
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() == before
    texts = [p.read_text() for p in tmp_path.rglob("*.tile")]
    assert len(texts) == 2 and all("bmm" in t and "to_copy" not in t.partition("bmm")[0] for t in texts)


@pytest.mark.slow
def test_a_cache_is_written_in_place():
    model = Cached()
    before = model.keys.data_ptr()
    assert_agrees(model, torch.randn(2, 1, 8), torch.tensor([2]), calls=2)
    assert model.keys.data_ptr() == before


@pytest.mark.slow
def test_another_model_under_autocast():
    def step(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.softmax(x @ w, -1)

    assert_agrees(step, torch.randn(5, 8), torch.randn(8, 7))


def test_modes_of_gradients():
    """A model compiled once is right where gradients are recorded, where they are not, and in inference mode."""
    model = mlp()
    compiled, x = torch.compile(model, backend="tilec"), torch.randn(6, 8)
    for context in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with context:
            found, eager = compiled(x), model(x)
        assert found.requires_grad == eager.requires_grad
        torch.testing.assert_close(found, eager)


def test_equal_layers_are_compiled_once():
    from tilec.torch import shared

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(torch.nonzero(self.a(x)).float()[:, :1].expand(-1, 4)) if False else self.b(torch.special.i0e(self.a(x)))

    shared.forget()
    with torch.no_grad():
        assert_agrees(Twice(), torch.randn(3, 4))
    assert shared.compiled() == 1
    (graph,) = tilec.torch.report().graphs
    assert len(graph.parts) == 2 and [e.operation for e in graph.eager] == ["special_i0e"]


def test_long_compilations_report_their_progress(monkeypatch, tmp_path):
    """On a terminal, as the command line does."""
    import io
    import sys

    from tilec.process import progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    monkeypatch.setattr(progress, "FIRST", 0.001)
    monkeypatch.setattr(progress, "REPEATED", 0.001)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert_agrees(lambda x: torch.exp(x * 3.25) + 1, torch.randn(4, 3))
    assert "tilec is still compiling a graph of inference, " in stream.getvalue()

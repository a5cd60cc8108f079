"""Programs of training steps run as several calls, between which PyTorch frees what is read for the last time."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import assert_agrees, compiled  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.driver import executable  # noqa: E402
from tilec.runtime import segments as cuts  # noqa: E402
from tilec.torch import segments  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


@pytest.fixture
def made(monkeypatch):
    """The segmented calls of programs that are compiled from now on, each cut wherever that spares anything."""
    found: list[segments.Segmented] = []
    prepare = segments.prepare

    def kept(*args):
        if (one := prepare(*args)) is not None:
            found.append(one)
        return one

    monkeypatch.setattr(cuts, "WORTH", 0.0)
    monkeypatch.setattr(segments, "prepare", kept)
    return found


def layers(count: int = 4) -> torch.nn.Module:
    def layer():
        parts = torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16), torch.nn.LayerNorm(16)
        return torch.nn.Sequential(*parts)

    return torch.nn.Sequential(*(layer() for _ in range(count)))


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(8)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).reshape(x.shape))


def images() -> torch.nn.Module:
    parts = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    return torch.nn.Sequential(*parts, torch.nn.Conv2d(8, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU())


@pytest.mark.parametrize(
    ("model", "given"),
    [(layers, (32, 16)), (lambda: torch.nn.Sequential(Attention(), Attention()), (4, 8, 16)), (images, (2, 3, 8, 8))],
    ids=["layers", "attention", "images"],
)
def test_gradients_agree(model, given, made):
    torch.manual_seed(0)
    assert_agrees(model(), torch.randn(given, requires_grad=True), backward=True, calls=3)
    assert max(len(one.calls) for one in made) > 2


def test_activations_are_freed_on_the_way(made):
    """What a call read for the last time is gone when the next one begins, be it given or made."""
    model = compiled(layers())
    model(torch.randn(32, 16)).sum().backward()
    backward = max(made, key=lambda one: len(one.calls))
    seen: dict[int, weakref.ref] = {}  # by the number of the array
    done: set[int] = set()
    gone = []

    def watched(one, first):
        def function(*values):
            assert not [n for n in done if n in seen and seen[n]() is not None]
            numbers = range(len(one.takes)) if first else one.takes
            given = [values[k] for k in one.takes] if first else values
            seen.update((n, weakref.ref(v)) for n, v in zip(numbers, given) if first or n not in seen)
            results = one.function(*values)
            seen.update((n, weakref.ref(r)) for n, r in zip(one.makes, results))
            done.update(n for n in one.done if n not in held)
            gone.append(len(done))
            return results

        return replace(one, function=function)

    weights = {p.data_ptr() for p in model.parameters()}
    held = {n for n, k in enumerate(backward.calls[0].takes)}
    run = backward.run

    def reported(values):  # what nobody else has
        held.clear()
        held.update(n for n, k in enumerate(backward.calls[0].takes) if values[k].data_ptr() in weights)
        return run(values)

    backward.calls = [watched(one, n == 0) for n, one in enumerate(backward.calls)]
    backward.run = reported
    model(torch.randn(32, 16)).sum().backward()
    assert gone[-1] > gone[0] > 0 and len(gone) == len(backward.calls) > 2


def test_results_and_what_others_hold_stay(made):
    """Results of the model that are saved as well, and gradients that are asked for twice."""
    model = layers(3)

    def several(x):
        hidden = [x := layer(x) for layer in model]
        return x.sum(), *hidden

    total, *hidden = compiled(several)(torch.ones(32, 16))
    values = [h.detach().clone() for h in hidden]
    total.backward()
    assert all(torch.equal(h, v) for h, v in zip(hidden, values))
    model.zero_grad()
    torch._dynamo.reset()
    total = compiled(several)(torch.ones(32, 16))[0]
    total.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    total.backward()
    for p, g in zip(model.parameters(), once):
        torch.testing.assert_close(p.grad, 2 * g)


def test_values_that_lie_otherwise(made, monkeypatch):
    """The whole program runs, by copies of them."""
    run, seen = segments.Segmented.run, []
    model, x = compiled(layers()), torch.randn(32, 16)
    model(x).sum().backward()
    monkeypatch.setattr(segments.Segmented, "run", lambda one, values: seen.append((one, [*values])) or run(one, values))
    model(x).sum().backward()
    backward, values = max(seen, key=lambda call: len(call[0].calls))
    expected = run(backward, [*values])
    gaps = [torch.stack([v, v], -1)[..., 0] if isinstance(v, torch.Tensor) and v.dim() else v for v in values]
    monkeypatch.setattr(backward, "calls", backward.calls[:1])
    for found, e in zip(run(backward, gaps), expected, strict=True):
        torch.testing.assert_close(found, e)


def test_inference_is_one_call(made, monkeypatch):
    """Its temporaries lie in its results where these have room; each call gives what the first one gave."""
    original, found = executable.Executable.with_scratch_results, []
    monkeypatch.setattr(executable.Executable, "with_scratch_results", lambda *args: found.append(original(*args)) or found[-1])
    model, x = layers().requires_grad_(False), torch.randn(32, 16)

    def several(x):
        y = model(x)
        return (y @ y.t()).repeat(8, 1), y

    call_ = compiled(several)
    first, *others = ([t.clone() for t in call_(x)] for _ in range(3))
    for one, e in zip(first, several(x), strict=True):
        torch.testing.assert_close(one, e)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other))
    with torch.no_grad():
        compiled(layers())(x)
    assert not made
    assert any(t.within is not None for one in found for t in one.emitted.temporaries)


def test_equal_partitions_have_one_program(monkeypatch):
    """It is loaded once, with temporaries in results as without."""
    original, found = executable.Executable.with_scratch_results, []
    monkeypatch.setattr(executable.Executable, "with_scratch_results", lambda *args: found.append(original(*args)) or found[-1])

    model, x = layers(), torch.randn(32, 16)
    with torch.no_grad():
        for _ in range(3):
            torch._dynamo.reset()
            torch.testing.assert_close(compiled(model)(x), model(x))
    assert len(found) == 3 and len({id(part) for part in found}) == 1


def test_the_report_reports_what_is_spared(made):
    compiled(layers())(torch.randn(32, 16)).sum().backward()
    *_, backward = tilec.torch.report().graphs
    (part,) = backward.parts
    assert part.calls > 2 and part.needed < part.whole
    assert f"part0: {part.calls} calls, for " in str(backward)


@pytest.mark.gpu
def test_the_peak_of_a_step_on_a_gpu(monkeypatch):
    """It falls by what the report says, but for what PyTorch holds beside: the same kernels give the same gradients."""
    found = []
    monkeypatch.setattr(executable.Executable, "_memoised", lambda self, key, make: make())  # both have programs of equal text
    for most in (1, cuts.MOST):
        torch._dynamo.reset()
        monkeypatch.setattr(cuts, "MOST", most)
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
                                      for _ in range(6))).cuda()  # fmt: skip
        call_, x = compiled(model), torch.randn(8192, 512, device="cuda")
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            call_(x).sum().backward()
        (part,) = tilec.torch.report().graphs[-1].parts
        found.append((torch.cuda.max_memory_allocated() - held, part, [p.grad.clone() for p in model.parameters()]))
    (whole, _, expected), (peak, part, gradients) = found
    assert whole - peak > (part.whole - part.needed) / 2 > 0
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))

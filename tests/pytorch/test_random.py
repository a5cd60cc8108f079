"""Random numbers inside partitions: their distributions, seeds, masks of dropouts in forward and backward, what stays PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tools.philox import expected  # noqa: E402
from tools.pytorch import compiled  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tilec.torch  # noqa: E402
from tilec.torch import backend, philox, random_numbers  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
F, aten = torch.nn.functional, torch.ops.aten
SHAPE = (131, 257)
STRICT = {"strict": True}
KOLMOGOROV = 1.95  # of sqrt(n) times the largest difference: exceeded by one in a thousand samples

uniform = lambda v: v.clamp(0, 1)  # noqa: E731
normal = torch.special.ndtr
exponential = lambda v: -torch.expm1(-v)  # noqa: E731
DRAWN = {
    "rand": (lambda x: torch.rand(x.shape), uniform),
    "rand f64": (lambda x: torch.rand(x.shape, dtype=torch.float64), uniform),
    "rand_like": (lambda x: torch.rand_like(x), uniform),
    "uniform": (lambda x: x.clone().uniform_(-1, 3), lambda v: uniform((v + 1) / 4)),
    "randn": (lambda x: torch.randn(x.shape), normal),
    "randn f64": (lambda x: torch.randn(x.shape, dtype=torch.float64), normal),
    "randn_like": (lambda x: torch.randn_like(x), normal),
    "normal_": (lambda x: x.clone().normal_(1, 2), lambda v: normal((v - 1) / 2)),
    "normal": (lambda x: torch.normal(x + 3, 2.0), lambda v: normal((v - 3) / 2)),
    "normal of tensors": (lambda x: torch.normal(x + 3, x + 0.5), lambda v: normal((v - 3) * 2)),
    "log_normal": (lambda x: x.clone().log_normal_(0.5, 2), lambda v: normal((v.log() - 0.5) / 2)),
    "exponential": (lambda x: x.clone().exponential_(2), lambda v: exponential(2 * v)),
    "cauchy": (lambda x: x.clone().cauchy_(1, 2), lambda v: ((v - 1) / 2).atan() / math.pi + 0.5),
    "rrelu": (lambda x: F.rrelu(x - 1, 0.25, 0.5, True), lambda v: uniform((v + 0.5) * 4)),
}
CHANCES = {  # of each value
    "bernoulli": (lambda x: x.clone().bernoulli_(0.3), {0: 0.7, 1: 0.3}),
    "bernoulli of a tensor": (lambda x: torch.bernoulli(x + 0.3), {0: 0.7, 1: 0.3}),
    "bernoulli_ of a tensor": (lambda x: x.clone().bernoulli_(x.double() + 0.3), {0: 0.7, 1: 0.3}),
    "dropout": (lambda x: F.dropout(x + 3, 0.25), {0: 0.25, 4: 0.75}),
    "geometric": (lambda x: x.clone().geometric_(0.5), {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.0625}),
    "randint": (lambda x: torch.randint(-2, 3, x.shape), dict.fromkeys(range(-2, 3), 0.2)),
    "randint_like": (lambda x: torch.randint_like(x, 5), dict.fromkeys(range(5), 0.2)),
    "rand bf16": (lambda x: torch.rand(x.shape, dtype=torch.bfloat16), {k / 256: 1 / 256 for k in range(256)}),
}


def drawn(function):
    """What the compiled function of zeros gives for seed 0. It draws the same again for this seed, and other numbers with each
    call."""
    x, results = torch.zeros(SHAPE), []
    call = compiled(function, options=STRICT)
    for seed in (0, None, 0):
        if seed is not None:
            torch.manual_seed(seed)
        results.append(call(x))
    values, others, again = results
    assert torch.equal(values, again) and not torch.equal(values, others)
    assert values.shape == SHAPE and values.dtype == function(x).dtype
    return values


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_distributions(name):
    function, cumulative = DRAWN[name]
    values = drawn(function)
    below = cumulative(values.double().flatten().sort()[0])
    n = len(below)
    steps = torch.arange(n + 1) / n
    assert max((steps[1:] - below).max(), (below - steps[:-1]).max()) * n**0.5 < KOLMOGOROV
    assert len(values.unique()) > 0.99 * n


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANCES)
def test_chances(name):
    function, chances = CHANCES[name]
    values = drawn(function)
    for value, chance in chances.items():
        count, n = int((values == value).sum()), values.numel()
        assert abs(count - n * chance) < 4.5 * (n * chance * (1 - chance)) ** 0.5
    if sum(chances.values()) == 1:
        assert {*values.unique().tolist()} == {*chances}


@pytest.mark.slow
def test_narrow_types_do_not_reach_the_end():
    def function(x):
        return torch.rand_like(x), x.clone().uniform_(1, 3), x.clone().exponential_()

    for dtype in (torch.bfloat16, torch.float16):
        unit, between, positive = compiled(function, options=STRICT)(torch.zeros(512, 512, dtype=dtype))
        assert unit.max() < 1 and unit.min() == 0 and between.max() < 3 and between.min() == 1 and positive.min() > 0


def test_the_stream_is_that_of_the_language():
    """Rows begin at multiples of 4; the kernel that PyTorch runs gives the same bits as a partition."""
    seeds = torch.tensor([3, -5, 2**62 + 7])
    eager = philox.operator()(seeds, 1, [2, 3, 6])
    rows = [expected(-5, 8 * row, 6) for row in range(6)]
    np.testing.assert_array_equal(eager.view(6, 6).numpy(), np.stack(rows))
    np.testing.assert_array_equal(philox.operator()(seeds, 2, [5, 1]).view(5).numpy(), expected(seeds[2].item(), 0, 5))
    call = compiled(lambda s: philox.operator()(s, 1, [2, 3, 6]), options=STRICT)
    assert torch.equal(call(seeds), eager)
    torch.library.opcheck(philox.operator(), (seeds, 1, [2, 3, 6]))


# ---- dropouts --------------------------------------------------------------------------------------------------------


def saved_by(function, *given):
    """What forward saves, in graphs that the function's training makes."""
    saved, before = [], backend.compile_aten

    def spied(gm, inputs, kind, options):
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        saved.extend(n.meta["val"] for n in output.args[0] if kind == "forward" and isinstance(n, torch.fx.Node))
        return before(gm, inputs, kind, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "compile_aten", spied)
        result = compiled(function, options=STRICT)(*given)
    return result, saved[1:]


def test_backward_draws_the_mask_again():
    """Forward saves the seed."""
    x = torch.ones(SHAPE, requires_grad=True)
    y, saved = saved_by(lambda x: F.dropout(x, 0.25), x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()) and [(s.shape, s.dtype) for s in saved] == [((1,), torch.int64)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_have_masks_of_their_own(dtype):
    x = torch.ones(SHAPE, dtype=dtype, requires_grad=True)
    call = compiled(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5), F.dropout(F.dropout(x, 0.3), 0.3)), options=STRICT)
    first, second, both = call(x)
    kept = [(v > 0).double() for v in (first, second)]
    assert abs((kept[0] * kept[1]).mean() - 0.25) < 0.01
    assert abs((both > 0).double().mean() - 0.49) < 0.01
    for y in (first, second, both):
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(grad, y.detach())


def test_gradients_of_slopes_that_are_drawn():
    x = torch.linspace(-2, 2, 999).requires_grad_()
    y = compiled(lambda x: F.rrelu(x, 0.25, 0.5, True), options=STRICT)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())
    assert 0.25 <= x.grad.min() < 0.26 and 0.49 < x.grad[:499].max() < 0.5 and bool((x.grad[500:] == 1).all())


@pytest.mark.parametrize("p", [0.0, 1.0, 1e-3])
@pytest.mark.parametrize("train", [True, None, False])
def test_native_dropout(p, train):
    """Its mask is a result, and of the ends of p nothing is drawn wrong. What is not a number stays so."""
    x = torch.linspace(1, 2, 1000)
    x[3] = torch.nan
    y, kept = compiled(lambda x: aten.native_dropout(x, p, train))(x)
    assert kept.dtype == torch.bool and y[3].isnan()
    expected = x if train is False or p == 0 else x * kept * (0 if p == 1 else 1 / (1 - p))
    torch.testing.assert_close(y, expected, equal_nan=True)
    share = 1 if train is False else 1 - p
    assert abs(kept.double().mean() - share) <= (0.004 if 0 < p < 1 else 0)


def test_numbers_lie_as_the_result_does():
    """In channels last; in a view of a part."""
    x = torch.ones(2, 8, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    y, r = compiled(lambda x: (F.dropout(x, 0.3), torch.rand_like(x)), options=STRICT)(x)
    y.sum().backward()
    assert y.stride() == r.stride() == x.stride() and torch.equal(x.grad, y.detach())
    z = torch.ones(6, 8, requires_grad=True)
    y = compiled(lambda z: F.dropout(z[:, ::2].t(), 0.3), options=STRICT)(z)
    y.sum().backward()
    assert torch.equal(z.grad[:, ::2].t(), y.detach()) and y.stride() == F.dropout(z[:, ::2].t(), 0.3).stride()


@pytest.mark.slow
def test_changing_sizes():
    call = compiled(lambda x: F.dropout(x, 0.3) + torch.rand(x.shape[1]), dynamic=True, options=STRICT)
    for shape in ((5, 7), (6, 9), (64, 130)):
        x = torch.ones(shape, requires_grad=True)
        y = call(x)
        y.sum().backward()
        assert torch.equal(x.grad > 0, y > 1) and abs((x.grad > 0).double().mean() - 0.7) < 1.5 / x.numel() ** 0.5
    assert [g.kind for g in tilec.torch.report().graphs] == ["forward", "backward"]


@pytest.mark.slow
def test_forward_by_pytorch_and_backward_by_a_kernel():
    """In the background, either may run a partition at any time."""
    call, x = (
        compiled(lambda x: F.dropout(x, 0.3) * 2, options={"background": True}),
        torch.ones(64, 9, requires_grad=True),
    )
    for _ in range(3):
        y = call(x)
        tilec.torch.wait()
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad, y.detach())


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.randint(0, 257, (9,), dtype=torch.uint8), lambda: torch.randint(-129, 0, (9,), dtype=torch.int8),
        lambda: torch.randint(0, 3, (9,), dtype=torch.bool), lambda: torch.randint(0, 70000, (9,), dtype=torch.float16),
        lambda: torch.empty(9).uniform_(-3e38, 3e38), lambda: torch.empty(9).uniform_(0, math.inf),
        lambda: torch.empty(9, dtype=torch.float16).uniform_(0, 70000),
    ],
)  # fmt: skip
def test_numbers_that_a_type_has_not_are_an_error(function):
    with pytest.raises(RuntimeError) as eager:
        function()
    with pytest.raises(RuntimeError) as found:
        compiled(function)()
    assert str(found.value).partition(",")[0] == str(eager.value).partition(",")[0]


def test_the_ends_of_types_are_drawn():
    def function():
        whole = torch.randint(-128, 128, (999,), dtype=torch.int8), torch.randint(0, 256, (999,), dtype=torch.uint8)
        ends = torch.randint(-(2**63), 3 - 2**63, (99,)), torch.randint(2**63 - 4, 2**63 - 1, (99,))
        return *whole, *ends, torch.randint(-5, 2**32 - 5, (99,)), torch.randint(7, 8, ())

    drawn = compiled(function, options=STRICT)()
    signed, unsigned, low, high, far, one = ([v.min().item(), v.max().item()] for v in drawn)
    assert signed[0] < -120 and signed[1] > 120 and unsigned[0] < 8 and unsigned[1] > 247
    assert low == [-(2**63), 2 - 2**63] and high == [2**63 - 4, 2**63 - 2] and one == [7, 7]
    assert -5 <= far[0] < 2**30 and 2**31 < far[1] < 2**32 - 5


@pytest.mark.parametrize("shapes", [((6, 1), (1, 7)), ((6, 1, 5), (7, 1)), ((7,), (6, 1)), ((6, 7), (6, 7))])
def test_symbols_of_sizes_are_read_where_they_are(shapes):
    """Each of two tensors may have one element along a dimension of the other."""
    mean, std = torch.zeros(shapes[0]), torch.ones(shapes[1])
    y = compiled(lambda m, s: torch.normal(m, s), dynamic=True, options=STRICT)(mean, std)
    assert y.shape == torch.broadcast_shapes(*shapes) and len(y.unique()) == y.numel()


# ---- generators ------------------------------------------------------------------------------------------------------


def dropped(x):
    return F.dropout(x, 0.3).square()


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_checkpoint_draws_again_what_it_drew(reentrant, keeps):
    x = torch.ones(SHAPE, requires_grad=True)
    how = {"use_reentrant": reentrant, "preserve_rng_state": keeps}
    y = compiled(lambda x: checkpoint(dropped, x, **how), options=STRICT)(x)
    y.sum().backward()
    assert torch.equal(x.grad, 2 * y.detach())
    if keeps:  # around what is compiled, the generator's state is restored
        x.grad = None
        y = checkpoint(compiled(dropped, options=STRICT), x, **how)
        y.sum().backward()
        assert torch.equal(x.grad, 2 * y.detach())


def test_an_own_generator_is_asked_by_pytorch():
    x = torch.zeros(50, 3)
    generator = torch.Generator()
    draw = lambda x: [aten.uniform(x, 0, 1), aten.bernoulli.p(x, 0.5, generator=generator)]  # noqa: E731
    traced = make_fx(draw, tracing_mode="fake")(x)
    assert random_numbers.replace(traced.graph) == 1
    assert {n.target for n in traced.graph.nodes} >= {aten.bernoulli.p, philox.operator()}


@pytest.mark.parametrize("by", ["option", "inductor"])
def test_the_numbers_of_eager_mode(by):
    import torch._inductor.config as inductor

    function = lambda x: (F.dropout(x, 0.5), torch.rand(3), F.dropout(x * 2, 0.1) + torch.randn(5))  # noqa: E731
    options = {"fallback_random": True} if by == "option" else {}
    x, made = torch.ones(5, requires_grad=True), []
    with inductor.patch(fallback_random=by == "inductor"):
        for call in (function, compiled(function, options=options)):
            torch.manual_seed(3)
            made.append(call(x))
    torch.testing.assert_close(*made)
    assert {e.operation for g in tilec.torch.report().graphs for e in g.eager} == {"native_dropout", "rand", "randn"}


def test_what_stays_pytorchs():
    """Permutations, Poisson numbers, categories: with the generator that the seeds come from."""
    call = compiled(lambda x: (torch.randperm(20), torch.poisson(x), torch.multinomial(x[0], 2), torch.rand(4)))
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results.append(call(torch.ones(3, 5)))
    assert all(map(torch.equal, *results))
    assert {e.operation for g in tilec.torch.report().graphs for e in g.eager} == {"randperm", "poisson", "multinomial"}


def test_sizes_that_data_decide():
    def function(x):
        found = x[x > 0]
        return F.dropout(found, 0.5), torch.rand_like(found), torch.rand_like(x)

    x, made = torch.randn(50), []
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        call = compiled(function, fullgraph=True)
        for _ in range(2):
            torch.manual_seed(3)
            made.append(call(x))
    assert all(map(torch.equal, *made)) and len(made[0][1]) == (x > 0).sum()
    assert {e.operation for g in tilec.torch.report().graphs for e in g.eager} >= {"native_dropout", "rand_like"}


def test_one_draw_for_a_graph():
    """Two seeds for three operations, of which one reads none: the state of the generator moves as by a draw of them."""
    call = compiled(lambda x: F.dropout(x, 0.5) + torch.rand(8) + x.cos(), options=STRICT)
    torch.manual_seed(6)
    call(torch.ones(8))
    state = torch.get_rng_state()
    torch.manual_seed(6)
    torch.randint(-(2**63), 2**63 - 1, [2])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_are_those_of_two_uniform_ones(dtype):
    torch.manual_seed(2)
    found = compiled(lambda: torch.randn(64, 65, dtype=dtype), options=STRICT)()
    torch.manual_seed(2)
    narrow = dtype is torch.float32
    seeds = torch.randint(-(2**63), 2**63 - 1, [2 if narrow else 4])
    words = [philox.operator()(seeds, k, found.shape).double() for k in range(len(seeds))]
    first, second = words if narrow else (words[0] + words[1] * 2.0**-24, words[2] + words[3] * 2.0**-24)
    exact = (-2 * torch.log(1 - first)).sqrt() * torch.cos(2 * math.pi * second)
    assert (found.double() - exact).abs().max() < (2e-6 if narrow else 1e-14)

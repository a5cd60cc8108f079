"""The yardstick of models whose results hang on last bits: it holds what rounding makes, and planted faults lie beyond it."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from tests.pytorch import judge as judges  # noqa: E402
from tests.pytorch.judge import ERROR, judge  # noqa: E402
from tests.pytorch.rounding import RoundedAtRandom, at_random, drawn, last, moved  # noqa: E402
from tests.pytorch.zoo import Model, models, names_of_torchvision  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

MODELS = {m.name: m for m in models()}
EPS = last(24)


def DRAW(seed):
    return torch.Generator().manual_seed(seed)


class Cancels(torch.nn.Module):
    """A product after a norm: its mean over the batch is 0 at f64, whatever the weights are."""

    def __init__(self, elements=64, size=8):
        super().__init__()
        self.norm, self.product = torch.nn.BatchNorm1d(size), torch.nn.Linear(size, size, bias=False)
        self.after = torch.nn.BatchNorm1d(size)
        self.elements, self.size = elements, size

    def forward(self, x):
        return self.after(self.product(self.norm(x)))


class Steps(torch.nn.Module):
    """A `relu` of numbers one of which is a last bit above 0: each of three gradients before it has a step there."""

    def __init__(self, size=8):
        super().__init__()
        self.scales = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(size)) for _ in range(3)])
        self.after = torch.nn.Linear(size, size)
        self.edge = 1.0

    def forward(self, x):
        first, second, third = self.scales
        return self.after(torch.relu(x * first * second * third - self.edge))


def beside(module):
    x = torch.randn(4, 8)
    x[0, 0] = 1 + EPS
    return {"x": x}


STEPS = Model("steps", "here", "", Steps, beside)
CANCELS = Model("cancels", "here", "", Cancels, lambda m: {"x": torch.randn(m.elements, m.size)})


def planted(changes):
    """A `compile` whose module is the one in eager mode, but for these changes of gradients and buffers."""

    def compiled(module):
        for name, parameter in module.named_parameters():
            if name in changes:
                parameter.register_hook(changes[name])

        def call(**inputs):
            result = module(**inputs)
            for name, buffer in module.named_buffers():
                if name in changes:
                    buffer.data.copy_(changes[name](buffer))
            return result

        return call

    return compiled


def named(lines):
    """The training step's results that lines of a verdict are about."""
    return {line.split(": ")[1] for line in lines if line.startswith("training")}


def scaled(gradient):
    return gradient * 1.001


def one_element(factor):
    def change(buffer):
        made = buffer.clone()
        made.view(-1)[0] *= factor
        return made

    return change


def test_numbers_are_rounded_to_their_neighbours():
    exact = torch.tensor([0.0, 1.0, -3.0, 2.0**-149, torch.inf, -torch.inf, torch.finfo(torch.float64).max], dtype=torch.float64)
    for bits in (24, 34):
        assert torch.equal(at_random(exact, DRAW(0), bits)[:6], exact[:6]) and at_random(exact, DRAW(0), bits).isnan().sum() == 0
    assert last(24) == torch.finfo(torch.float32).eps
    value = torch.full((1000,), 1 + EPS / 4, dtype=torch.float64)
    assert {*at_random(value, DRAW(0)).tolist()} == {1.0, 1 + EPS} and {*at_random(-value, DRAW(0)).tolist()} == {-1.0, -1 - EPS}
    ones = moved(torch.ones(1000, dtype=torch.float64), DRAW(0))
    assert {*ones.tolist()} <= {1 + EPS, 1 - EPS} and len({*ones.tolist()}) == 2


def test_operators_that_choose_are_exact():
    """A maximum that were rounded would equal none of its elements, and have no gradient."""
    x = torch.randn(4, 8).double().requires_grad_()
    with RoundedAtRandom(DRAW(0)):
        y = x * 3.0
        y.amax(1).sum().backward()
        line = torch.zeros(4, dtype=torch.float64)
        line.view(2, 2)[0].add_(1 / 3)
        third = line.clone()
    assert torch.equal(y, y.float().double()) and not torch.equal(y, x * 3.0)
    assert torch.equal((x.grad != 0).sum(1), torch.ones(4, dtype=torch.int64))
    assert torch.equal(third, line) and line[0] in (torch.tensor(1 / 3).double(), at_random(line, DRAW(1))[0])
    assert abs(float(line[0]) - 1 / 3) < EPS and line[0] == line[0].float() and line[2] == 0


def errors(name):
    """The largest value of a result of CANCELS at f64, eager mode's error, and what rounding makes."""
    torch.manual_seed(0)
    eager = CANCELS.make()
    inputs = CANCELS.inputs(eager)
    exact = judges._step(*[judges._at_f64(copy.deepcopy(eager))] * 2, judges._wide(inputs))
    noise = judges._rounding(eager, inputs, judges._step, True, exact).smooth
    plain = judges._step(eager, eager, inputs)
    return judges.largest(exact[name]), judges.error(plain[name], exact[name]), noise[name]


def test_sums_that_cancel_have_the_error_of_their_terms():
    """Moved inputs and weights alone leave such a mean 0: only operators' rounding shows what f32 makes of it."""
    largest, _, noise = errors("buffer after.running_mean")
    assert largest < 1e-15 and EPS / 1000 < noise < EPS / 10
    largest, _, noise = errors("output")
    assert 0 < noise < 1e-5 * largest


def test_a_draw_is_that_of_its_seed():
    def results(seed):
        torch.manual_seed(0)
        module = Cancels().double()
        return drawn(module, {"x": torch.randn(64, 8, dtype=torch.float64)}, judges._step, seed)["output"]

    assert torch.equal(results(0), results(0)) and not torch.equal(results(0), results(1))


def test_results_that_rounding_explains_are_right():
    """Between ERROR times eager mode's error and ERROR times what rounding makes a result is right, and counted; beyond, wrong."""
    name = "after.running_mean"
    _, eager, noise = errors(f"buffer {name}")
    assert eager < noise
    more = {share: ERROR * eager ** (1 - share) * noise**share for share in (0.7, 1.3)}
    found = {share: judge(CANCELS, planted({name: lambda b, by=by: b + by})) for share, by in more.items()}
    assert not found[0.7].wrong and any(name in line for line in found[0.7].rounding), found
    assert any(name in line for line in found[1.3].wrong), found


def test_planted_faults_are_found_where_results_are_well_conditioned():
    found = judge(CANCELS, planted({"after.weight": scaled, "norm.running_var": one_element(1.0001)}))
    assert named(found.wrong) == {"gradient of after.weight", "buffer norm.running_var"}


def test_a_step_is_right_where_rounding_steps_and_all_before_it_do():
    def other_side(module):
        module.edge = 1 + 2 * EPS
        return module

    found = judge(STEPS, other_side)
    assert not found.wrong and named(found.rounding) == {f"gradient of scales.{n}" for n in range(3)}, found


def test_a_fault_of_one_result_is_no_step():
    """It is smaller than the step that rounding makes of this gradient, but two others would have moved with it."""
    (line,) = judge(STEPS, planted({"scales.0": scaled})).wrong
    assert "gradient of scales.0" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, gradient, buffer",
    [
        ("distilbert", "transformer.layer.0.attention.q_lin.weight", None),
        ("mobilenetv2_035", "classifier.weight", "bn1.running_mean"),
    ],
)
def test_planted_faults_of_models_are_found(name, gradient, buffer):
    """In a model whose results are well conditioned, and in one whose activations lie at the bounds of their functions."""
    if buffer:
        names_of_torchvision()  # which transformers does without
    pytest.importorskip("timm" if buffer else "transformers")
    found = judge(MODELS[name], planted({gradient: scaled} | ({buffer: one_element(1.01)} if buffer else {})))
    assert named(found.wrong) == {f"gradient of {gradient}"} | ({f"buffer {buffer}"} if buffer else set()), found

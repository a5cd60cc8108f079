"""PyTorch's samples of operators and modules: some of them. `python -m tests.pytorch ops` runs all, `modules` and `checks` too."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tests.pytorch import agreement as agreements  # noqa: E402
from tests.pytorch.agreement import AS_EAGER, CRASHED, EAGER, NOTHING, PART, REFUSED, WHOLE, WRONG, agreement  # noqa: E402
from tests.pytorch.checks import check  # noqa: E402
from tests.pytorch.samples import Case, Choice, of_module, of_operator  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

RIGHT = (WHOLE, PART, EAGER, NOTHING)


def case(name: str, number: str) -> Case:
    """The case of this number, or of `error 0`, `training 3`."""
    of = of_module if name.startswith("nn.") and "functional" not in name else of_operator
    return next(c for c in of(name, Choice()) if c.name == f"{name} {number}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, number, verdict",
    [
        ("add", "5", WHOLE),
        ("softmax.with_dtype", "2", WHOLE),
        ("var_mean", "1", WHOLE),
        ("matmul", "8", WHOLE),
        ("nn.functional.conv2d", "3", WHOLE),
        ("nn.functional.layer_norm", "0", WHOLE),
        ("chunk", "1", WHOLE),
        ("gather", "0", WHOLE),
        ("cummax", "0", WHOLE),
        ("nn.functional.dropout", "2", PART),
        ("nn.functional.max_unpool2d", "43", PART),
        ("nn.functional.adaptive_max_pool2d", "3", WHOLE),
        ("nn.functional.grid_sample", "5", PART),
        ("sort", "3", WHOLE),
        ("histc", "5", EAGER),
        ("item", "0", NOTHING),
        ("index_add", "error 0", REFUSED),
        ("nn.functional.dropout", "0", AS_EAGER),
    ],
)
def test_samples_of_operators(name, number, verdict):
    found = agreement(case(name, number))
    assert found.verdict == verdict, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nn.Linear", "nn.BatchNorm2d", "nn.LSTMCell"])
def test_samples_of_modules(name):
    found = agreement(case(name, "training 0"), dynamo=True)
    assert found.verdict in RIGHT and found.backward, found


@pytest.mark.slow
def test_pytorchs_check_of_tracing():
    found = check(case("nn.functional.gelu", "0"))
    assert found.verdict == WHOLE and found.backward, found


X = torch.arange(12.0).view(3, 4)
Y = torch.arange(12.0).view(4, 3).t()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda r: [r[0] * 1.001, *r[1:]], "error"),
        (lambda r: [r[0].t().contiguous().t(), *r[1:]], "strides"),
        (lambda r: [r[0].half(), *r[1:]], "float16"),
        (lambda r: [r[0], r[1] + 1], "differ"),
        (lambda r: [r[0], r[1].clone()], None),
    ],
)
def test_what_is_wrong_is_noticed(monkeypatch, change, message):
    def spoilt(gm, inputs):
        run = agreements.AOT(gm, inputs)
        return lambda *values: change(list(run(*values)))

    monkeypatch.setattr(agreements, "TILEC", spoilt)
    found = agreement(Case("spoilt 0", lambda x: (x.exp(), x.argmax(1)), [X]))
    assert (found.verdict == WRONG and message in found.message) if message else found.verdict != WRONG, found


@pytest.mark.parametrize("change, message", [(lambda x, r: [r[0].clone()], "memory"), (lambda x, r: (x.add_(1), r)[1], "input 0")])
def test_aliases_and_changed_inputs_are_noticed(monkeypatch, change, message):
    def spoilt(gm, inputs):
        run = agreements.AOT(gm, inputs)
        return lambda x: change(x, list(run(x)))

    monkeypatch.setattr(agreements, "TILEC", spoilt)
    found = agreement(Case("spoilt 0", lambda x: x[1:], [X]))
    assert found.verdict == WRONG and message in found.message, found


def test_numbers_are_random_where_the_generator_is_asked():
    """Results that differ in their last bits from run to run, as LAPACK's do, are judged by their errors."""
    runs = count(1)
    found = agreement(Case("unsteady 0", lambda x: x * (1 + 2e-7 * next(runs)), [X]))
    assert found.verdict in RIGHT and not found.random, found
    found = agreement(Case("drawn 0", lambda x: x + torch.rand_like(x), [X]))
    assert found.verdict in RIGHT and found.random, found


def test_what_raises_is_noticed(monkeypatch):
    def failing(gm, inputs):
        raise ValueError("not today")

    made = Case("failing 0", lambda x: x + 1, [X])
    refused = Case("refused 0", lambda x, y: x @ y, [X, X], refused=True)
    assert agreement(refused).verdict == REFUSED
    monkeypatch.setattr(agreements, "TILEC", failing)
    assert agreement(made).verdict == CRASHED

    def careless(gm, inputs):
        gm.tree = torch.utils._pytree.tree_structure(0)
        return lambda *values: [values[0]]

    monkeypatch.setattr(agreements, "TILEC", careless)
    assert agreement(refused).verdict == WRONG and agreement(replace(made, refused=True)).verdict == agreements.SKIPPED


def test_a_worker_that_dies_is_one_case(monkeypatch):
    from tests.pytorch import runs

    class Process:
        """Dies at the second case of three, the first time."""

        begun = 0

        def __init__(self, *args, **kwargs):
            self.stdin, self.asked = self, []
            Process.begun += 1

        def write(self, line):
            self.asked = json.loads(line)

        def flush(self):
            pass

        @property
        def stdout(self):
            skipped = self.asked[1]
            for n in range(skipped, 3):
                yield json.dumps(f"f {n}")
                if n == 1:
                    return
                yield json.dumps({"case": f"f {n}", "verdict": WHOLE})
            yield "null"

        def wait(self):
            return -11

        def communicate(self):
            pass

    monkeypatch.setattr(runs.subprocess, "Popen", Process)
    found = runs.run_all("ops", ["f"], Choice(), 1, lambda outcome: None)
    assert [(o.case, o.verdict) for o in found] == [("f 0", WHOLE), ("f 1", CRASHED), ("f 2", WHOLE)] and Process.begun == 2

"""Models of other projects: a forward pass and a training step. `python -m tests.pytorch` runs all of the zoo."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tools.pytorch import plans_by  # noqa: E402

from tests.pytorch.judge import judge  # noqa: E402
from tests.pytorch.zoo import models, transformer  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

MODELS = {m.name: m for m in models()}
FEW = [
    "gpt2", "llama", "gemma2", "bloom", "gpt_neox", "bert", "distilbert", "roberta", "t5", "bart", "vit", "segformer",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_models_are_right(name):
    """No difference from f64 beyond that of eager mode, and most operations in few partitions."""
    verdict = judge(MODELS[name], lambda module: torch.compile(module, backend="tilec"))
    assert verdict.right, verdict
    for step in verdict.steps:
        assert step.taken >= 0.9 * step.operations, step


@pytest.mark.parametrize("change, word", [(lambda x: x * 1.001, "error"), (lambda x: x.float().to(torch.float16), "eager mode")])
def test_wrong_results_are_noticed(change, word):
    def wrong(module):
        return lambda **inputs: {k: change(v) for k, v in module(**inputs).items()}

    (line, *_) = judge(MODELS["distilbert"], wrong, training=False).wrong
    assert word in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deberta-v2", "t5"])
def test_places_and_biases_by_distance_are_right(name, tmp_path, monkeypatch):
    """Stored as one element for each distance, whether that pays or not. DeBERTa has the relative attention of its version 3."""
    plans = plans_by("toeplitz", tmp_path, monkeypatch)
    model = MODELS[name]
    if name == "deberta-v2":
        more = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm",
                    share_att_key=True, position_biased_input=False)  # fmt: skip
        model = replace(model, make=transformer(name, **more))
    verdict = judge(model, lambda module: torch.compile(module, backend="tilec"))
    assert verdict.right, verdict
    steps = {step.operation for plan in plans for step in plan.steps("toeplitz")}
    assert len(steps) == (3 if name == "t5" else 2), plans  # a mask of t5 is one, too

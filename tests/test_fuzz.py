"""A fixed set of what `make fuzz` draws: programs with schedules, texts, and index arithmetic."""

from __future__ import annotations

import pytest
from fuzz import driver
from fuzz.compare import check, specialised
from fuzz.files import SORTS
from fuzz.hunt import drawn
from fuzz.indices import check_polynomial, check_proof, subscript_case, trees
from fuzz.programs import cases
from fuzz.text import limited
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tilec.evaluate import evaluate

SMALL = [2, 3, 1, 4, 0, 5]


def fixed(examples: int):
    """The same examples on every run."""
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )  # fmt: skip


@fixed(10)
@given(drawn("cpu", statements=3, fuel=3, sizes=[*SMALL, 33]))
def test_programs_on_the_cpu(pair):
    check(pair[0], "cpu", pair[1])


@fixed(25)
@given(cases(statements=4, fuel=3, sizes=SMALL))
def test_programs_after_every_stage(case):
    check(case, "stages")


@fixed(25)
@given(drawn("emulator", statements=4, fuel=3, sizes=SMALL))
def test_programs_as_cuda_kernels(pair):
    check(pair[0], "emulator", pair[1])


@pytest.mark.gpu
@fixed(25)
@given(drawn("gpu", statements=5, fuel=4))
def test_programs_on_the_gpu(pair):
    check(pair[0], "gpu", pair[1])


@fixed(150)
@given(cases(statements=6, fuel=4))
def test_drawn_programs_are_well_typed(case):
    evaluate(specialised(case), case.inputs)


@pytest.mark.parametrize("sort", SORTS)
def test_texts(sort):
    strategy, check_one = SORTS[sort]

    @fixed(150)
    @given(strategy())
    def checked(text):
        with limited():
            check_one(text)

    checked()


@fixed(300)
@given(trees(["i", "j", "M", "N"]))
def test_index_polynomials(tree):
    check_polynomial(tree)


def test_proofs_about_indices():
    proved = 0

    @fixed(400)
    @given(trees(["i", "j", "M", "N"], 2), st.lists(trees(["i", "j", "M", "N"], 1), max_size=2))
    def sound(claim, facts):
        nonlocal proved
        proved += check_proof(claim, facts)

    sound()
    assert proved > 20, "a prover that never proves is sound, too"


@fixed(15)
@given(trees(["i", "j", "M", "N"]), st.integers(1, 4), st.integers(1, 5))
def test_subscripts_after_every_stage(tree, m, n):
    case, places = subscript_case(tree, m, n)
    assert (evaluate(specialised(case), case.inputs)["y"] == places).all()
    check(case, "stages")
    check(case, "emulator")


def test_a_failure_is_written_at_once_and_again_when_reduced(monkeypatch, tmp_path, capsys):
    """A sum or an exponential stands for a defect; whatever else a case has is to go."""
    seen: list[str] = []

    def planted(case, way, schedule):
        if "sum_" in case.text or "exp(" in case.text:
            seen.append(case.text)
            if len(seen) == 1:
                assert not list(tmp_path.iterdir())
            elif len(seen) == 2:
                written.append(next(tmp_path.glob("*/program.tile")).read_text())
            raise AssertionError("planted")

    written: list[str] = []
    monkeypatch.setattr("fuzz.hunt.check", planted)
    ran, found = driver.look(0.05, ["cpu"], tmp_path, 0)
    assert ran > len(seen) > 1 and {way for way, _ in found} == {"cpu"} and len(found) == 1
    (folder,) = tmp_path.iterdir()
    last = (folder / "program.tile").read_text()
    assert written == [seen[0]] and last == seen[-1] and len(last) <= len(seen[0])
    assert "planted" in (folder / "error.txt").read_text()
    said = capsys.readouterr().out
    assert said.count(f"tilec run {folder / 'program.tile'}") == said.count("reduced:") + 1 == 2


def test_texts_that_fail_are_kept_with_the_command_that_fails_again(monkeypatch, tmp_path, capsys):
    def planted(text):
        raise AssertionError("planted")

    monkeypatch.setattr("fuzz.files.SORTS", {sort: (strategy, planted) for sort, (strategy, _) in SORTS.items()})
    ran, found = driver.look(0.01, ["text"], tmp_path, 2)  # the third sort is IR
    assert ran and ("text", "ir: AssertionError('planted')") in found
    (kept,) = tmp_path.glob("*/softmax.mlir")
    assert kept.read_text().startswith("// tilec stage: ") and f"  tilec opt {kept}\n" in capsys.readouterr().out

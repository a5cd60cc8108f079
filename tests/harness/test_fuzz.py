"""A fixed set of what `make fuzz` draws: programs with schedules, texts, and index arithmetic."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from fuzz import attempt, driver
from fuzz.accesses import Dim, Index
from fuzz.attempt import Drawn
from fuzz.batch import together
from fuzz.choices import Choices
from fuzz.compare import Wrong, check, expect, specialised
from fuzz.corpus import NAMES, kept
from fuzz.counts import Counts
from fuzz.files import SORTS
from fuzz.guards import Overrun, in_a_child, run_checked
from fuzz.hunt import Hunt
from fuzz.indices import check_proof, check_term, subscript_case, trees
from fuzz.matrix import machine
from fuzz.planted import SIZED
from fuzz.programs import Case, drawn_case
from fuzz.reduce import reductions
from fuzz.result import summary
from fuzz.worker import seeded
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.semantics.reference import evaluate


def fixed(examples: int):
    """The same examples on every run."""
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )  # fmt: skip


@cache
def run(way: str, seed: int, name: str) -> Drawn:
    """Draws a case and checks it."""
    counts = Counts()
    drawn = attempt.draw(way, seeded(way, seed, name), counts)
    attempt.run(drawn, counts)
    return drawn


@pytest.mark.parametrize("first", [0, 6, 12])
def test_programs_on_the_cpu(first):
    named = [(str(n), seeded("cpu", 0, str(n))) for n in range(first, first + 6)]
    facts = in_a_child(lambda: [f for f in together("cpu", named, 0, lambda **_: None)])
    assert [f.get("error", "") for f in facts] == [""] * 6


def test_programs_whose_sizes_vary_on_the_cpu():
    named = [(str(n), seeded("sizes-cpu", 0, str(n))) for n in range(3, 6)]
    facts = in_a_child(lambda: [f for f in together("sizes-cpu", named, 0, lambda **_: None)])
    assert [f.get("error", "") for f in facts] == [""] * 3


@pytest.mark.parametrize("way, name", [("sizes-stages", "0"), ("sizes-emulator", "0")])
def test_programs_whose_sizes_vary(way, name):
    run(way, 0, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*map(str, range(3))])
def test_programs_whose_sizes_vary_as_users_call_them(name):
    run("sizes-cpu", 0, name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*map(str, range(8))])
def test_programs_whose_sizes_vary_on_the_gpu(name):
    run("sizes-gpu", 0, name)


SEEN = {
    "a tail that is not masked": "2", "the extent of an earlier call": "2", "another size's extent": "31", "a wrong stride": "2",
}  # fmt: skip


@pytest.mark.parametrize("fault", SIZED)
def test_kernels_that_are_wrong_at_some_size_are_found(monkeypatch, fault):
    named = [(SEEN[fault], seeded("sizes-cpu", 0, SEEN[fault]))]
    SIZED[fault](monkeypatch)
    try:
        (facts,) = in_a_child(lambda: [*together("sizes-cpu", named, 0, lambda **_: None)])
    except Overrun:  # a page that nothing may touch
        return
    assert facts["kind"].startswith(("Wrong", "Overrun")), facts["error"]


@pytest.mark.parametrize("name", [*map(str, range(8))])
def test_programs_on_matrix_units(name):
    run("matrix", 0, name)


@pytest.mark.slow
def test_programs_on_matrix_units_vary():
    """Every kind of kernel that multiplies is drawn."""
    found = set()
    for n in range(60):
        drawn = attempt.draw("matrix", seeded("matrix", 1, str(n)), Counts())
        with mlir.context(), ir.Location.unknown():
            plan = lower(build(specialised(drawn.case)), machine(drawn.unit), end="plan", texts=False).plan
        found |= {(k.options.name, getattr(k.options, "unit", "")) for k in plan.kernels}
    chains = {("contraction_chain", "wgmma"), ("contraction_chain", "mma.sync")}
    assert found >= chains | {("contraction", "mma.sync"), ("contraction", "fma")}
    assert any(name == "warpgroup_contraction" for name, _ in found)


@pytest.mark.parametrize("name", [*map(str, range(12))])
def test_programs_after_every_stage(name):
    run("stages", 0, name)


@pytest.mark.parametrize("name", [*map(str, range(12))])
def test_programs_as_cuda_kernels(name):
    run("emulator", 0, name)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", NAMES)
def test_programs_that_once_failed(name):
    case = kept(name)
    check(case, "stages")
    check(case, "emulator")
    results = in_a_child(lambda: run_checked(case.text, case.op, case.sizes, case.inputs, "end"))
    expect(case, specialised(case), results, "cpu")


@pytest.mark.parametrize("seed, name", [(88231, "10"), (88231, "107"), (88231, "176"), (91177, "234")])
def test_packs_and_blocks_that_once_failed(seed, name):
    """Lines that go on behind what is read of them, a remainder whose range was looked for without an end, and a factor that was
    to be stored as it lies."""
    run("matrix", seed, name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_programs_that_once_failed_on_the_gpu(name):
    check(kept(name), "gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*map(str, range(25))])
def test_programs_on_the_gpu(name):
    run("gpu", 0, name)


def test_a_zero_has_its_sign_where_it_is_determined():
    text = "op f(x: f16[2]) -> (y: f16[2], m: f16) { y[i] = -x[i] m = max[i](x[i]) }"
    case = Case(text, {}, {"x": np.array([0, -0.0], np.float16)})
    program = specialised(case)
    for sign in (1, -1):
        results = {"y": np.array([-0.0, 0], np.float16), "m": np.float16(sign * 0.0)}
        expect(case, program, results, "cpu")
        with pytest.raises(Wrong, match="y is out of bounds"):
            expect(case, program, {**results, "y": -results["y"]}, "cpu")


def test_an_index_is_another_one_inside_a_reduction_over_its_name():
    """What tells the range of `j` there says nothing about `j` outside."""
    j = Index("j", Dim("M", 3, 3), bare=True)
    assert not j.reported_by("mean[j in 0:M, k1](exp((x1[i, j]) + 1)) in f64")
    assert not j.reported_by("max[k1](sum[k2, j](x1[j]) + any[j](x2[j])) - 1")
    assert j.reported_by("mean[j in 0:M](exp(x1[i, j])) * x2[j]") and j.reported_by("cumsum[j](x1[j])")
    assert j.reported_by("sum[k1 in 0:j_1](x1[j, k1])")


def test_drawn_programs_are_well_typed():
    for number in range(60):
        case = drawn_case(Choices(f"typed {number}"), statements=6, fuel=4)
        evaluate(specialised(case), case.inputs)


@pytest.mark.parametrize("sort", SORTS)
def test_texts(sort):
    for number in range(100):
        run(sort, 0, str(number))


@fixed(300)
@given(trees(["i", "j", "M", "N"]))
def test_index_expressions_are_read_as_terms(tree):
    check_term(tree)


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


# ---- hunts -------------------------------------------------------------------------------------------------------------


def test_the_same_choices_make_the_same_case():
    first, again = (Choices("a seed") for _ in range(2))
    case = drawn_case(first)
    assert repr(drawn_case(again)) == repr(case) == repr(drawn_case(Choices(given=first.taken)))
    assert repr(drawn_case(seeded("cpu", 1, "5~2"))) == repr(drawn_case(seeded("cpu", 1, "5~2")))


def test_reducing_finds_the_least_that_fails():
    """Of what has a number above 50 and two below it, the least is [51, 0, 0]."""

    def fails(row):
        return any(n > 50 and row[k + 1] < n and row[k + 2] < n for k, n in enumerate(row[:-2]))

    rows = reductions(list(range(100, 0, -3)))
    row, best = next(rows), None
    while row is not None:
        best = row if fails(row) else best
        try:
            row = rows.send(row if fails(row) else None)
        except StopIteration:
            row = None
    assert best == [51, 0, 0]


@pytest.mark.slow
def test_failures_and_crashes_are_reported_while_the_hunt_goes_on(monkeypatch, tmp_path):
    """A sum and an exponential stand for defects; whatever else a case has is to go."""
    monkeypatch.setattr("fuzz.reducer.REDUCING", 8.0)
    reported = []

    def report(found, reduced):
        assert (found.folder / "program.tile").is_file()
        reported.append((found.kind.partition(":")[0], reduced, (found.folder / "program.tile").read_text()))

    hunt = Hunt(["stages"], 0, 2, tmp_path, cases=40, attempt="fuzz.planted", report=report)
    hunt.run()
    assert hunt.counts["stages"].tried == 40
    kinds = {kind: [text for k, _, text in reported if k == kind] for kind, _, _ in reported}
    assert {"AssertionError in run", "the process ended"} <= set(kinds), kinds
    assert all("sum[" in text for text in kinds["AssertionError in run"])
    assert all("exp(" in text for text in kinds["the process ended"])
    assert all("cumprod[" in text for text in kinds["Spoiled in run"]), "a process that a fault spoiled went on"
    texts = kinds["AssertionError in run"]
    assert len(texts[-1]) <= len(texts[0])
    shown = summary(hunt)
    assert "stages: 40 cases" in shown and f"{len(hunt.found)} kinds of failure" in shown


@pytest.mark.slow
def test_a_case_that_takes_too_long_is_a_failure_and_the_others_are_tried(monkeypatch, tmp_path):
    """The first text has an `argmax`, which stands for a hang."""
    for name, seconds in {"process.LONGEST": 3.0, "reducer.LONGEST": 3.0, "reducer.REDUCING": 5.0}.items():
        monkeypatch.setattr(f"fuzz.{name}", seconds)
    texts = [SORTS["programs"][0](seeded("programs", 0, str(number))) for number in range(2000)]
    hangs = ["argmax[" in text and not any(word in text for word in ("sum[", "exp(")) for text in texts]
    fails = [any(word in text for word in ("sum[", "exp(", "argmax[")) for text in texts]
    first = next(n for n in range(1998) if hangs[n] and not any(fails[n + 1 : n + 3]))
    hunt = Hunt(["programs"], 0, 1, tmp_path, cases=3, attempt="fuzz.planted", begin=first)
    hunt.run()
    (found,) = hunt.found.values()
    assert (found.kind, found.name, found.times) == ("longer than 3 seconds", str(first), 1)
    assert "argmax[" in (found.folder / "program.tile").read_text()
    assert (hunt.counts["programs"].tried, hunt.counts["programs"].failed) == (3, 1)


def test_the_command_writes_what_was_tried(tmp_path, capsys):
    result = tmp_path / "made" / "hunt.json"
    status = driver.main(["--cases", "3", "--target", "text", "--out", str(tmp_path), "--result", str(result)])
    facts = json.loads(result.read_text())
    assert status == 0 and "9 cases" in capsys.readouterr().out
    assert {way: c["tried"] for way, c in facts["ways"].items()} == dict.fromkeys(driver.TEXTS, 3)
    assert facts["seed"] == 0 and facts["versions"]["llvm"] and facts["found"] == []

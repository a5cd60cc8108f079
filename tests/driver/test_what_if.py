"""What-if: a statement changes what it says and nothing else, several hold at once, and refusals say what is allowed."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from tools import ROOT

import tilec
from tilec.core.diagnostics import CallError, Source
from tilec.core.targets import load
from tilec.driver.what_if import EXAMPLES, Problem, ask
from tilec.dsl.mistakes import read
from tilec.plan.report.records import explanation
from tilec.plan.report.what_if import condition, what_if
from tilec.plan.report.what_if_table import report
from tilec.plan.schedule.read import parse_schedule
from tilec.plan.schedule.write import write_schedule

EXAMPLES_FOLDER = ROOT / "examples"
SIZES = {
    "softmax": {"M": 4096, "N": 1024}, "mlp": {"M": 512, "D": 1024, "F": 4096},
    "attention": {"B": 1, "H": 8, "S": 1024, "T": 1024, "D": 64},
}  # fmt: skip
SCHEDULE = """[[plan]]
program = "softmax(x: f32[4096, 1024])"
target = "h200"
[plan.kernels.softmax_y]
tile = [2]
"""


@cache
def program(name: str):
    return read(Source(f"{name}.tile", (EXAMPLES_FOLDER / f"{name}.tile").read_text()))


def problem(name: str, target: str = "h200", schedule: str | None = None) -> Problem:
    obeyed = parse_schedule(Source("s.toml", schedule)) if schedule else None
    return Problem(program(name), "attention" if name == "attention" else None, SIZES[name], load(target), schedule=obeyed)


def groups(side) -> list[set[str]]:
    return [set(k.nodes) for k in side.plan.kernels]


def record(given: Problem, *statements: str):
    before, after, changes, notes = ask(given, statements)
    sides = explanation(before.plan, before.special), explanation(after.plan, after.special)
    return what_if(changes, notes, sides, (before.plan, after.plan))


# ---- what a statement changes ------------------------------------------------------------------------------------------------


def test_figures_change_the_target_alone():
    before, after, changes, _ = ask(problem("softmax"), ["bandwidth*2", "l2.latency_ns = 500", "tensor / 2"])
    one, other = before.plan.target, after.plan.target
    assert other.dram.bandwidth_gbs == 2 * one.dram.bandwidth_gbs and other.l2.latency_ns == 500
    assert other.tensor["bf16"]["wgmma"] == one.tensor["bf16"]["wgmma"] / 2
    assert (other.fitted, other.description, other.fma) == (one.fitted, one.description, one.fma)
    assert changes[0] == "dram.bandwidth_gbs 4800 -> 9600" and changes[2].endswith(" more")
    assert after.plan.time_us < 0.8 * before.plan.time_us
    assert load("h200").dram.bandwidth_gbs == one.dram.bandwidth_gbs  # which is cached


def test_a_level_that_its_units_limit_says_so():
    _, _, _, notes = ask(problem("softmax", "cpu"), ["dram.bandwidth_gbs = 1e6"])
    if load("cpu").dram.unit_gbs:
        assert re.fullmatch(r"dram.unit_gbs still limits dram to [\d.]+ GB/s", notes[0])


@pytest.mark.parametrize("statement, size", [("M = 1", 1), ("M*2", 8192), ("M / 4", 1024), ("M = 0", 0)])
def test_sizes(statement, size):
    _, after, changes, _ = ask(problem("softmax"), [statement])
    assert after.special.sizes == {"M": size, "N": 1024} and changes == [f"M 4096 -> {size}"]
    assert after.plan.signature == f"softmax(x: f32[{size}, 1024])"


def test_targets():
    before, after, changes, _ = ask(problem("softmax"), ["target = b200"])
    assert after.plan.target == load("b200") and before.plan.target == load("h200") and changes == ["target h200 -> b200"]
    text = report(record(problem("softmax"), "target = b200"))
    assert "on       NVIDIA B200" in text and "would pay" not in text


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("name, one, other", [("softmax", "m", "y"), ("attention", "softmax.m", "o"), ("mlp", "gelu.x", "h")])
def test_operations_in_separate_kernels(name, one, other, target):
    """Where a kernel in two parts cannot be, it has more."""
    before, after, _, _ = ask(problem(name, target), [f"{one} apart from {other}"])
    ones = {n for g in groups(before) for n in g if n == one or n.endswith(f".{one}")}
    assert not any(g & ones and other in g for g in groups(after))
    assert set().union(*groups(after)) | set(after.plan.inlined) == set().union(*groups(before)) | set(before.plan.inlined)
    again = ask(problem(name, target), [f"{one} apart from {other}", f"{other} apart from {one}"])
    assert groups(again[1]) == groups(after)  # it holds already


def test_operations_that_share_a_kernel_and_are_computed_once_or_inlined():
    given = Problem(program("softmax"), None, {"M": 64, "N": 64}, load("cpu"))
    _, inlined, _, _ = ask(given, ["inline e"])
    assert "e" in inlined.plan.inlined and not any("e" in g for g in groups(inlined))
    _, once, _, _ = ask(problem("softmax"), ["compute e once"])
    assert any("e" in g for g in groups(once)) and "e" not in once.plan.inlined
    _, both, _, _ = ask(given, ["m apart from y", "m with y"])
    assert len(groups(both)) == 1


def test_options_and_rewrites_are_those_of_schedule_files():
    _, after, _, _ = ask(problem("softmax"), ["tile y = 4", "residency softmax_y = reload"])
    (kernel,) = after.plan.kernels
    assert kernel.tile == (4,) and kernel.options.residency == "reload"
    _, after, _, _ = ask(problem("mlp"), ["block y = 64x64x64", "stages h = 2"])
    options = {k.name: k.options for k in after.plan.kernels}
    assert options["mlp_y"].block == (64, 64, 64) and options["mlp_h"].stages == 2
    text = "op f(x: f32[N]) -> (y: f32) { y = sum[i](x[i]) }"
    given = Problem(read(Source("f.tile", text)), None, {"N": 1 << 24}, load("h200"))
    before, after, _, _ = ask(given, ["split = none"])
    assert len(before.plan.kernels) == 2 and len(after.plan.kernels) == 1


def test_a_schedule_file_is_obeyed_before_and_after():
    """Also the options of a kernel whose operations another statement leaves as they are."""
    before, after, _, _ = ask(problem("softmax", schedule=SCHEDULE), ["bandwidth*2"])
    assert before.plan.kernels[0].tile == after.plan.kernels[0].tile == (2,)
    own = ask(problem("mlp"), [])[0]
    text = write_schedule(own.plan, own.special)
    edited = re.sub(r"(?s)(kernels.mlp_h\..*?)stages = \d+", r"\1stages = 2", text)
    assert edited != text
    before, after, _, _ = ask(problem("mlp", schedule=edited), ["y.sum apart from y"])
    assert len(groups(after)) == len(groups(before)) + 1
    assert [k.options.stages for side in (before, after) for k in side.plan.kernels if k.name == "mlp_h"] == [2, 2]


# ---- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, statement, message", [
    ("softmax", "nonsense", "this statement is not understood\n.*\n.*\nhint: statements are such as: bandwidth"),
    ("softmax", "bandwith*2", "nor a figure of the target h200\n.*\n.*\nhint: did you mean `bandwidth_gbs`"),
    ("softmax", "dram*2", "`dram` is neither a size"),
    ("softmax", "bandwidth*0", "the factor is 0"),
    ("softmax", "bandwidth = 0", "must not be 0"),
    ("softmax", "latency_ns = fast", "`fast` is not a number"),
    ("softmax", "M = 1.5", "`M` is a size, and cannot be 1.5"),
    ("softmax", "target = b20", "did you mean 'b200'"),
    ("softmax", "q apart from y", "there is no operation `q`"),
    ("softmax", "x apart from y", "`x` is an input"),
    ("softmax", "e apart from y", "hint: `compute e once` has a kernel compute it"),
    ("softmax", "y apart from y", "`y` is `y`, or a part of it"),
    ("softmax", "inline y", "it is a result"),
    ("softmax", "tile y = 64x64", "hint: the compiler would take .*32 \\([\\d.]+ us\\)"),
    ("softmax", "tile y = 5000", "a tile of 5000 does not fit a dimension of 4096"),
    ("softmax", "residency y = smen", "hint: the compiler would take registers"),
    ("softmax", "stages y = 3", "is built as `rows`, which has no option `stages`"),
    ("softmax", "family y = points", "cannot be built as `points`, only as `rows`"),
    ("softmax", "family y = point", "there is no kernel family `point`"),
    ("softmax", "splt = none", "did you mean `split`"),
    ("mlp", "h with y", "a block has room for 256 reduced elements of the first contraction, not 1024"),
])  # fmt: skip
def test_refusals_say_what_is_allowed(name, statement, message):
    with pytest.raises(CallError) as error:
        ask(problem(name), ["M = 512", statement] if name == "mlp" else [statement])
    assert re.search(message, str(error.value)), str(error.value)
    assert str(error.value).startswith("what-if:1:1: error: ") and f"1 | {statement}\n" in str(error.value)


def test_a_size_that_the_program_refuses():
    text = "op f(x: f32[N], w: f32[M]) -> (y: f32[M]) { y[i] = x[i + 3] * w[i] }"
    given = Problem(read(Source("f.tile", text)), None, {"N": 64, "M": 8}, load("cpu"))
    with pytest.raises(CallError, match=r"refuses N = 3: `x\[i \+ 3\]` reaches outside(.|\n)*hint: the program takes N = 9, M = 3"):
        ask(given, ["N = 3"])
    assert ask(given, ["N = 11"])[1].special.sizes == {"N": 11, "M": 8}


# ---- what is reported ----------------------------------------------------------------------------------------------------------


def test_a_slower_plan_says_when_it_would_pay():
    """At the factor that is found, both plans take the same time."""
    given = Problem(program("softmax"), None, {"M": 4096, "N": 1024}, load("h200"))
    before, _, _, _ = ask(given, ["m apart from y"])
    found = record(given, "m apart from y")
    assert found.speedup < 1 and len(found.kernels) == 2
    assert condition(before.plan, before.plan) is not None  # they are equal already
    faster = record(given, "bandwidth*2")
    assert faster.speedup > 1 and faster.pays is None
    assert (found.pays is None) == ("no change of one amount" in report(found))
    found = record(problem("mlp"), "stages y = 3")
    assert re.fullmatch(r"[\w ]+ took [\d.]+ times as long( as they do)?", found.pays)
    assert f"it would pay if {found.pays}" in report(found)


@pytest.mark.parametrize("width", [60, 100])
def test_the_report_marks_what_changed(width):
    found = record(problem("attention"), "softmax.m apart from o")
    text = report(found)
    assert re.search(r"^s +s +[\d.]+ us +new", text, re.MULTILINE) and "1.00 times" not in text
    assert re.search(r"^o +o +[\d.]+ us +[\d.]+ us +\+\d+%", text, re.MULTILINE)
    assert re.search(r"contraction_chain -> \w+", text)
    narrow = report(found, width, colours=True)
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", narrow).splitlines()) <= width
    same = report(record(problem("softmax"), "clock_ghz * 1"))
    assert "the same time" in same and re.search(r"^softmax_y .* = ", same, re.MULTILINE) and "decisions" not in same


def test_an_op_asks_for_its_latest_sizes():
    op = tilec.compile(EXAMPLES_FOLDER / "softmax.tile", target="h200", sizes={"M": 64, "N": 64})
    assert "what if  M 64 -> 1" in op.what_if("M = 1") and op.plan.signature == "softmax(x: f32[64, 64])"
    with pytest.raises(CallError, match="neither a size"):
        op.what_if("Q = 1")
    with pytest.raises(CallError, match="sizes are numbers"):
        tilec.compile(EXAMPLES_FOLDER / "softmax.tile", target="cpu", varies={"M": (1, 64)}).build(M=4, N=4).what_if("M = 1")


def test_examples_are_understood():
    """Those that the message of a wrong statement names."""
    text = "op f(x: f32[M, N]) -> (b: f32[M, N]) { a[i, j] = exp(x[i, j])  b[i, j] = a[i, j] + sum[k](a[i, k]) }"
    given = Problem(read(Source("f.tile", text)), None, {"M": 64, "N": 64}, load("h200"))
    for statement in EXAMPLES:
        try:
            ask(given, [statement.replace("tile y = 64x64", "tile b = 1")])
        except CallError as error:
            assert "not understood" not in str(error) and "apart" in statement, str(error)


def test_the_record_of_the_command(tmp_path, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    from importlib.resources import files

    from tilec.cli.command import main

    given = ["explain", str(EXAMPLES_FOLDER / "mlp.tile"), "-D", "M=64,D=64,F=64", "--target", "h200"]
    assert main([*given, "--what-if", "M*2", "--what-if", "stages y = 2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, json.loads(files("tilec.cli").joinpath("schemas/what-if.json").read_text()))
    assert found["changes"] == ["M 64 -> 128", "stages y = 2"] and found["after"]["sizes"]["M"] == 128
    assert found["speedup"] == pytest.approx(found["before"]["time_us"] / found["after"]["time_us"])
    assert main([*given, "--what-if", "M*2", "--full"]) == 1
    assert "--what-if goes without --full" in capsys.readouterr().err

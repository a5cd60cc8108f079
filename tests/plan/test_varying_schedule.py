"""Schedule files with plans of classes of sizes: what is written is read back, edits are obeyed at every size or refused."""

import re

import pytest
from tools.varying import results
from tools.varying_kernels import lowered_for, wrong_kernels

from tilec.core.diagnostics import CallError, InternalError, Source
from tilec.core.varying import Varies, Varying
from tilec.driver import lowering
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.plan.schedule.read import parse_schedule
from tilec.plan.schedule.write import merge_schedule, write_schedule
from tilec.semantics.comparison import compare
from tilec.semantics.inputs import random_inputs
from tilec.semantics.interpreter import prepare

ROWS = """op f(x: f32[M, N], b: f32[N]) -> (y: f32[M, N], s: f32[M]) {
    s[i]    = sum[j](x[i, j])
    y[i, j] = exp(x[i, j]) * s[i] + b[j]
}"""
PRODUCT = """op f(x: bf16[M, K], w: bf16[K, N]) -> (y: bf16[M, N]) { y[m, n] = sum[k](x[m, k] * w[k, n]) }"""
SIZES = {"M": (17, 128)}


JOINED = """op f(s: f32[M, 24], z: f32[M]) -> (y: f32[M]) {
    p[i, j] = sum[k in 0:4](s[i, j] * s[i, k])
    c[i, j] = p[i, j] if j < 24 else z[i] where j in 0:25
    m[i]    = max[j](c[i, j])
    y[i]    = m[i] + log(sum[j](exp(c[i, j] - m[i])))
}"""


def written(text: str, target: str = "cpu", varies=SIZES, **sizes: int) -> str:
    plan = lowered_for(text, varies, target, **sizes).plan
    special = specialise(parse(Source("t.tile", text)), None, None, sizes, varies={n: Varying(*v) for n, v in varies.items()})
    return write_schedule(plan, special)


def obeyed(text: str, schedule: str, target: str = "cpu", varies=SIZES, **sizes: int):
    return lowered_for(text, varies, target, parse_schedule(Source("f.sched.toml", schedule)), **sizes)


def edited(text: str, *changes: tuple[str, str]) -> str:
    for pattern, new in changes:
        assert re.search(pattern, text, re.MULTILINE), pattern
        text = re.sub(pattern, new, text, count=1, flags=re.MULTILINE)
    return text


@pytest.mark.parametrize("text, target, sizes", [
    (ROWS, "cpu", {"N": 40}), (ROWS, "h200", {"N": 40}), (PRODUCT, "h200", {"K": 256, "N": 512}),
])  # fmt: skip
def test_what_is_written_is_read_back(text, target, sizes):
    own = lowered_for(text, SIZES, target, **sizes)
    again = obeyed(text, written(text, target, **sizes), target, **sizes)
    assert again.plan == own.plan
    assert again.plan.obeys is not None
    assert again.emitted == own.emitted


def test_the_section_says_which_sizes_it_is_for():
    text = written(ROWS, N=40)
    assert 'program = "f(x: f32[M, 40], b: f32[40])" # N = 40\nsizes = {M = "17..128"} # planned at M = 127\n' in text


def test_a_concatenation_of_rows_whose_number_varies_is_computed_in_pieces():
    made = obeyed(JOINED, written(JOINED, "h200"), "h200")
    assert [(a.rewrite, a.step.operation) for a in made.plan.rewrites] == [("concatenation", "c")]
    assert wrong_kernels(JOINED, made, [{"M": m} for m in (17, 20, 128)]) == []


def test_an_edit_is_obeyed_and_right_at_every_size():
    """Two kernels in place of one, with a tile that is larger than some sizes are."""
    changes = (r'^operations = \["s", "y"\]$', 'operations = ["y"]'), (r"^s = .*\n", ""), (r"^tile = .*$", "tile = [100, 16]")
    text = edited(written(ROWS, N=40), *changes) + '\n[plan.kernels.f_s]\noperations = ["s"]\ntile = [5]\n'
    made = obeyed(ROWS, text, N=40)
    assert {k.name: k.tile for k in made.plan.kernels} == {"f_s": (5,), "f_s_y": (100, 16)}
    assert [r.verb for r in made.plan.remarks].count("obeyed") >= 2
    runs = [prepare(made.texts[stage]) for stage in ("tile", "map")]
    for m in (17, 99, 100, 101, 128):
        exact = specialise(parse(Source("t.tile", ROWS)), None, None, {"M": m, "N": 40})
        inputs = random_inputs(exact, 1, {})
        for run in runs:
            assert all(c.within for c in compare(exact, inputs, results(run, exact, inputs)).values()), m


@pytest.mark.slow
def test_another_family_is_built_for_all_sizes():
    """Its options are those of any size, too."""
    varies, sizes = {"M": (513, 2048)}, {"K": 256, "N": 512}
    text = written(PRODUCT, "h200", varies, **sizes)
    own, other = "warpgroup_contraction", "contraction"
    assert f".{own}]" in text
    text = edited(text, (rf"^(\[plan.kernels.f_y.){own}\](\n.+)*", rf"\1{other}]"), (r"^tile = .*\n", ""))
    made = obeyed(PRODUCT, text, "h200", varies, **sizes)
    assert [k.options.name for k in made.plan.kernels] == [other]
    assert 2048 in made.plan.kernels[0].longest.values()
    assert "mma" in made.emitted.module


@pytest.mark.parametrize("changes, message", [
    ([(r"^tile = .*$", "tile = [129]")], "a tile of 129 does not fit a dimension of 128"),
    ([(r"^inline = .*$", "rewrites = {parts = true}\n\\g<0>")], "the rewrite `parts` needs a number for each size"),
    ([(r"^sizes.*\n", "")], "`M` is no number, and `sizes` must say its range"),
    ([(r"^sizes.*$", "sizes = {M = 5}")], "`M` must be a range"),
    ([(r"^sizes.*$", 'sizes = {M = "5"}')], "`M` must be a range"),
    ([(r"^sizes.*$", 'sizes = {M = "9..5"}')], "the range 9..5 of `M` is empty"),
    ([(r"^sizes.*$", 'sizes = {M = "5..5"}')], "`M` has one number"),
    ([(r"^sizes.*$", 'sizes = {M = "8..20 by 8"}')], "does not end with multiples of 8"),
    ([(r"^sizes.*$", 'sizes = {N = "17..128"}')], "the shapes of `program` have no size `N`"),
    ([(r"^sizes.*$", "sizes = {}")], "`sizes` has no range of `M`"),
])  # fmt: skip
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(CallError, match=re.escape(message)) as caught:
        obeyed(ROWS, edited(written(ROWS, N=40), *changes), N=40)
    assert caught.value.diagnostics[0].hint or "tile" in message


def test_an_option_that_holds_at_some_sizes_alone_is_refused():
    varies, sizes = {"M": (2049, 8192)}, {"K": 4096, "N": 4096}
    text = written(PRODUCT, "h200", varies, **sizes)
    with pytest.raises(CallError, match=r"`cluster` of \[2, 1\] does not hold at all sizes, where these vary"):
        obeyed(PRODUCT, edited(text, (r"^cluster = .*$", "cluster = [2, 1]")), "h200", varies, **sizes)


def test_a_plan_that_some_pass_cannot_lower_is_a_mistake_of_the_file(monkeypatch):
    """Without the file, such a class is compiled for each size."""
    text = written(ROWS, N=40)

    def refused(*_: object) -> None:
        raise InternalError("stage 'emit' failed", "emit", "") from Varies("the number of an extent")

    monkeypatch.setattr(lowering, "_emit", refused)
    with pytest.raises(Varies):
        lowered_for(ROWS, SIZES, "cpu", N=40)
    with pytest.raises(CallError, match="cannot be carried out where sizes vary: stage 'emit' asks for the number of an extent"):
        obeyed(ROWS, text, N=40)


def test_a_plan_of_other_sizes_is_none():
    """It is kept beside those that are written into the file, and the compiler says that it has not obeyed it."""
    text = written(ROWS, N=40)
    large = {"M": (129, 512)}
    plan = obeyed(ROWS, text, varies=large, N=40).plan
    (remark,) = [r for r in plan.remarks if r.verb == "ignored"]
    assert "no plan for f(x: f32[M, 40], b: f32[40]) with M = 129..512 on cpu" in remark.reason
    assert "(it has plans for M = 17..128)" in remark.reason
    special = specialise(parse(Source("t.tile", ROWS)), None, None, {"N": 40}, varies={"M": Varying(129, 512)})
    both, replaced = merge_schedule(text, lowered_for(ROWS, large, "cpu", N=40).plan, special)
    assert not replaced and both.count("[[plan]]") == 2
    assert obeyed(ROWS, both, varies=large, N=40).plan.obeys is not None
    again, replaced = merge_schedule(both, obeyed(ROWS, both, varies=large, N=40).plan, special)
    assert again == both and not replaced


def test_a_split_that_the_file_demands_is_right_at_every_size():
    """The parts read a result of another kernel, whose extents the program asks for before the kernel is called."""
    text = """op f(x: bf16[M, D], v: bf16[D, F], w: bf16[F, D]) -> (y: bf16[M, D]) {
        h[m, f] = max(sum[d](x[m, d] * v[d, f]), 0)
        y[m, d] = sum[f](h[m, f] * w[f, d])
    }"""
    head = 'program = "f(x: bf16[M, 32], v: bf16[32, 256], w: bf16[256, 32])"\nsizes = {M = "2..16"}\ntarget = "h200"\n'
    schedule = f'[[plan]]\n{head}rewrites = {{split = [{{operation = "y.sum", dim = 2, parts = 4}}]}}\n'
    varies, sizes = {"M": (2, 16)}, {"D": 32, "F": 256}
    made = obeyed(text, schedule, "h200", varies, **sizes)
    assert [a.rewrite for a in made.plan.rewrites] == ["split"]
    assert not wrong_kernels(text, made, [{"M": 2}, {"M": 16}], interpreted=False, **sizes)

"""Messages that say what is wrong and what to do: of programs, of `expect`, of `explain` and of `verify`."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tools import ROOT
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures
from tools.explained import MLP, SOFTMAX, failure, planned

import tilec
from tilec.core.diagnostics import Source, TileError
from tilec.core.quantities import duration
from tilec.dsl.format import format_source
from tilec.dsl.mistakes import read
from tilec.plan.report.expectations import minimal_traffic, traffic
from tilec.plan.report.explain import explain

EXAMPLES = ROOT / "examples"
COPY = (
    "op copy(x: f32[M, N]) -> (y: f32[M, N], z: f32[M, N]) { y[i, j] = x[i, j] z[i, j] = exp(x[i, j]) expect EXPECT }"
)
EDGE = "op edge(x: f32[N]) -> (z: f32[N]) { z[i] = cumsum[i](x[i]) if i % 2 == 0 else x[i - 2] }"


def mistakes(text: str) -> list[str]:
    """Every mistake: `message | hint`."""
    with pytest.raises(TileError) as raised:
        read(Source("<test>", text))
    return [f"{d.message} | {d.hint}" for d in raised.value.diagnostics]


def op(body: str, signature: str = "x: f32[N]) -> (y: f32[N]") -> str:
    return f"op f({signature}) {{ {body} }}"


# ---- form ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, message, hint", [
    ("y[i] = " + "+".join(["x[i]"] * 110), "more than 100 operations deep (a chain such as", "a name of its own"),
    ("y[\u0456] = x[i]", "unexpected character `\u0456` (U+0456)", "ASCII"),
    ("y[i] = x[\uff49]", "unexpected character `\uff49` (U+FF49)", "ASCII"),
    ("y[i]\u200b = x[i]", "unexpected character `U+200B`", "ASCII"),
    ("import 'softmax.tile'\ny[i] = x[i]", "a file name stands in double quotes", 'write `import "softmax.tile"`'),
    ("y[i] = x'[i]", "unexpected character `'`", "letters, digits"),
    (op("y[i] = x[i] if x[i] > 0"), "`if` without `else`", "a if condition else b"),
    (op("y[i] = max(x[i] if x[i] > 0, 1)"), "`if` without `else`", "a if condition else b"),
    (op("y[i] = x[i] else 1"), "`else` without `if`", "a if condition else b"),
    (op("if x[0] > 0 { y[i] = 1 } else if x[1] > 0 { y[i] = 2 } else { y[i] = 3 }"), "`if` cannot start", "of an expression"),
    ("def k(x) { return h(x) }\ndef h(x) { return k(x) }\ny[i] = k(x[i])", "`k` calls itself, by way of `h`", ""),
    (op("y[i] = 1 if b or 2 else 0", "b: bool) -> (y: i64[N]"), "must be a bool, and `2` is a whole number", "`2 != 0`"),
    (op("y[i] = 1 if x[i] + 1 else 0"), "must be a bool", "`(x[i] + 1) != 0`"),
    (op("y[i] = x[i, i]"), "`x` has 1 dimension, and is given 2 subscripts", ""),
])  # fmt: skip
def test_one_mistake_is_one_message(text, message, hint):
    (found,) = mistakes(text)
    assert message in found.partition(" | ")[0] and hint in found.partition(" | ")[2], found


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    text = "y[i] = 2 * x[i]\n"
    read(Source("<test>", "\ufeff" + text))
    path = tmp_path / "p.tile"
    path.write_text("\ufeff" + text, encoding="utf-8")
    assert (tilec.compile(path)(np.ones(3, np.float32)) == 2).all()
    assert format_source("\ufeff" + text) == text
    with pytest.raises(TileError, match=r"unexpected character `U\+FEFF`"):
        format_source("\ufeff\ufeff" + text)


def test_a_mistyped_index_of_the_short_form_is_pointed_at():
    with pytest.raises(TileError) as raised:
        read(Source("<test>", "w[i] = q[j]"))
    (found,) = raised.value.diagnostics
    assert "the range of `i` is unknown" in found.message
    (note,) = found.notes
    assert note.message.startswith("`j` is neither on the left side nor in a reduction") and note.span.column == 10


def test_circles_of_ops_are_reported_with_other_mistakes():
    one = "op {}(x: f32[N]) -> (y: f32[N]) {{ y = {}(x) }}\n"
    text = one.format("f", "g") + one.format("g", "h") + one.format("h", "g") + one.format("k", "k")
    found = mistakes(text + op("y[i] = nix[i]").replace("op f", "op last"))
    assert [m.partition(" | ")[0] for m in found] == [
        "`g` calls itself, by way of `h`", "`k` calls itself", "unknown name `nix`",
    ]  # fmt: skip


def test_what_one_op_lost_hides_nothing_of_another():
    """`y` is lost in the first op, and is another name in the second."""
    found = mistakes(op("y[i] = x[i] +* 3") + "\n" + op("y[i] = x[i + 1]").replace("op f", "op g"))
    assert len(found) == 2 and "reaches outside" in found[1]


# ---- expect ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition, message, hint", [
    ("kernels", "`expect` takes a condition, and `kernels` is a number", "`kernels == 1`"),
    ("3", "`expect` takes a condition", ""), ("kernels + 1", "takes a condition", ""), ("minimal", "takes a condition", ""),
    ("fused(e)", "`fused` takes the names of two tensors or more", ""),
    ("kernels == 1 if true else 2", "`kernels == 1` is a bool, and `2` is a number", ""),
    ("fused(s, q)", "`q` is not a tensor of this op", ""), ("fused(s, ss)", "`ss` is not a tensor", ""),
    ("not kernels", "`not` takes a bool", ""), ("kernels and true", "`and` takes a bool", ""),
    ("fused(s, y) + 1 > 0", "`+` takes a number", ""), ("kernels == true", "is a number, and `true` is a bool", ""),
    ("exp(kernels) < 1", "does not know the function `exp`", "`fused`"), ("kernel == 1", "does not know `kernel`", "`kernels`"),
    ("e == 1", "`e` is a tensor", "fused"),
])  # fmt: skip
def test_expect_takes_conditions(condition, message, hint):
    (found,) = mistakes(SOFTMAX.replace("EXPECT", f"expect {condition}"))
    assert message in found and hint in found


def test_expect_names_the_decision_that_broke_it():
    sizes = {"M": 64, "N": 64}
    fewer = failure(SOFTMAX, "kernels == 2", sizes)
    assert "note: fused " in fewer and "note: kept" not in fewer
    impossible = failure(SOFTMAX, "traffic <= 0.5 * minimal", sizes)
    assert "note:" not in impossible and "no plan moves less than `minimal`" in impossible
    assert "note: refused h.sum with y" in failure(MLP, "kernels <= 1", {"M": 64, "D": 32, "F": 48})
    for condition in ("9 ** 9 ** 9 ** 9 > 0", "(0 - 1) ** 0.5 > 0"):
        assert "this has no value" in failure(SOFTMAX, condition, sizes)


# ---- explain ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_a_copy_is_counted(target):
    sizes = {"M": 256, "N": 512}
    for body, counted in ((COPY, "1 kernel and 1 copy"), (COPY.replace("exp(x[i, j])", "x[i, j]"), "2 copies")):
        specialised, plan = planned(body.replace("EXPECT", "kernels == 2"), sizes, target)
        text = explain(plan, specialised)
        assert re.search(rf"kernels +{counted}$", text, re.MULTILINE) and "copy of x into y: " in text
        assert "kernels == 2: holds" in text
        copies = sum(c.work.dram_read + c.work.dram_write for c in plan.copies)
        assert copies == len(plan.copies) * 2 * 4 * 256 * 512 and traffic(plan) == 2 * 2 * 4 * 256 * 512
        assert plan.time_us > sum(k.prediction.time_us for k in plan.kernels)
        assert minimal_traffic(specialised) <= traffic(plan)
    assert failure(COPY.replace("expect EXPECT", "EXPECT"), "kernels == 1", sizes, target)


def test_the_ridge_agrees_with_the_bound():
    """On a CPU whose cache holds the data, and where an inner level of a GPU's memory is what limits."""
    for text, sizes, target in (
        ("softmax", {"M": 2048, "N": 2048}, "cpu"), ("softmax", {"M": 2, "N": 2}, "cpu"),
        ("linear", {"M": 4096, "N": 4096, "K": 4096}, "h200"), ("transpose", {"M": 2048, "N": 2048}, "h200"),
    ):  # fmt: skip
        specialised, plan = planned((EXAMPLES / f"{text}.tile").read_text(), sizes, target)
        (kernel,) = plan.kernels
        (row,) = re.findall(r"  intensity .*", explain(plan, specialised))
        bound = kernel.prediction.bound
        assert ("so bound by memory" in row) <= (bound == "memory"), row
        assert ("so bound by compute" in row) <= (bound == "compute"), row
        assert bound != "overhead" or "the launch takes longest" in row


def test_what_a_later_check_overrules_is_not_reported():
    """And times that know no tiles say so."""
    text = (EXAMPLES / "attention.tile").read_text().split("\n\nop causal")[0]
    specialised, plan = planned(text, {"B": 2, "H": 4, "S": 512, "T": 512, "D": 64}, "h200")
    assert len(plan.kernels) == 1
    reported = explain(plan, specialised)
    assert "p with o.sum" not in reported and "fused        s.sum with o:" in reported
    assert "are estimates without tiles" in reported
    assert "`using bf16` rounds the weights" in reported and not re.search(r"stream +\d", reported)


def test_times_have_one_unit_each():
    assert [duration(t) for t in (0.0123, 85.25, 999.9, 1254.8, 57_142_900)] == [
        "0.012 us", "85.2 us", "999.9 us", "1.25 ms", "57.14 s",
    ]  # fmt: skip


# ---- check, fmt, verify ----------------------------------------------------------------------------------


def test_check_warns_of_what_every_size_refuses(tilec, folder):
    (folder / "edge.tile").write_text(EDGE)
    status, out, err = tilec("check", "edge.tile")
    assert (status, out) == (0, "") and "warning: `edge` is refused at all sizes that were tried: `x[i - 2]`" in err
    assert tilec("check", "softmax.tile", "conv2d.tile", "transformer_block.tile") == (0, "", "")
    (folder / "short.tile").write_text("y[i] = 2 * x[i]\n")
    assert "y  any[x.shape[0]]  i in 0:x.shape[0]" in tilec("check", "--ranges", "short.tile")[1]


def test_fmt_shows_line_ends(tilec, folder):
    path = folder / "p.tile"
    for text, reported in (
        (b"y[i] = 2 * x[i]\r\n", "end with CR LF"), (b"y[i] = 2 * x[i]", "\\ No newline"), (b"y[i]=2 * x[i]\r\n", "-y[i]=2"),
    ):  # fmt: skip
        path.write_bytes(text)
        status, out, _ = tilec("fmt", "--check", "p.tile")
        assert status == 1 and reported in out


def test_nothing_verified_is_a_failure(tilec, folder):
    (folder / "edge.tile").write_text(EDGE)
    status, out, err = tilec("verify", "edge.tile")
    assert status == 1 and "N=5                      refused by the compiler: `x[i - 2]`" in out
    assert "only sizes of 0 and 1 were verified: the compiler refuses" in err
    status, _, err = tilec("verify", "edge.tile", "-D", "N=5")
    assert status == 1 and "nothing was verified: the compiler refuses" in err
    assert tilec("verify", "edge.tile", "-D", "N=1")[0] == 0
    (folder / "two.tile").write_text(EDGE.replace("x: f32[N]", "x: f32[N], w: f32[M]"))
    assert tilec("verify", "two.tile", "-D", "M=1")[0] == 1 and tilec("verify", "two.tile", "-D", "M=1,N=0")[0] == 0
    status, _, err = tilec("verify", "softmax.tile", "-D", "M=400,N=400")
    assert status == 1 and "nothing was verified: the other sizes take" in err and "--all" in err


def test_verify_takes_sizes_that_the_divisors_allow(tilec, folder):
    text = "op f(x: f32[K], s: f32[K // 4]) -> (y: f32[K]) { y[k] = x[k] * s[k // 4] }"
    (folder / "blocks.tile").write_text(text)
    status, out, err = tilec("verify", "blocks.tile")
    assert (status, err) == (0, "") and "K=8                      right:" in out and "refused" not in out
    assert tilec("check", "blocks.tile") == (0, "", "")


def test_verify_says_how_far_it_is(tilec, folder, monkeypatch):
    monkeypatch.setattr("tilec.process.progress.FIRST", 0.0005)
    monkeypatch.setattr("tilec.process.progress.REPEATED", 0.0005)
    _, _, err = tilec("verify", "cos_cos.tile", "-D", "M=2,N=3")
    assert re.search(
        r"^still: checking M=2, N=3 \(1 of 1\), stage \w+ \(\d of 8\), \w+ inputs, \d+ s so far", err, re.MULTILINE
    )


def test_a_dump_of_other_sizes_is_not_wrong(tilec, folder):
    tilec("dump", "softmax.tile", "-D", "M=6,N=9", "-o", "ir")
    status, _, err = tilec("verify", "softmax.tile", "-D", "M=5,N=9", "--ir", "ir/04-tile.mlir")
    assert status == 1 and "is for other sizes: `x` is 6x9 there, and 5x9 by -D" in err


def test_old_chips(tilec, folder):
    for chip in ("sm_20", "sm_75"):
        _, _, err = tilec("explain", "softmax.tile", "-D", "M=4,N=4", "--target", chip)
        assert "sm_80 is the oldest chip" in err and "did you mean" not in err

"""`tilec verify`: right programs are right, and every kind of wrong stage is found, blamed on its pass, and made small."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures

from tilec import passes
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.semantics.interpreter import interpret
from tilec.semantics.verify_inputs import KINDS, first_sizes

PROGRAM = """op centred(x: f32[M, N], w: f32[N]) -> (y: f32[M, N], z: f32[M]) {
    m[i]    = mean[j](x[i, j])
    c[i, j] = x[i, j] - m[i]
    y[i, j] = exp(c[i, j]) * w[j]
    z[i]    = sum[j](c[i, j] * c[i, j])
}
"""


@pytest.fixture
def program(folder) -> Path:
    path = folder / "centred.tile"
    path.write_text(PROGRAM)
    return path


def swap(monkeypatch, name: str, other) -> None:
    """Another function takes the place of a pass."""
    found = lambda step: getattr(step, "__name__", None) == name  # noqa: E731
    assert any(found(step) for s in passes.STAGES for step in s.steps)
    swapped = (replace(s, steps=tuple(other if found(step) else step for step in s.steps)) for s in passes.STAGES)
    monkeypatch.setattr(passes, "STAGES", tuple(swapped))


def broken(monkeypatch, name: str, change) -> None:
    """A pass that does what it does, and then changes the IR once more."""
    (real,) = {step for s in passes.STAGES for step in s.steps if getattr(step, "__name__", None) == name}

    def wrong(op: ir.Operation) -> None:
        real(op)
        for inner in list(mlir.traverse(op)):
            change(inner)

    wrong.__name__ = f"wrong_{name}"
    swap(monkeypatch, name, wrong)


def add_for_subtract(op: ir.Operation) -> None:
    if op.name == "arith.subf":
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(mlir.arith.addf(*op.operands))
        op.erase()


def test_right(tilec, program):
    for target in ("cpu", "sm_90a"):
        status, out, err = tilec("verify", "centred.tile", "--target", target)
        assert status == 0, out + err
        assert out.count("right: " + ", ".join(KINDS)) >= 5 and not err
    assert re.search(r"M=0, N=7 .*right", out) and re.search(r"M=1, N=1 .*right", out)


@pytest.mark.some(3)
@pytest.mark.parametrize("name, target", [("fuse", "cpu"), ("map_kernels", "sm_80"), ("simplify", "sm_90a")])
def test_a_broken_pass_is_named_and_the_program_made_small(tilec, program, folder, monkeypatch, name, target):
    broken(monkeypatch, name, add_for_subtract)
    status, _, err = tilec("verify", "centred.tile", "--target", target)
    stage = {"map_kernels": "map"}.get(name, name)
    assert status == 70 and f"stage '{stage}' is wrong, by its pass 'wrong_{name}'" in err, err
    assert "OUT OF BOUNDS" in err and "at: M=1, N=1; inputs" in err
    assert re.search(r"these equations suffice: c \(\S*centred\.tile:3:\d+\)$", err, re.MULTILINE)
    text = (folder / "tilec-verify.mlir").read_text()
    assert f", target: {target}" in text.splitlines()[0] and text.count("linalg.generic") + text.count("scf.for") <= 3
    inputs = np.load(folder / "tilec-verify.npz")
    assert set(inputs) == {"x", "m"}
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    before = interpret(text, inputs)["c"]
    np.testing.assert_array_equal(before, inputs["x"] - inputs["m"][:, None])
    status, out, err = tilec(
        "opt", "tilec-verify.mlir", "--to", stage
    )  # the pass as it should be carries on from there
    assert status == 0, err
    np.testing.assert_array_equal(interpret(out, inputs)["c"], before)


def test_broken_only_where_a_tile_ends(tilec, program, monkeypatch):
    """Sizes around the plan's tiles find what small ones do not."""

    def without_bound(op: ir.Operation) -> None:
        if op.name == "affine.min":
            with ir.InsertionPoint(op), op.location:
                largest = max(
                    e.value for e in ir.AffineMapAttr(op.attributes["map"]).value.results if hasattr(e, "value")
                )
                op.results[0].replace_all_uses_with(mlir.index(largest))
            op.erase()

    broken(monkeypatch, "tile", without_bound)
    status, out, err = tilec("verify", "centred.tile", "--target", "sm_90a", "-D", "N=3")
    assert status == 70 and "stage 'tile' is wrong, by its pass 'wrong_tile'" in err, out + err
    assert "outside: " in err and "centred.tile:" in err


def test_a_pass_that_forgets_to_write(tilec, program, monkeypatch):
    broken(monkeypatch, "stage", lambda op: op.erase() if op.name == "linalg.fill" else None)
    status, _, err = tilec("verify", "centred.tile")
    assert status == 70 and "stage 'stage' is wrong, by its pass 'wrong_stage'" in err
    assert "unwritten: 'm' at element 0 is read, and nothing wrote it" in err


def test_a_pass_that_fails(tilec, program, folder, monkeypatch):
    def fail(op: ir.Operation) -> None:
        raise IndexError("no such luck")

    swap(monkeypatch, "tile", fail)
    status, _, err = tilec("verify", "centred.tile")
    assert status == 70 and "stage 'tile' is wrong, by its pass 'fail': no such luck" in err
    assert (folder / "tilec-verify.mlir").read_text().startswith("// tilec stage: fuse, target: cpu")


def test_ir_edited_by_hand(tilec, program, folder):
    tilec("dump", "centred.tile", "-D", "M=6,N=9", "--target", "sm_80", "-o", "ir")
    for stage in ("02-plan", "07-map"):
        path = folder / "ir" / f"{stage}.mlir"
        options = "centred.tile", "-D", "M=6,N=9", "--target", "sm_80", "--ir", path
        assert tilec("verify", *options)[0] == 0
        text = path.read_text()
        assert "math.exp" in text
        path.write_text(text.replace("math.exp", "math.sin"))
        status, _, err = tilec("verify", *options)
        assert status == 1 and f"{stage}.mlir is wrong: y: " in err, err
        path.write_text(re.sub(r"^.*(gpu\.shuffle|linalg\.fill).*\n", "", text, count=0, flags=re.MULTILINE))
        status, _, err = tilec("verify", *options)
        assert status == 1 and "is not valid MLIR" in err
    assert tilec("verify", "centred.tile", "--ir", path)[0] == 1  # for which sizes?


def test_a_schedule_edited_by_hand(tilec, program, folder, monkeypatch):
    tilec("plan", "centred.tile", "-D", "M=40,N=50")
    path = folder / "centred.sched.toml"
    path.write_text(re.sub(r"tile = \[\d+\]", "tile = [7]", path.read_text()))
    assert "obeying" not in tilec("verify", "centred.tile", "-D", "M=40,N=50", "--no-schedule")[2]
    options = "centred.tile", "-D", "M=40,N=50", "--schedule", path
    status, out, err = tilec("verify", *options)
    assert status == 0 and "M=40, N=50" in out and out.count("right:") == 1, err
    broken(monkeypatch, "tile", add_for_subtract)
    status, _, err = tilec("verify", *options)
    assert status == 70 and "stage 'tile' is wrong, by its pass 'wrong_tile'" in err
    assert "tile = array<i64: 7>" in (folder / "tilec-verify.mlir").read_text()


def test_sizes():
    chosen = first_sizes(["M", "N", "K"], {"K": 4})
    assert (
        chosen[0] == {"M": 5, "N": 7, "K": 4}
        and {"M": 0, "N": 7, "K": 4} in chosen
        and {"M": 1, "N": 1, "K": 4} in chosen
    )


def test_refused(tilec, folder):
    (folder / "short.tile").write_text("y[i] = x[i]")
    status, _, err = tilec("verify", "short.tile")
    assert status == 1 and "the short form does not say types" in err
    (folder / "even.tile").write_text("op f(x: f32[2 * N]) -> (y: f32[N]) { y[i] = x[2 * i] + x[2 * i + 1] }")
    assert tilec("verify", "even.tile")[0] == 0


def test_a_class_of_sizes_is_run_at_its_ends_and_at_drawn_sizes(tilec, program):
    status, out, _ = tilec("verify", str(program), "-D", "M=1..40,N=3", "--sizes", "5")
    assert status == 0
    found = re.findall(r"^  M=(\d+), N=3 +right: (.*)$", out, re.MULTILINE)
    assert [int(m) for m, _ in found[:5]] == [1, 2, 16, 3, 15]
    assert len(found) == 11 and [int(m) for m, _ in found[6:10]] == [17, 40, 18, 39]
    assert [kinds for _, kinds in found[1:4]] == [", ".join(KINDS)] * 2 + ["ordinary"]
    classes = re.findall(r"^(M = .*):$", out, re.MULTILINE)
    assert classes == ["M = 1", "M = 2..16, planned at M = 13", "M = 17..40, planned at M = 37"]


def test_a_pass_that_is_wrong_where_sizes_vary_is_named(tilec, program, monkeypatch):
    """At the least size of the class that shows it, as `opt` reads the IR."""
    broken(monkeypatch, "tile", add_for_subtract)
    status, _, err = tilec("verify", str(program), "-D", "M=3..16,N=2..9")
    assert status == 70 and "stage 'tile' is wrong, by its pass 'wrong_tile'" in err
    assert "at: M=3, N=2; inputs ordinary" in err, err
    assert tilec("opt", "tilec-verify.mlir", "--to", "tile")[0] == 0


def test_a_class_that_no_program_serves_is_reported(tilec, folder):
    (folder / "features.tile").write_text("""op f(q: f16[S, D], k: f16[S, D]) -> (o: f16[S, D]) {
        s[i, j]: f32 = sum[d](q[i, d] * k[j, d])
        p[i, j] = exp(s[i, j] - max[j](s[i, j]))
        o[i, d] = sum[j](p[i, j] * k[j, d]) / sum[j](p[i, j])
    }""")
    status, out, err = tilec("verify", "features.tile", "-D", "S=64,D=33..64", "--target", "h200")
    assert status == 1 and "compiled for each size" in out and "nothing was verified" in err

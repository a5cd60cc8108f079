"""`tilec dump`, `opt` and `emit`: every dump is an input, and the same kernels come out."""

import re
import sys

import pytest
from tools.commands import SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

from tilec.cli import common

# ---- dump and opt ----------------------------------------------------------------------------------------


def test_dump_prints_every_stage(tilec):
    status, out, err = tilec("dump", *SOFTMAX)
    assert status == 0 and err == ""
    assert re.findall(r"^// tilec stage: (\w+), target: cpu$", out, re.MULTILINE) == common.STAGES.split()
    assert "\x1b" not in out


def test_dump_after_one_stage(tilec):
    assert tilec("dump", *SOFTMAX, "--after", "tile")[1].count("// tilec stage:") == 1
    assert tilec("dump", *SOFTMAX, "--after", "emit")[1].startswith('"""Kernels of')
    assert "loc(" not in tilec("dump", *SOFTMAX, "--after", "build")[1]
    assert 'loc("softmax.tile":3:15)' in tilec("dump", *SOFTMAX, "--after", "build", "--locations")[1]


def test_dump_in_colour_marks_what_changed(tilec, monkeypatch):
    from tilec.cli import common, ir

    for module in (common, ir):
        monkeypatch.setattr(module, "coloured", lambda stream: stream is not sys.stderr)
    out = tilec("dump", *SOFTMAX)[1]
    assert "── plan: decides kernels" in out
    assert re.search(r"\x1b\[32m.*tilec.kernel = \"softmax_y\"", out)
    assert "\x1b[32m  func.func @softmax(" not in out.split("── fuse")[0]


def test_changed_lines_do_not_count_renumbering():
    from tilec.cli.ir import changed_lines

    assert changed_lines(["%0 = a", "%1 = b %0", "c"], ["%3 = a", "d", "%4 = b %3"]) == ({1}, 1)


@pytest.mark.parametrize(
    "program, sizes", [("softmax", "M=40,N=50"), ("mlp", "M=33,D=16,F=20"), ("variance", "M=30,N=70")]
)
def test_every_dump_is_an_input(tilec, folder, program, sizes):
    """From each stage on, the same kernels come out."""
    assert tilec("dump", f"{program}.tile", "-D", sizes, "-o", "ir") == (0, "", "")
    kernels = (folder / "ir" / "kernels.py").read_text()
    for number, stage in enumerate(common.STAGES.split()):
        path = folder / "ir" / f"{number:02}-{stage}.mlir"
        assert path.read_text().startswith(f"// tilec stage: {stage}, target: cpu\n")
        assert tilec("opt", path) == (0, kernels, "")


def test_opt_goes_to_a_stage_and_on_from_there(tilec, folder):
    tilec("dump", *SOFTMAX, "-o", "ir")
    assert tilec("opt", "ir/01-simplify.mlir", "--to", "fuse", "-o", "fused.mlir") == (0, "", "")
    fused = (folder / "fused.mlir").read_text()
    assert fused.startswith("// tilec stage: fuse, target: cpu\n")
    assert fused == (folder / "ir" / "03-fuse.mlir").read_text()
    assert tilec("opt", "fused.mlir")[1] == (folder / "ir" / "kernels.py").read_text()


def test_opt_runs_upstreams_passes(tilec, folder):
    tilec("dump", *SOFTMAX, "-o", "ir")
    status, out, _ = tilec("opt", "ir/00-build.mlir", "--passes", "canonicalize,cse")
    assert status == 0 and out.startswith("// tilec stage: build")
    status, _, err = tilec("opt", "ir/00-build.mlir", "--passes", "nonsense")
    assert status == 1 and "no such pipeline 'nonsense'" in err


def test_opt_refuses_what_it_cannot_place(tilec, folder):
    (folder / "a.mlir").write_text("module {}\n")
    assert "has no line `// tilec stage: …`" in tilec("opt", "a.mlir")[2]
    (folder / "b.mlir").write_text("// tilec stage: tile, target: cpu\nmodule { nonsense }\n")
    status, _, err = tilec("opt", "b.mlir")
    assert status == 1 and "'b.mlir' is not valid MLIR: " in err and "b.mlir:2:" in err and "nonsense" in err
    tilec("dump", *SOFTMAX, "-o", "ir")
    assert "stage 'plan' does not come after 'tile'" in tilec("opt", "ir/04-tile.mlir", "--to", "plan")[2]


@pytest.mark.parametrize("attribute", ["array<i640: 0, 1>", "{a = [array<f16: 1.0>]}", "loc(unknown)"])
@pytest.mark.parametrize("name", ["tilec.dims", "other"])
def test_opt_refuses_attributes_that_the_bindings_cannot_read(tilec, folder, name, attribute):
    (folder / "a.mlir").write_text(
        f"// tilec stage: plan, target: cpu\nmodule {{ func.func @f() attributes {{{name} = {attribute}}} {{ return }} }}\n"
    )
    status, _, err = tilec("opt", "a.mlir")
    assert status == 1 and f"in 'a.mlir', `{name}` on func.func has a type that tilec cannot read" in err


def test_edited_ir_is_obeyed(tilec, folder):
    """A tile that is changed in the dump after `plan` is the kernel's tile."""
    tilec("dump", "softmax.tile", "-D", "M=512,N=512", "-o", "ir")
    path = folder / "ir" / "02-plan.mlir"
    text = re.sub(r"tile = array<i64: \d+>", "tile = array<i64: 2>", path.read_text())
    path.write_text(text)
    printed = tilec("opt", path)[1]
    assert "i_start = i_block * 2\n" in printed and "for i_inner in range(2):\n" in printed


# ---- emit ------------------------------------------------------------------------------------------------


def test_emit(tilec, folder):
    assert "def softmax_y(block, args, scratch):" in tilec("emit", "--as", "numba", *SOFTMAX)[1]
    assert tilec("emit", "--as", "mlir", *SOFTMAX, "-o", "out.mlir") == (0, "", "")
    assert (folder / "out.mlir").read_text().startswith("// tilec stage: map")
    assert not list(folder.glob(".out*"))
    status, _, err = tilec("emit", "--as", "ptx", *SOFTMAX)
    assert status == 1 and "the target 'cpu' has no ptx" in err
    status, _, err = tilec("emit", "--as", "numba", *SOFTMAX, "--kernel", "nothing")
    assert status == 1 and "the kernels are softmax_y" in err


def test_emit_for_a_gpu_needs_none(tilec, folder):
    pytest.importorskip("cuda.core", reason="needs tilec[cuda]")
    status, out, err = tilec("emit", "--as", "ptx", "--target", "sm_90a", *SOFTMAX)
    assert status == 0 and ".target sm_90a" in out, err
    assert tilec("emit", "--as", "cubin", "--target", "sm_90a", *SOFTMAX, "-o", "out.cubin")[0] == 0
    assert (folder / "out.cubin").read_bytes()[:4] == b"\x7fELF"


def test_expectations_stop_emit_and_not_explain(tilec, folder):
    text = (folder / "mlp.tile").read_text().replace("\n}", "\n    expect kernels == 1\n}")
    (folder / "mlp.tile").write_text(text)
    options = ("mlp.tile", "-D", "M=8,D=8,F=8")
    status, out, err = tilec("emit", "--as", "numba", *options)
    assert (status, out) == (1, "") and "kernels is 2" in err and "note: refused gelu.x.sum with y" in err
    status, out, _ = tilec("explain", *options)
    assert status == 0 and "kernels == 1: FAILS (kernels is 2)" in out

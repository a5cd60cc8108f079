"""`tilec run`: inputs, the bound that results are held against, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from conftest import assert_within
from tools.commands import SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

SUM = 50 * 2.0**-24
"""What a row of 50 quotients by their sum may be off 1: 49 additions and a division in f32."""


def test_a_result_may_have_any_name(tilec, folder):
    """`np.savez` takes arrays as named arguments, and has arguments of its own."""
    Path("names.tile").write_text(
        "op f(x: f32[N]) -> (file: f32[N], allow_pickle: bf16[N]) { file[i] = x[i] + 1  allow_pickle[i] = x[i] }"
    )
    assert tilec("run", "names.tile", "-D", "N=5", "--seed", "1", "--save", "out.npz")[0] == 0
    with np.load("out.npz") as found:
        assert {n: a.dtype.name for n, a in found.items()} == {"file": "float32", "allow_pickle": "float32"}
        np.testing.assert_allclose(found["file"], found["allow_pickle"] + 1, rtol=1e-2, atol=1e-2)


def test_run_checks_times_and_saves(tilec, folder):
    status, out, err = tilec("run", *SOFTMAX, "--check", "--time", "--save", "out.npz")
    assert status == 0, out + err
    assert "within the bound" in out and "roofline" in out and "FLOP/s" in out and "predicted" in out
    y = np.load(folder / "out.npz")["y"]
    assert y.shape == (40, 50) and (abs(y.sum(1, dtype=np.float64) - 1) <= SUM).all()


def test_run_is_the_same_for_the_same_seed(tilec, folder):
    results = []
    for seed in (1, 1, 2):
        tilec("run", *SOFTMAX, "--seed", seed, "--save", "out.npz")
        results.append(np.load(folder / "out.npz")["y"])
    assert (results[0] == results[1]).all() and not (results[0] == results[2]).all()


def test_run_takes_sizes_and_values_from_files(tilec, folder):
    x = np.random.default_rng(0).standard_normal((6, 9))
    np.save("x.npy", x)  # f64: converted to the declared f32
    status, out, err = tilec("run", "softmax.tile", "--input", "x=x.npy", "--check", "--save", "y.npz")
    assert status == 0, err
    assert "f32[6, 9]  given" in out
    assert_within(folder / "softmax.tile", [x.astype(np.float32)], np.load("y.npz")["y"], kind="cpu")
    np.savez("all.npz", x=x.astype(np.float32))
    assert tilec("run", "softmax.tile", "--input", "all.npz", "--check")[0] == 0
    assert tilec("run", "softmax.tile", "--input", "x=all.npz", "-D", "M=6")[0] == 0


def test_run_mixes_given_and_random(tilec, folder):
    np.save("ids.npy", np.array([[1, 2, 3]], np.int32))
    status, out, _ = tilec(
        "run", "embedding.tile", "--input", "ids=ids.npy", "-D", "V=5,D=4", "--check", "--save", "y.npz"
    )
    assert status == 0 and "i32[1, 3]  given" in out and "bf16[5, 4]  random" in out
    assert np.load("y.npz")["y"].dtype == np.float32


def test_run_keeps_ids_inside_their_table(tilec):
    for seed in range(3):
        assert tilec("run", "embedding.tile", "-D", "B=2,S=9,V=3,D=4", "--seed", seed)[0] == 0


def test_run_reports_where_the_error_is(tilec, monkeypatch):
    """Results that are wrong are out of bounds, and the exit status says so."""
    from tilec.driver import devices

    results = devices.Host.results
    monkeypatch.setattr(devices.Host, "results", lambda self: {n: a + 1e-3 for n, a in results(self).items()})
    status, out, _ = tilec("run", *SOFTMAX, "--check")
    assert status == 1 and "OUT OF BOUNDS" in out


@pytest.mark.parametrize("arguments, message", [
    (["--input", "x=none.npy"], "cannot read 'none.npy'"),
    (["--input", "softmax.tile"], "'softmax.tile' is not a .npy or .npz file"),
    (["--input", "q=x.npy"], "there is no input `q`"),
    (["--input", "x=ints.npy"], "`x` is f32, but its file holds int64"),
    (["--input", "x=cube.npy"], "`x` has 2 dimensions, and the argument has 3"),
    (["--input", "x.npy"], "--input NAME=x.npy"),
    (["-D", "M=2,N=2", "--save", "out.txt"], "'out.txt' does not end in .npz"),
    (["-D", "M=2,N=2", "--save", "no/out.npz"], "cannot write 'no/out.npz'"),
    (["-D", "M=1000000000000,N=1000000000000"], "`x` is too large: no memory holds f32[1000000000000, 1000000000000]"),
])  # fmt: skip
def test_run_refuses(tilec, arguments, message):
    np.save("x.npy", np.zeros((2, 2), np.float32))
    np.save("ints.npy", np.zeros((2, 2), np.int64))
    np.save("cube.npy", np.zeros((2, 2, 2), np.float32))
    status, _, err = tilec("run", "softmax.tile", *arguments)
    assert status == 1 and message in err


def test_run_needs_a_gpu_for_cuda(tilec, monkeypatch):
    from tilec.runtime.cuda import driver as cuda_driver

    monkeypatch.setattr(cuda_driver, "device_info", lambda: cuda_driver.SystemInfo(problem="no driver here"))
    status, _, err = tilec("run", "--target", "sm_90a", *SOFTMAX)
    assert status == 1 and "there is no GPU to run on: no driver here" in err


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_run_interprets_a_stage(tilec, folder, target):
    for stage in ("build", "map"):
        status, out, err = tilec(
            "run", *SOFTMAX, "--target", target, "--interpret", stage, "--check", "--save", "y.npz"
        )
        assert status == 0, out + err
        assert f"interpreted after {stage}" in out and "within the bound" in out
        assert (abs(np.load("y.npz")["y"].sum(1, dtype=np.float64) - 1) <= SUM).all()
    assert tilec("run", *SOFTMAX, "--interpret", "mop")[0] == 1
    assert tilec("run", *SOFTMAX, "--interpret", "map", "--time")[0] == 1


def test_run_reports_of_broken_ir_with_what_went_into_the_stage(tilec, folder, monkeypatch):
    from tilec.passes.cuda.contraction import warps
    from tilec.passes.cuda.threaded import reduce

    for module in (warps, reduce):
        monkeypatch.setattr(module.gpu, "BarrierOp", lambda: None)
    status, _, err = tilec("run", "softmax.tile", "-D", "M=2,N=3000", "--target", "sm_80", "--interpret", "map")
    assert status == 70 and "race: " in err and "softmax.tile:" in err and "in stage 'map'" in err
    assert (folder / "tilec-error.mlir").read_text().startswith("// tilec stage: stage, target: sm_80")

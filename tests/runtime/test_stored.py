"""Programs from the disk cache: a later process runs them without the compiler, and a change of any part is seen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Within, assert_within
from tools import ROOT

import tilec
from tilec.core.diagnostics import Source
from tilec.driver.frontend import read_program
from tilec.runtime import cache

EXAMPLES = ROOT / "examples"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(path))
    monkeypatch.chdir(tmp_path)
    cache._checked.cache_clear()
    return path


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CALL = """
import sys
import numpy as np
import tilec
x = np.arange(48, dtype=np.float32).reshape(6, 8)
np.save("y.npy", tilec.compile({path!r})(x))
print(sorted(m for m in ("numba", "lark", "numba_cuda_mlir", "tilec.dsl.parse", "tilec.core.mlir") if m in sys.modules))
"""


def test_a_second_process_needs_no_compiler(folder):
    code = CALL.format(path=str(EXAMPLES / "softmax.tile"))
    within = Within(EXAMPLES / "softmax.tile", [np.arange(48, dtype=np.float32).reshape(6, 8)], kind="cpu")
    for compiles in (True, False):
        loaded = run(code).strip()
        assert "tilec.core.mlir" in loaded if compiles else loaded == "[]"
        within(np.load("y.npy"))


def test_a_second_process_needs_no_compiler_for_gpus(folder):
    pytest.importorskip("numba_cuda_mlir")
    compilers = ("tilec.runtime.cuda.compile", "tilec.core.mlir", "lark", "subprocess")
    code = (
        f"import sys, tilec\nop = tilec.compile({str(EXAMPLES / 'softmax.tile')!r}, target='h200').build(M=7, N=37)\n"
    )
    code += f"print(len(op._latest.cubins), [m for m in {compilers} if m in sys.modules])"
    assert run(code).strip() == f"1 {list(compilers)}" and run(code).strip() == "1 []"


def test_importing_tilec_loads_nothing_heavy():
    heavy = ("numba", "lark", "numpy", "numba_cuda_mlir", "llvmlite")
    assert run(f"import sys, tilec; print([m for m in {heavy} if m in sys.modules])").strip() == "[]"


def test_what_is_stored_can_still_be_looked_at(folder):
    tilec.compile(EXAMPLES / "mlp.tile").build(M=5, D=7, F=9)
    op = tilec.compile(EXAMPLES / "mlp.tile").build(M=5, D=7, F=9)
    assert [k.name for k in op.kernels] == [k.name for k in op.plan.kernels]
    assert all(k.predicted_us > 0 and f"def {k.name}(" in k.source for k in op.kernels)
    assert next(iter(op.stages)) == "build" and "mlp" in op.explain()


def test_an_import_that_changed_is_seen(folder, tmp_path):
    (tmp_path / "part.tile").write_text("def f(x) { return x * 2.0 }\n")
    main = tmp_path / "main.tile"
    main.write_text('import "part.tile"\nop go(x: f32[N]) -> (y: f32[N]) { y[i] = f(x[i]) }\n')
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(tilec.compile(main)(x), x * 2)
    (tmp_path / "part.tile").write_text("def f(x) { return x * 3.0 }\n")
    np.testing.assert_array_equal(tilec.compile(main)(x), x * 3)
    (tmp_path / "part.tile").unlink()
    with pytest.raises(tilec.TileError, match="no such file"):
        tilec.compile(main)


USES = 'import "lib.tile"\nop go(x: f32[N]) -> (y: f32[N]) { y[i] = f(x[i]) }\n'


@pytest.fixture
def factors(folder, tmp_path):
    """Folders `a`, `b`, `c`, of which `b` and `c` have a `lib.tile`, `a` a program that imports it, and `l` is a link to `a`."""
    for name in "abc":
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "lib.tile").write_text("def f(x) { return x * 2.0 }\n")
    (tmp_path / "c" / "lib.tile").write_text("def f(x) { return x * 3.0 }\n")
    (tmp_path / "a" / "p.tile").write_text(USES)
    (tmp_path / "l").symlink_to("a")
    return tmp_path


def factor(program, path=()):
    return tilec.compile(program, path=path, target="cpu")(np.ones(1, np.float32)).tolist()[0]


@pytest.mark.crossed
@pytest.mark.parametrize("main", ["a/p.tile", "l/p.tile"])
@pytest.mark.parametrize("first", ["a/lib.tile", "c/lib.tile"])
def test_an_import_that_is_found_earlier_is_seen(factors, main, first):
    """Beside the program, or in a folder that is named before."""
    (factors / "c" / "lib.tile").unlink()
    path = ["c", str(factors / "b")]
    assert factor(Path(main), path) == 2
    (factors / first).write_text("def f(x) { return x * 5.0 }\n")
    assert factor(Path(main), path) == 5
    (factors / first).unlink()
    assert factor(Path(main), path) == 2


def test_links_are_followed_anew(factors):
    """To a program from another folder, and to an import that is exchanged."""
    (factors / "b" / "p.tile").symlink_to("../a/p.tile")
    (factors / "c" / "p.tile").symlink_to("../a/p.tile")
    assert [factor(Path(f"{name}/p.tile")) for name in "bcb"] == [2, 3, 2]
    (factors / "one.tile").write_text("def f(x) { return x * 7.0 }\n")
    (factors / "two.tile").write_text("def f(x) { return x * 8.0 }\n")
    for name, wanted in (("one", 7), ("two", 8), ("one", 7)):
        (factors / "a" / "lib.tile").unlink(missing_ok=True)
        (factors / "a" / "lib.tile").symlink_to(f"../{name}.tile")
        assert factor(Path("a/p.tile"), factors) == wanted


def test_the_imports_of_a_text_are_those_of_the_folder(factors, monkeypatch):
    for name, wanted in (("b", 2), ("c", 3), ("b", 2)):
        monkeypatch.chdir(factors / name)
        assert factor(USES) == wanted


def test_a_text_without_imports_is_stored_once_for_all_folders(factors, monkeypatch):
    digests = set()
    for name in "abc":
        monkeypatch.chdir(factors / name)
        digests.add(read_program(Source("<program>", "y[i] = 2 * x[i]")).digest)
    assert len(digests) == 1


def test_a_program_with_mistakes_is_never_stored(folder):
    for _ in range(2):
        with pytest.raises(tilec.TileError):
            tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = z[i] }")
    assert not list(folder.rglob("*.json"))


def test_a_schedule_that_changed_is_seen(folder, tmp_path):
    main, beside = tmp_path / "go.tile", tmp_path / "go.sched.toml"
    main.write_text("op go(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] + 1.0 }\n")
    from tilec.plan.schedule.write import write_schedule

    first = tilec.compile(main).build(M=64, N=64)
    text = write_schedule(first.plan, first._last.recipe.lowered[0])
    x = np.ones((64, 64), np.float32)
    grids = set()
    for rows in (16, 32):
        import re

        beside.write_text(re.sub(r"tile = \[\d+", f"tile = [{rows}", text))
        op = tilec.compile(main)
        np.testing.assert_array_equal(op(x), x + 1)
        grids.add(op.kernels[0].grid)
    assert len(grids) == 2


@pytest.mark.parametrize("damage", ["truncate", "fields", "types"])
def test_damaged_records_are_compiled_again(folder, damage):
    x = np.ones((3, 4), np.float32)
    tilec.compile(EXAMPLES / "softmax.tile")(x)
    for index in (folder / "entries").glob("*.json"):
        record = json.loads(index.read_text())
        match damage:
            case "truncate":
                index.write_text(index.read_text()[:-20])
            case "fields":
                index.write_text(json.dumps(record | {"properties": {}, "files": {}}))
            case "types":
                index.write_text(json.dumps(record | {"properties": {k: 1 for k in record["properties"]}}))
    assert_within(EXAMPLES / "softmax.tile", [x], tilec.compile(EXAMPLES / "softmax.tile")(x), kind="cpu")


def test_machine_code_that_needs_what_is_not_there_is_compiled_again(folder):
    x = np.ones((3, 4), np.float32)
    tilec.compile(EXAMPLES / "softmax.tile")(x)
    changed = 0
    for index in (folder / "entries").glob("*.json"):
        record = json.loads(index.read_text())
        if "needs" in record["properties"]:
            record["properties"]["needs"] = {k: ["no_such_function"] for k in record["properties"]["needs"]}
            index.write_text(json.dumps(record))
            changed += 1
    assert changed == 1
    code = CALL.format(path=str(EXAMPLES / "softmax.tile"))  # a process that has not loaded it yet
    run(code.replace("reshape(6, 8)", "reshape(6, 8)[:3, :4].copy() * 0 + 1"))
    assert_within(EXAMPLES / "softmax.tile", [np.ones((3, 4), np.float32)], np.load("y.npy"), kind="cpu")

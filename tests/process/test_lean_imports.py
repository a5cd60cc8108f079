"""Packages imported without a part that comes when it is asked for: nobody else can tell."""

import importlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tilec.process.lean_imports import Later, executing, import_without, stand_in

BODY = """
from {name}.part.inner import first, second
from {name}.part import first as renamed
from {name}.other import value
import {name}.other

def again():
    from {name}.part.inner import first
    return first

total = 3
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package that imports from a part of itself."""

    def write(name, body=BODY):
        folder = tmp_path / name
        (folder / "part").mkdir(parents=True)
        (folder / "__init__.py").write_text(body.format(name=name))
        (folder / "part" / "__init__.py").write_text(f"import {name}.part.inner as inner\nfirst = 'outer'\n")
        (folder / "part" / "inner.py").write_text("first, second, __all__ = 1, 2, ['first']\n")
        (folder / "other.py").write_text("value = 7\n")
        return name

    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield write
    assert sys.meta_path == finders
    for name in [m for m in sys.modules if m.startswith("lean_")]:
        del sys.modules[name]


def test_what_is_left_out_comes_when_it_is_asked_for(package):
    name = package("lean_a")
    module = import_without(name, f"{name}.part")
    assert f"{name}.part" not in sys.modules and (module.value, module.total) == (7, 3)
    assert (module.first, module.second, module.renamed) == (1, 2, "outer") and f"{name}.part" in sys.modules
    assert module.again() == 1 and "__getattr__" not in vars(module)
    assert importlib.import_module(name) is module and type(module.__spec__.loader).__name__ == "SourceFileLoader"
    with pytest.raises(AttributeError, match="has no attribute 'none'"):
        _ = module.none


def test_a_part_that_is_there_as_a_consequence(package):
    name = package("lean_b")
    module = import_without(name, f"{name}.part")
    assert module.part.inner.second == 2
    with pytest.raises(AttributeError, match="has no attribute 'none'"):
        _ = import_without(package("lean_b2"), "lean_b2.part").none


def test_others_import_the_package_and_its_part_as_ever(package):
    name = package("lean_c")
    import_without(name, f"{name}.part")
    assert importlib.import_module(f"{name}.part.inner").first == 1
    space: dict = {}
    exec(f"from {name} import first, total\nfrom {name} import *", space)
    assert space["first"] == 1 and space["again"]() == 1


def test_a_package_that_is_loaded_stays_as_it_is(package):
    name = package("lean_d")
    module = importlib.import_module(name)
    assert import_without(name, f"{name}.part") is module and vars(module)["second"] == 2


def test_all_names_of_a_part_are_not_put_off(package):
    name = package("lean_e", "from {name}.part.inner import *\n")
    assert vars(import_without(name, f"{name}.part"))["first"] == 1


def test_a_body_that_fails_leaves_nothing(package):
    name = package("lean_f", "from {name}.part import first\nraise RuntimeError('no')\n")
    with pytest.raises(RuntimeError, match="no"):
        import_without(name, f"{name}.part")
    assert name not in sys.modules


def test_a_body_can_be_run_in_another_setting(package):
    name = package("lean_g", "from lean_g.other import value\nimport lean_g.part\n")
    ran = []

    def run(module, execute):
        importlib.import_module("lean_g.other").value = 9
        execute()
        ran.append(vars(module)["value"])

    with executing(name, run):
        module = importlib.import_module(name)
    assert ran == [9] and module.value == 9 and module.part.inner.second == 2


def test_a_module_that_is_never_imported_is_waited_for_in_silence():
    """Until the interpreter takes its modules apart, in the order of Python 3.12 and later."""
    lines = "import gc, sys", "from tilec.process.untraced import leave_out", "leave_out()"
    lines += "sys.meta_path.clear()", "sys.meta_path = None", "gc.collect()"
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_what_comes_later_is_made_once():
    made = []

    def make():
        made.append(len(made))
        return str

    later = Later(make)
    assert not made
    assert later(5) == "5" and later.upper("a") == "A" and made == [0]
    with pytest.raises(AttributeError):
        _ = later.none


def test_a_stand_in_has_names_and_nothing_behind_them(package, monkeypatch):
    name = package("lean_h")
    before = list(sys.meta_path)
    stand_in(f"{name}.part", __version__="1.2")
    try:
        module = importlib.import_module(name)
        assert isinstance(module.first, type) and not isinstance(1, module.first) and module.total == 3
        assert module.renamed is module.part.first and module.part.__version__ == "1.2"
        assert module.first is module.part.inner.first and module.first is not module.renamed
        with pytest.raises(AttributeError, match="no attribute '__none__'"):
            _ = module.part.__none__
    finally:
        sys.meta_path[:] = before


def test_a_stand_in_takes_nothing_from_who_has_the_module(package):
    name = package("lean_i")
    module, before = importlib.import_module(f"{name}.part"), list(sys.meta_path)
    stand_in(f"{name}.part")
    assert sys.meta_path == before and importlib.import_module(f"{name}.part") is module


def test_operations_that_mlir_defines_later_work():
    pytest.importorskip("numba_cuda_mlir")
    from tilec.core import mlir

    late = [n for n, v in vars(mlir.linalg).items() if isinstance(v, Later)]
    assert "copy" in late and mlir.linalg.copy.op_name == "copy"
    assert mlir.linalg.linalg_structured_op.__module__.endswith("opdsl.lang.dsl")
    with mlir.context(), mlir.ir.Location.unknown():
        module = mlir.ir.Module.create()
        with mlir.ir.InsertionPoint(module.body):
            f32 = mlir.ir.F32Type.get()
            a, b = (mlir.tensor.empty([4], f32) for _ in range(2))
            mlir.linalg.copy(a, outs=[b])
        assert "linalg.copy" in str(module)


def test_mlir_comes_without_the_compiler_next_to_it_which_others_can_use():
    pytest.importorskip("numba_cuda_mlir.cuda")
    code = """
import sys
from types import SimpleNamespace
finders = list(sys.meta_path)
import tilec.core.mlir
import numba_cuda_mlir
assert not [m for m in ("numba_cuda_mlir.numba_cuda", "cuda", "numba", "torch") if m in sys.modules]
assert sys.meta_path == finders and numba_cuda_mlir.__version__
from numba_cuda_mlir import carray
from numba_cuda_mlir.numba_cuda.np import numpy_support
assert carray is numpy_support.carray and numba_cuda_mlir.farray is numpy_support.farray
from numba_cuda_mlir import cuda
assert cuda.jit
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_compiler_loads_before_numpy_and_the_parser():
    """Their imports take a tenth of a second, in which its process works already."""
    code = """
import sys
from types import SimpleNamespace
import tilec
from tilec.process import compile_server

def start(kind):
    assert not [m for m in ("numpy", "ml_dtypes", "lark", "tilec.core.mlir") if m in sys.modules]
    print(kind)

compile_server.start = start
tilec.compile("y[i] = x[i] + 1", target="sm_90a")
"""
    variables = os.environ | {"TILEC_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=variables, capture_output=True, text=True)
    assert done.stdout.split() == ["tilec.runtime.cuda.compile"]


def test_what_is_made_later_is_made_whole():
    """Ctrl-C within the making acts after it: a second attempt would register things again, which MLIR's bindings refuse."""
    made = []

    def make():
        signal.raise_signal(signal.SIGINT)
        made.append(1)
        return SimpleNamespace(value=3)

    later = Later(make)
    with pytest.raises(KeyboardInterrupt):
        later.value  # noqa: B018
    assert later.value == 3 and made == [1]

"""Without the `cuda` extra: one line that says what is missing and how to install it, and all else as ever."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tools.commands import QUIET, SOFTMAX, examples_folder, tilec_command  # noqa: F401 - fixtures

from tilec.runtime.cuda import toolkit

WITHOUT = {
    # what `pip install -e .` leaves: the libraries and the assembler come with the extra
    "libraries": """
import cuda.pathfinder as found
def absent(name):
    raise found.DynamicLibNotFoundError(name)
found.load_nvidia_dynamic_lib, found.find_nvidia_binary_utility = absent, lambda name: None
import shutil
which = shutil.which
shutil.which = lambda name, *rest, **options: None if name == "ptxas" else which(name, *rest, **options)
""",
    "packages": "import sys\nsys.modules['cuda'] = None\n",
}
MISSING = {"libraries": "nvvm, nvrtc, ptxas", "packages": "cuda.bindings, cuda.core, cuda.pathfinder, nvvm, nvrtc"}


@pytest.mark.skipif(os.name == "nt", reason="POSIX paths")
@pytest.mark.parametrize("lacking", WITHOUT)
def test_without_the_extra(folder, lacking):
    """In processes whose Python begins with that, as do the compiler's."""
    (folder / "hidden").mkdir()
    (folder / "hidden" / "sitecustomize.py").write_text(WITHOUT[lacking])
    script = f"""
import tilec
from tilec.cli import command as cli
{QUIET}
assert cli.main(["doctor"]) == 0
for form in ("ptx", "cubin"):
    assert cli.main(["emit", "--as", form, "--target", "h200", *{SOFTMAX!r}]) == 1
for arguments in (["explain"], ["dump", "--after", "map"], ["plan", "-o", "-"], ["emit", "--as", "numba"]):
    assert cli.main([*arguments, "--target", "h200", *{SOFTMAX!r}]) == 0
assert cli.main(["run", *{SOFTMAX!r}, "--check"]) == 0
"""
    environment = os.environ | {"PYTHONPATH": str(folder / "hidden"), "TILEC_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    line = f"the compiler for GPUs is not installed (missing: {MISSING[lacking]}"
    refused = done.stderr.splitlines()
    assert len(refused) == 2 and refused[0] == refused[1], done.stderr
    assert refused[0].startswith(f"error: {line}") and refused[0].endswith("[cuda]'")
    first, blank, *rest = done.stdout.splitlines()
    assert first == refused[0].replace("error: ", "problem: ") and not blank and "software" in rest


def test_every_way_to_a_cubin_says_so(monkeypatch):
    """Calls and graphs take the cubins of `CudaExecutable`, as do commands."""
    from tilec import api
    from tilec.driver import cuda_executable
    from tilec.process import compile_server
    from tilec.runtime.cuda import compile as cuda_compile

    def fail(*arguments):
        raise RuntimeError("libnvrtc.so.13 not found")

    monkeypatch.setattr(compile_server, "ask", lambda *request: None)
    monkeypatch.setattr(cuda_compile, "_operator_values", fail)
    monkeypatch.setattr(toolkit, "toolkit_library", lambda name: None if name == "nvrtc" else name)
    source = "op lacking(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] * 77 + 5 }"
    built = api.compile(source, target="sm_90a").build(N=64)._last
    assert isinstance(built, cuda_executable.CudaExecutable)
    with pytest.raises(
        toolkit.NoCompiler, match=r"^the compiler .*\(missing: nvrtc\); install it by: .*\[cuda\]'$"
    ):
        _ = built.cubins


@pytest.mark.parametrize("origin, message", [
    (None, "'tilec[cuda]'"),
    ({"url": "https://example.org/tilec.whl"}, "'tilec[cuda]'"),
    ({"url": "file:///a%20b/tilec", "dir_info": {}}, "'/a b/tilec[cuda]'"),
    ({"url": "file:///src/it's", "dir_info": {"editable": True}}, """-e '/src/it'"'"'s[cuda]'"""),
    ({"url": "file://{here}", "dir_info": {"editable": True}}, "-e '.[cuda]'"),
])  # fmt: skip
def test_the_command_installs_from_where_tilec_came(folder, monkeypatch, origin, message):
    text = origin and json.dumps(origin).replace("{here}", str(folder))
    monkeypatch.setattr(toolkit, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    command = toolkit.install_command()
    assert command.endswith(f" install {message}")
    assert command.startswith(("pip ", f"{sys.executable} -m pip "))


def test_another_pip_is_not_named(monkeypatch, tmp_path):
    (tmp_path / "pip").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolkit.install_command().startswith(f"{sys.executable} -m pip install ")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert toolkit.install_command().startswith("pip install ")


def test_a_whole_installation_has_no_problem(tilec):
    pytest.importorskip("cuda.core")
    assert toolkit.missing() == ()
    assert tilec("doctor")[1].startswith("software\n")

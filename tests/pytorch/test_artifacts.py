"""`torch.compiler.save_cache_artifacts()` carries tilec's cache to processes and machines that have none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled, mlp  # noqa: E402

from tilec.driver.frontend import parsed  # noqa: E402
from tilec.driver.recipe import Recipe  # noqa: E402
from tilec.process import compile_server  # noqa: E402
from tilec.runtime.cpu import objects  # noqa: E402
from tilec.torch import artifacts, shared  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


def test_an_entry_is_one_line_and_its_files():
    entry = {"a": [1, None]}, {"x": b"one\ntwo", "empty": b"", "y": bytes(range(256))}
    assert artifacts._unpacked(artifacts._packed(*entry)) == entry


def test_a_process_with_an_empty_cache_compiles_nothing(tmp_path, monkeypatch):
    def step():
        torch._dynamo.reset()
        shared.forget()
        torch.manual_seed(3)
        model = mlp()
        compiled(model)(torch.ones(5, 8)).sum().backward()
        return [p.grad for p in model.parameters()]

    from torch.compiler._cache import CacheArtifactManager

    with CacheArtifactManager.with_fresh_cache():
        monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "one"))
        expected = step()
        saved, reported = torch.compiler.save_cache_artifacts()
    assert len(reported.tilec_artifacts) >= 6  # of two programs: the text, the launches, the machine code

    def never(*args, **options):
        raise AssertionError("this is in the cache")

    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "two"))
    monkeypatch.setattr(Recipe, "_elsewhere", never)
    monkeypatch.setattr(Recipe, "compiled_here", never)
    monkeypatch.setattr(objects, "_compiled", never)
    monkeypatch.setattr(compile_server, "ask", never)
    monkeypatch.setattr(f"{parsed.__module__}.parsed", never)
    torch.compiler.load_cache_artifacts(saved)
    for one, other in zip(step(), expected, strict=True):
        assert torch.equal(one, other)


MAKES = """
import sys, pathlib, torch, tilec.torch
from tilec.process import compile_server
if sys.argv[1] == "load":
    torch.compiler.load_cache_artifacts(pathlib.Path(sys.argv[2]).read_bytes())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
torch.compile(model, backend="tilec")(torch.ones(5, 8)).sum().backward()
if sys.argv[1] == "save":
    pathlib.Path(sys.argv[2]).write_bytes(torch.compiler.save_cache_artifacts()[0])
print("compiled" if any(server.used for server in compile_server._running.values()) else "nothing was compiled")
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
    for way, message in (("save", "compiled"), ("load", "nothing was compiled")):
        environment = os.environ | {"TILEC_CACHE_DIR": str(tmp_path / way)}
        command = [sys.executable, "-c", MAKES, way, str(tmp_path / "artifacts")]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.stdout.strip() == message, run.stderr

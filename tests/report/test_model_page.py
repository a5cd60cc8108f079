"""`tilec torch report --html`: the page about a dumped PyTorch model. PyTorch itself is not needed."""

import json
from dataclasses import asdict

import pytest
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures
from tools.pages import BROWSER, Page, opened

from tilec.torch.reports import Eager, GraphReport, PartReport

PROGRAM = """# x0: args.0
# x1: layers.0.weight
op f(x0: f32[S0, 64], x1: f32[64, 64]) -> (relu: f32[S0, 64]) {
  mm[i0, i1]: f32 = sum[k0 in 0:64](x0[i0, k0] * x1[k0, i1]) where i0 in 0:S0, i1 in 0:64  # aten.mm.default, layers.0, net.py:7
  relu[i0, i1]: f32 = max(mm[i0, i1], 0.0) where i0 in 0:S0, i1 in 0:64  # aten.relu.default, layers.1, net.py:8
}
"""


@pytest.fixture
def dumped(folder):
    part = PartReport("part0", 2, 2, 1, device="cpu", programs={"part0.tile": {"S0": 33}})
    wrong = PartReport("part1", 1, 1, 1, device="cpu", programs={"part1.tile": {}})
    eager = [Eager("linalg_qr", "it is a factorization", "layers.2", "net.py:9")]
    graph = GraphReport("000-inference", "inference", seconds=1.5, parts=[part, wrong, PartReport("part2", 3)], eager=eager)
    (made := folder / "dumped" / graph.name).mkdir(parents=True)
    (made / "part0.tile").write_text(PROGRAM)
    (made / "part1.tile").write_text("y[i] = ")
    (made / "graph.json").write_text(json.dumps(asdict(graph)))
    return folder


@pytest.fixture
def text(dumped, tilec):
    status, _, err = tilec("torch", "report", "dumped", "--html", "model.html", "--target", "h200")
    assert (status, err) == (0, "wrote model.html\n")
    return (dumped / "model.html").read_text()


def test_the_page_has_layers_kernels_and_what_pytorch_runs(text):
    found = Page(text)
    assert {t.removeprefix("#") for t in found.targets} <= set(found.ids) and found.loaded == ["data:,"]
    for expected in ("layers.0", "layers.1", "f_relu", "NVIDIA H200", "at S0 = 33", "linalg_qr", "it is a factorization",
                     "net.py:9", "part1.tile:1:", "the dump has no program of it"):  # fmt: skip
        assert expected in found.text, expected
    assert "tilec report dumped/000-inference/part0.tile -D S0=33 --target h200" in found.text


@pytest.mark.skipif(BROWSER is None, reason="no headless browser")
def test_a_browser_opens_it(text, tmp_path):
    found = opened(text, tmp_path, 400)
    assert found["console"] == [] and found["nameless"] == [] and found["width"] <= found["window"]


def test_what_is_refused(dumped, tilec):
    status, _, err = tilec("torch", "report", "dumped", "--target", "h200")
    assert status == 1 and "hint: add --html FILE" in err
    status, _, err = tilec("torch", "report", "dumped", "--html", "model.html", "--target", "h2000")
    assert status == 1 and "h2000" in err and not (dumped / "model.html").exists()

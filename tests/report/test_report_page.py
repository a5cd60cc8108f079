"""`tilec report`: what the page holds, that its links lead somewhere, and that it opens without faults."""

import sys
import time

import pytest
from tools import ROOT
from tools.commands import examples_folder, tilec_command  # noqa: F401 - fixtures
from tools.pages import BROWSER, Page, opened

import tilec
from tilec.core.diagnostics import CallError
from tilec.core.varying import ranges_text
from tilec.plan.report.explain import explain
from tilec.report.page import page
from tilec.report.subject import Subject
from tilec.runtime.cuda import cubins, disassemble
from tilec.runtime.cuda.toolkit import NoCompiler, missing

BLOCK = {"B": 1, "S": 256, "E": 256, "H": 4, "D": 64, "F": 512}


def lowered(name, op, target, **sizes):
    program = tilec.compile(ROOT / "examples" / f"{name}.tile", op=op, target=target).build(**sizes)
    return Subject(*program._lowered)


@pytest.fixture(scope="module")
def attention():
    return lowered("attention", "causal_attention", "h200", B=1, H=2, S=512, D=64)


@pytest.fixture(scope="module")
def block():
    return lowered("transformer_block", "transformer_block", "h200", **BLOCK)


@pytest.fixture(scope="module", params=["attention", "block", "softmax"])
def subject(request):
    if request.param == "softmax":
        return lowered("softmax", "softmax", "cpu", M=64, N=100)
    return request.getfixturevalue(request.param)


def test_the_page_says_what_explain_says(subject):
    """Every decision with its reason, and the facts of every kernel."""
    text, plan = Page(page(subject)).text, subject.plan
    for remark in plan.remarks:
        assert f"{remark.verb} {remark.subject}" in text and " ".join(remark.reason.split()) in text
    for kernel in plan.kernels:
        assert all(node in text for node in kernel.nodes)
    rows = [line.strip() for line in explain(plan, subject.specialised).split("\ndecisions")[0].splitlines()[3:]]
    labels = ("grid", "occupancy", "intensity", "operations")
    facts = [" ".join(row.split(None, 1)[1].split()) for row in rows if row.startswith(labels)]
    assert len(facts) >= 3 * len(plan.kernels) and all(fact in text for fact in facts)


def test_links_lead_somewhere_and_nothing_is_loaded(subject):
    found = Page(page(subject))
    assert len(found.ids) == len(set(found.ids))
    assert {t for t in found.targets if t.removeprefix("#") not in found.ids or not t.startswith("#")} == set()
    assert found.loaded == ["data:,"]  # the icon, which browsers ask for elsewhere


def test_every_line_of_a_kernel_has_links_both_ways(block):
    text = page(block)
    found = Page(text)
    for number, kernel in enumerate(block.plan.kernels, 1):
        assert kernel.lines and f"#K{number}" in found.targets
        head = text.index(f'id="K{number}"')
        section = text[head : text.index("</article>", head)]
        for file, line in kernel.lines:
            label = f'">{file.rpartition("/")[2]}:{line}</a>'
            anchor = next(i for i in found.ids if f'<a href="#{i}{label}' in section)
            assert f'data-l="{anchor}' in section or f" {anchor}" in section
        for stage in ("build", "simplify", "plan", "fuse", "tile", "bufferize", "stage", "map", "Numba"):
            assert f"<b>{stage}</b>" in section, (kernel.name, stage)


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_a_page_says_which_sizes_vary(target):
    program = "op f(x: f32[M, N]) -> (y: f32[M, N]) { m[i] = max[j](x[i, j])  y[i, j] = x[i, j] - m[i] }"
    op = tilec.compile(program, target=target, varies={"M": (1, 4096)}).build(M=77, N=512)
    text = Page(page(Subject(*op._lowered))).text
    assert f"{op.plan.signature} with {ranges_text(op.plan.varies)}" in text and "planned at N = 512, M = " in text


def test_texts_of_programs_are_escaped():
    text = tilec.compile("# <b id=x>&\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }", target="cpu").build(N=4).report()
    assert "&lt;b id=x&gt;&amp;" in text and "<b id=x>" not in text


@pytest.mark.parametrize("name, op, sizes, most", [
    ("softmax", "softmax", {"M": 4096, "N": 1024}, 1 << 20),
    ("transformer_block", "transformer_block", {"B": 1, "S": 2048, "E": 2048, "H": 16, "D": 128, "F": 8192}, 8 << 20),
])  # fmt: skip
def test_pages_are_small_and_soon_made(name, op, sizes, most):
    subject = lowered(name, op, "h200", **sizes)
    begin = time.perf_counter()
    text = page(subject)
    assert time.perf_counter() - begin < 2
    assert len(text.encode()) < most


def test_without_jinja_the_error_says_what_to_install(monkeypatch, attention):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(CallError, match=r"Jinja2.*\n.*tilec\[report\]"):
        page(attention)


def test_what_steers_a_readers_eyes_is_escaped():
    program = "# \u202eabc\x1b\r\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }\r\n"
    text = tilec.compile(program, target="cpu").build(N=4).report()
    assert "# \\u202eabc\\x1b</span>" in text and not {"\u202e", "\x1b", "\r"} & set(text)


def test_a_gpus_kernels_have_machine_code(monkeypatch, tmp_path):
    """SASS by a stand-in for `nvdisasm`, which no package has."""
    if missing():
        pytest.skip("no compiler for GPUs")
    op = tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }", target="h200").build(N=1000)
    monkeypatch.setattr(disassemble, "tool_path", lambda name: None)
    text = op.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    assert "<b>PTX</b>" in text and ".visible .entry" in text and "<b>SASS</b>" not in text and "nvdisasm" in text
    (tool := tmp_path / "nvdisasm").write_text('#!/bin/sh\ntest -s "$2" && echo "FADD R1, R0, 1 ;"\n')
    tool.chmod(0o755)
    monkeypatch.setattr(disassemble, "tool_path", lambda name: str(tool))
    text = op.report()
    assert "<b>SASS</b>" in text and "FADD R1, R0, 1 ;" in text and "nvdisasm" not in text


def test_a_page_says_why_it_has_no_machine_code(monkeypatch):
    def refuse(*_: object) -> None:
        raise NoCompiler("the compiler for GPUs is not installed")

    op = tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 2 }", target="h200").build(N=1000)
    monkeypatch.setattr(cubins, "program_cubins", refuse)
    text = Page(op.report()).text
    assert "There is no machine code: " in text and "the compiler for GPUs is not installed" in text and "printed kernel" in text


def test_explain_writes_the_page_too(tilec, folder):
    status, out, err = tilec("explain", "softmax.tile", "-D", "M=8,N=8", "--html", "page.html")
    assert status == 0 and out.startswith("softmax(x: f32[8, 8])") and err == "wrote page.html\n"
    assert "M = 8, N = 8" in Page((folder / "page.html").read_text(encoding="utf-8")).text


@pytest.mark.skipif(BROWSER is None, reason="no headless browser")
@pytest.mark.parametrize("width, dark", [(400, True), (1600, False)])
def test_a_browser_opens_it(tmp_path, block, width, dark):
    found = opened(page(block), tmp_path, width, dark)
    assert found["console"] == []
    assert found["nameless"] == []
    assert found["width"] <= found["window"]  # code scrolls in its box; the page does not scroll sideways
    assert len(found["marked"]) > 8 and min(found["marked"]) > 0
    assert (found["background"] == "rgb(255, 255, 255)") is not dark


def test_kernels_of_one_text_show_it_once():
    """Two layers of equal kernels, which are printed and compiled once."""
    op = tilec.compile("""op f(x: bf16[M, M], u: bf16[M, M], v: bf16[M, M], w: bf16[M, M]) -> (z: bf16[M, M]) {
        a[i, j]: bf16 = relu(sum[k](x[i, k] * u[k, j]))
        b[i, j]: bf16 = relu(sum[k](a[i, k] * v[k, j]))
        z[i, j] = relu(sum[k](b[i, k] * w[k, j]))
    }""", target="h200").build(M=1024)
    subject = Subject(*op._lowered)
    emitted = subject.lowered.emitted
    repeated = len(emitted.launched) - len(emitted.kernels)
    assert repeated > 0
    text = page(subject)
    assert text.count("<b>Numba</b>") == len(emitted.kernels)
    assert text.count("Its printed text and machine code are those of kernel") == repeated

"""`%load_ext tilec`: cells of programs, what ops and plans show, and mistakes without tilec's own frames."""

import re

import numpy as np
import pytest
from tools import ROOT
from tools.pages import Page

import tilec

pytest.importorskip("IPython")

SOFTMAX = """op softmax(x: f32[M, N]) -> (y: f32[M, N]) {
    e[i, j] = exp(x[i, j] - max[k](x[i, k]))
    y[i, j] = e[i, j] / sum[k](e[i, k])
}"""
TWO = "op one(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }\nop two(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 2 }"


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """A shell with the extension, that shows results of all kinds."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    made = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}), colors="nocolor")
    made.display_formatter.active_types = made.display_formatter.format_types
    made.run_line_magic("load_ext", "tilec")
    yield made
    made.run_line_magic("unload_ext", "tilec")
    assert "tile" not in made.magics_manager.magics["cell"]
    InteractiveShell.clear_instance()


def run(shell, cell):
    """The value of a cell without mistakes."""
    found = shell.run_cell(cell)
    found.raise_error()
    return found.result


def shown(shell, value):
    return shell.display_formatter.format(value)[0]


def mistake(shell, cell, capsys):
    """What a cell with a mistake prints."""
    capsys.readouterr()
    assert not shell.run_cell(cell).success
    out, err = capsys.readouterr()
    return (out + err).splitlines()


def test_a_cell_is_bound_to_its_name(shell):
    assert run(shell, f"%%tile rows\n{SOFTMAX}") is None
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_allclose(shell.user_ns["rows"](x).sum(1), 1, rtol=1e-6)


def test_ops_of_a_cell_have_their_own_names(shell):
    run(shell, f"%%tile\n{TWO}")
    x = np.zeros(3, np.float32)
    assert [shell.user_ns[name](x)[0] for name in ("one", "two")] == [1, 2]
    run(shell, f"%%tile other --op two\n{TWO}")
    assert shell.user_ns["other"](x)[0] == 2


def test_sizes_compile_at_once_and_show_the_op(shell):
    op = run(shell, f"%%tile rows -D M=6,N=7\n{SOFTMAX}")
    card = Page(shown(shell, op)["text/html"]).text
    assert "op softmax" in card and "compiled for x: f32[6, 7]" in card and op.kernels[0].name in card
    varying = run(shell, f"%%tile rows -D M=1..64 -D N=7 --target h200\n{SOFTMAX}")
    assert varying.classes() and "target h200" in Page(shown(shell, varying)["text/html"]).text


def test_an_op_shows_its_program_without_compiling(shell):
    op = tilec.compile("# <b>\ny[i] = x[i] + 1")
    html = shown(shell, op)["text/html"]
    assert "# &lt;b&gt;\ny[i]" in html and "not compiled yet" in html and op._latest is None


def test_a_plan_shows_its_kernels_and_decisions(shell):
    plan = run(shell, f"%%tile rows -D M=64,N=100\n{SOFTMAX}").plan
    found = shown(shell, plan)
    text = Page(found["text/html"]).text
    for part in [*(k.name for k in plan.kernels), *(f"{r.verb} {r.subject}" for r in plan.remarks)]:
        assert part in text
    assert found["text/plain"].startswith("plan of softmax(x: f32[64, 100])") and len(found["text/plain"]) < 300


def test_an_explanation_shows_as_it_is_printed(shell):
    op = tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }", target="cpu").build(N=8)
    assert shown(shell, op.explain())["text/plain"] == op.explain()


def test_a_kernel_shows_its_source(shell):
    (kernel,) = tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }", target="cpu").build(N=8).kernels
    assert kernel.source in shown(shell, kernel)["text/plain"]


def test_a_cells_mistake_is_shown_with_its_line_in_the_cell(shell, capsys):
    found = mistake(shell, "%%tile f\n# a comment\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = foo(x[i]) }", capsys)
    assert found[0].startswith("TileError: <f>:3:41: error: unknown function `foo`")
    assert found[2].index("^") == found[1].index("foo(x") and len(found) == 3


def test_a_calls_mistake_is_shown_below_the_callers_lines(shell, capsys):
    run(shell, f"%%tile rows\n{SOFTMAX}")
    run(shell, "import numpy as np\ndef model(x):\n    return rows(x)")
    found = mistake(shell, "pass\nmodel(np.ones(3))", capsys)
    assert [re.sub(r"In\[\d+\]", "In[]", line) for line in found[:4]] == [
        "Cell In[], line 2", "    model(np.ones(3))", "Cell In[], line 3", "    return rows(x)",
    ]  # fmt: skip
    assert found[4].startswith("CallError: <rows>:2:12: error:") and len(found) < 9


@pytest.mark.parametrize("line, message", [
    ("3x", "'3x' cannot be a name in Python"),
    ("class", "'class' cannot be a name in Python"),
    ("-D N=many", "a size must be a whole number, not 'many'"),
    ("-D N=3", "choose one with --op"),
    ("f --op three", "three"),
])  # fmt: skip
def test_wrong_options_get_one_line(shell, capsys, line, message):
    found = mistake(shell, f"%%tile {line}\n{TWO}", capsys)
    assert message in " ".join(found) and len(found) <= 3


def executed(path_or_cells):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    folder = ROOT if isinstance(path_or_cells, list) else path_or_cells.parent
    if isinstance(path_or_cells, list):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in path_or_cells])
    else:
        book = nbformat.read(path_or_cells, as_version=4)
    runner = client.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}, allow_errors=True)
    runner.execute()
    return book


def outputs(book, kind):
    return [o for cell in book.cells if cell.cell_type == "code" for o in cell.outputs if o.output_type == kind]


@pytest.mark.slow
def test_a_kernel_shows_cards_and_mistakes():
    """In a Jupyter kernel, through its protocol."""
    book = executed(["%load_ext tilec", f"%%tile rows -D M=4,N=8\n{SOFTMAX}", "rows.plan", "rows(3)"])
    op, plan = outputs(book, "execute_result")
    assert "tilec-card" in op.data["text/html"] and "plan of softmax" in plan.data["text/html"]
    (error,) = outputs(book, "error")
    assert error.ename == "CallError" and len(error.traceback) < 9 and "tilec/" not in "".join(error.traceback)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_an_example_runs(path):
    """Its errors are those that its cells are marked to raise."""
    book = executed(path)
    for cell in book.cells:
        if cell.cell_type == "code":
            failed = [o.evalue for o in cell.outputs if o.output_type == "error"]
            assert bool(failed) == ("raises-exception" in cell.metadata.get("tags", [])), failed
    assert outputs(book, "execute_result")

"""Names, comments and loops of printed kernels: what a person who reads one may rely on."""

from __future__ import annotations

import ast
import re
from collections import Counter

import numpy as np
import pytest
from conftest import assert_within
from expectations import EXAMPLES
from tools import cuda_emulator, lowering
from tools.cuda_matrix_emulator import MatrixIntrinsics
from tools.printed import code

import tilec
from tilec.core import coefficients
from tilec.runtime.cuda.unroll import unroll
from tilec.runtime.emit.index import tidy
from tilec.runtime.emit.names import Names

# Tensors and indices with the names of temporaries, of parts of the machine, of functions and types that kernels import.
CLASH = """op f(
    thread: f32[block, N], tmp: f32[N], x: f32[N], x_1: f32[N], shared: f32[block], maximum: f32[N]
) -> (stage: f32[block, N]) {
    lane[tmp_1] = max[halving](thread[tmp_1, halving] + x[halving])
    stage[tmp_1, halving] = (thread[tmp_1, halving] - lane[tmp_1]) * tmp[halving] + x[halving] * x_1[halving] + shared[tmp_1]
        + maximum[halving]
}"""


def emitted(source, sizes, target, op=None):
    special, result = lowering.lowered(source, op, sizes, target=target, texts=False)
    return special, result.emitted


def clashing(rng) -> dict[str, np.ndarray]:
    shapes = {"thread": (8, 256), "tmp": 256, "x": 256, "x_1": 256, "shared": 8, "maximum": 256}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def test_clashing_names_on_the_cpu(rng):
    inputs = clashing(rng)
    assert_within(CLASH, inputs, [tilec.compile(CLASH, target="cpu")(**inputs)], kind="cpu")


def test_clashing_names_on_a_gpu(rng):
    inputs = clashing(rng)
    special, result = lowering.lowered(CLASH, None, inputs)
    outs = [np.zeros([s.value for s in t.shape], t.dtype.numpy) for t in special.outputs]
    assert not any(cuda_emulator.run(result.emitted, list(inputs.values()), outs))
    assert_within(CLASH, inputs, outs, kind="cuda")


@pytest.mark.parametrize("target", ["cpu", "h200", "a100"])
@pytest.mark.parametrize("source", [*(n for n in EXAMPLES if n != "transformer_block"), "clash"])
def test_no_temporary_has_a_name_of_the_program(source, target):
    """Names of tensors are parameters; those of indices are variables of loops, or a block's number."""
    example = EXAMPLES.get(source)
    sizes = example.bench_sizes if example else {"block": 8, "N": 256}
    special, program = emitted(example.path if example else CLASH, sizes, target, example and example.op)
    tensors = {t.name for t in (*special.inputs, *special.outputs)} | {e.name for e in special.equations}
    indices = {r.index for e in special.equations for n in (e, *walk_expressions(e)) for r in getattr(n, "ranges", ())}
    for function in [n for n in ast.parse(program.module).body if isinstance(n, ast.FunctionDef)]:
        parameters = {a.arg for a in function.args.args} | {
            s.targets[0].id for s in function.body if isinstance(s, ast.Assign) and "args[" in ast.unparse(s.value)
        }
        loops = {n.target.id for n in ast.walk(function) if isinstance(n, ast.For)}
        made = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        assert not (made - parameters - loops) & tensors - indices
        assert not loops & tensors - indices
        stored = stores(function.body)
        assert all(stored[name] == 1 for name in (made & indices) - loops - tensors)


def stores(statements: list[ast.stmt]) -> Counter[str]:
    """How often names are stored to, by one way through branches: the roles of a block's warps each compute its number."""
    total = Counter()
    for s in statements:
        if isinstance(s, ast.If):
            total += stores(s.body) | stores(s.orelse)
        elif isinstance(s, ast.For | ast.While | ast.With):
            total += stores(s.body)
        else:
            total += Counter(n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return total


def walk_expressions(equation):
    from tilec.dsl import ast as tree

    return tree.traverse(equation.value)


def test_names_of_temporaries_avoid_the_program():
    names = Names({"x", "x_1", "tmp", "stage", "i", "row"}, {"i", "row"}, {"maximum_f32"})
    assert names.source("x") == "x" and names.held("x") == "x_2"
    assert names.temporary() == "tmp_tmp_1"
    assert names.variable("stage") == "tmp_stage"  # a pass's word, which is the program's
    assert names.variable(".i") == "i"  # the program's index
    assert names.variable("row") == "tmp_row"  # a pass's word, which is an index of the program
    assert names.source("lambda") == "lambda_1" and names.source("range") == "range_1"
    assert names.source("maximum_f32") == "maximum_f32_1"


def test_loops_share_variables_only_next_to_each_other():
    names = Names({"x", "i"}, {"i"})
    with names.loop(".i") as outer, names.loop(".i") as inner:
        assert (outer, inner) == ("i", "i_2")
    with names.loop(".i") as again:
        assert again == "i"
    assert names.held("i") == "i_1" and names.variable("stage") == "stage"


def test_branches_share_names_of_one_type():
    names = Names(set(), set())
    with names.branch():
        assert names.variable("stage", "index") == "stage"
    with names.branch():
        assert names.variable("stage", "index") == "stage"
    with names.branch():
        assert names.variable("stage", "i1") == "stage_2"


def test_loop_variables_are_the_programs_indices():
    source = "op f(a: f32[M, K]) -> (y: f32[M]) { y[row] = sum[deep](a[row, deep] * a[row, deep]) }"
    for target in ("cpu", "h200"):
        (kernel,) = emitted(source, {"M": 512, "K": 4096}, target)[1].kernels
        found = set(re.findall(r"for (\w+) in|^    (\w+) = (?:block|int64\(uint32\(cuda\.blockIdx)", kernel.text, re.M))
        names = {a or b for a, b in found} - {"halving"}
        assert names and all(re.fullmatch(r"(row|deep)(_(block|inner|chunk|step|lane))?", n) for n in names), names


def test_every_statement_stands_next_to_its_lines():
    """Those of the standard library, of a contraction's main loop and of its epilogue, too."""
    program = EXAMPLES["attention"]
    (kernel,) = emitted(program.path, program.bench_sizes, "h200", program.op)[1].kernels
    for text in (
        "s[b, h, i, j] = sum[d](",
        "m = max[j](x)",
        "e = exp(x - m)",
        "s = sum[j](e)",
        "o[b, h, i, d] = sum[j](",
    ):
        assert re.search(rf"# \w+\.tile:\d+: {re.escape(text)}", kernel.text), text
    program = EXAMPLES["linear"]
    (kernel,) = emitted(program.path, program.bench_sizes, "h200", program.op)[1].kernels
    loop, epilogue = kernel.text.split("# linear.tile:4: y[m, n] = gelu(h[m, n] + b[n])")
    assert "# linear.tile:3: h[m, n] = sum[k](x[m, k] * w[k, n])" in loop
    assert "wgmma" in loop and "wgmma" not in epilogue


def test_comments_of_a_file_stay_comments(tmp_path):
    """Whatever a file is called."""
    path = tmp_path / "a\nimport os  # b.tile"
    path.write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }")
    _, program = emitted(path, {"N": 8}, "cpu")
    assert "import os" not in code(program.module)


def test_shared_memory_has_a_map():
    """Offsets in order, none over another but for what lies over tiles that are read no more."""
    program = EXAMPLES["linear"]
    (kernel,) = emitted(program.path, program.bench_sizes, "h200", program.op)[1].kernels
    pieces = re.findall(r"^    (\w+) = (\d+) +# (\d+) bytes: ", kernel.text, re.M)
    assert {"x_tiles", "w_tiles", "full", "empty", "y_boxes"} == {name for name, _, _ in pieces}
    ends = [int(offset) + int(size) for _, offset, size in pieces]
    assert all(end <= int(offset) for end, (_, offset, _) in zip(ends, pieces[1:])) and ends[-1] <= kernel.shared
    assert not re.search(r"shared \+ \d", kernel.text)


def test_coefficients_have_names():
    (kernel,) = emitted(EXAMPLES["cos_cos"].path, {"M": 64, "N": 4096}, "cpu", EXAMPLES["cos_cos"].op)[1].kernels
    assert "COS_NEAR_4" in kernel.text and "e-05" not in kernel.text
    for name, value in coefficients.NAMED.items():
        assert coefficients.NAMED[coefficients.name_of(float(value))] == value, name
    assert coefficients.name_of(1.0) is None and coefficients.name_of(-0.5) is None


def test_unrolled_loops_are_written_out():
    """Numbers are folded where they stand; in a factor they come last, so that their product ends in the address."""
    source = "def f(x):\n    for i in unrolled(2):\n        for j in unrolled(1, 3):\n"
    source += "            g(x[i * 4 + j + k], (i + k) * 8)\n"
    assert ast.unparse(unroll(source)) == (
        "def f(x):\n    g(x[1 + k], k * 8)\n    g(x[2 + k], k * 8)\n    g(x[5 + k], (k + 1) * 8)\n    g(x[6 + k], (k + 1) * 8)"
    )


def test_copies_of_a_body_have_variables_of_their_own():
    """Those that a body sets before it reads them, and that nothing else reads."""
    source = "def f(x):\n    s = a = 0\n    for i in unrolled(2):\n        t = x[i]\n        a = t\n        s += t\n    return a"
    text = ast.unparse(unroll(source))
    assert "t_0 = x[0]\n    a = t_0\n    s += t_0\n    t_1 = x[1]\n    a = t_1\n    s += t_1" in text


def test_written_out_loops_have_places_in_the_text_and_share_no_node():
    source = "def f(x):\n    s = 0\n    for i in unrolled(3):\n        for j in unrolled(2):\n"
    source += "            if x[2 * i + j] < s:\n                s += 4 * (x[0] + 3 + i)\n"
    source += "    for k in unrolled(0):\n        s = k\n    return s"
    nodes = [node for node in ast.walk(unroll(source)) if "lineno" in node._attributes]
    assert len({id(node) for node in nodes}) == len(nodes)
    assert {node.lineno for node in nodes if isinstance(node, ast.AugAssign)} == {6}
    assert all(node.end_col_offset > node.col_offset for node in nodes if isinstance(node, ast.BinOp))
    assert ast.unparse(unroll(source)).endswith("s += 4 * (x[0] + 5)\n    pass\n    return s")


def test_unrolled_loops_run_as_loops():
    """Written out or not, a kernel does the same."""
    source = "def f(out, unrolled):\n    s = 0\n    for i in unrolled(3):\n"
    source += "        s = s + (i * 4 + 5) * (7 - i) // 2\n        out.append(s % 3 + i)\n"
    written, looped = {}, {}
    exec(compile(unroll(source), "<written>", "exec"), written)
    exec(source, looped)
    first, second = [], []
    written["f"](first, None)
    looped["f"](second, range)
    assert first == second


def test_device_functions_of_one_name_are_two(rng):
    """Products of one shape whose factors lie otherwise, in two kernels of a program."""
    text = """op f(x: f32[32, 32], v: f32[32, 32], w: f32[32, 32]) -> (y: f32[32, 32]) {
        t[i, k] = exp(sum[j](x[i, j] * v[k, j]) / 8)
        y[i, k] = sum[j](t[i, j] * w[j, k])
    }"""
    inputs = {n: rng.standard_normal((32, 32), dtype=np.float32) for n in "xvw"}
    _, result = lowering.lowered(text, None, inputs)
    defined = re.findall(r"^(multiply_\w+) = contract\((.*)\)$", result.emitted.module, re.MULTILINE)
    assert len(result.emitted.kernels) == len(dict(defined)) == len({what for _, what in defined}) == 2
    out = np.zeros((32, 32), np.float32)
    assert not any(cuda_emulator.run(result.emitted, list(inputs.values()), [out], MatrixIntrinsics))
    assert_within(text, inputs, [out], kind="cuda")


@pytest.mark.parametrize(
    "text, shown",
    [
        ("y = (a * 2) + f32(1e-05)", "y = a * 2 + f32(1e-05)"),
        ("y = (b - (c.d - 1.5)) * -(e)", "y = (b - (c.d - 1.5)) * -e"),
        ("if ((i_1 < 3) & (not (j >= 0.5))):", "if (i_1 < 3) & (not j >= 0.5):"),
        ("y = f((a if (b < c) else d), (e))", "y = f(a if b < c else d, e)"),
        ("y = a | (b >> (c + 1))", "y = a | (b >> (c + 1))"),
    ],
)
def test_brackets_that_make_no_difference_are_not_printed(text, shown):
    """Whatever lines of the same form with other names were printed before."""
    assert tidy(re.sub(r"\b[a-e]\b", "other", text)) == re.sub(r"\b[a-e]\b", "other", shown)
    assert tidy(text) == shown

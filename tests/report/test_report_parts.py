"""Parts of the page: lines of IR with their sources, the drawing of the graph, the map of shared memory, two plans."""

from itertools import pairwise

import pytest

import tilec
from tilec.core.targets import load
from tilec.report import ir_lines
from tilec.report.against import compare
from tilec.report.costs import levers, shared_memory
from tilec.report.ir_lines import Line
from tilec.report.layered import GAP, layered
from tilec.report.operations import picture
from tilec.report.roofline import figure
from tilec.runtime.emit.cuda_shared import SharedMemory, printed_map
from tilec.runtime.emit.names import Names

MODULE = """#loc = loc(unknown)
#loc1 = loc("a (b).tile":3:5)
module {
  func.func private @declared(f32) loc(#loc)
  func.func @"f.y"(%arg0: f32 {tilec.name = "x"} loc("%x"(#loc1))) attributes {tilec.kernel} {
    %0 = arith.addf %arg0, %arg0 : f32 loc(#loc2)
    %1 = arith.addf %0, %0 {tilec.note = "see loc(1)"} : f32 loc(#loc)
    return %1 : f32 loc("s.tile":9:1)
  } loc(#loc)
  func.func @g() {
    return loc(#loc)
  } loc(#loc)
}
#loc2 = loc(fused["%v,%w"("m"("s.tile":4:2)), #loc1])
"""


def test_lines_of_functions_know_their_sources():
    found = ir_lines.functions(MODULE)
    assert list(found) == ["f.y", "g"]
    head, first, second, back, _ = found["f.y"]
    assert head.text == '  func.func @"f.y"(%arg0: f32 {tilec.name = "x"}) attributes {tilec.kernel} {'
    assert first == Line("    %0 = arith.addf %arg0, %arg0 : f32", (("s.tile", 4), ("a (b).tile", 3)))
    assert second.locations == () and second.text.endswith(": f32")
    assert back.locations == (("s.tile", 9),)


def test_a_stage_marks_what_it_changed():
    before = [Line("  %0 = a"), Line("  %1 = b %0"), Line("  c")]
    after = [Line("  %5 = a"), Line("  %7 = d %5"), Line("  c")]
    assert [(line.text, line.state) for line in ir_lines.compared(before, after)] == [
        ("  %5 = a", ""), ("  %1 = b %0", "gone"), ("  %7 = d %5", "new"), ("  c", "")
    ]  # fmt: skip


def test_operations_are_whole():
    lines = [Line(t) for t in (
        "  func.func @f() {", "    %c = arith.constant 1", '    %0 = linalg.generic {tilec.name = "m"} {', "    ^bb0(%in: f32):",
        "      linalg.yield %in", "    } -> tensor<f32>", '    %1 = linalg.generic {tilec.name = "m.sum"} {', "    }", "  }",
    )]  # fmt: skip
    assert [line.text[4:].split(" ")[0] for line in ir_lines.operations(lines, {"m"})] == ["%0", "^bb0(%in:", "", "}"]


@pytest.mark.parametrize("edges", [
    [], ["ab", "bc", "ac"], ["ad", "bd", "cd", "de", "af", "ef"], [f"{a}{b}" for a, b in pairwise("abcdefgh")] + ["ah", "bg", "cf"],
])  # fmt: skip
def test_drawings_have_no_overlaps(edges):
    widths = {name: 20.0 + 30 * n for n, name in enumerate("abcdefgh")}
    found = layered(widths, [(e[0], e[1]) for e in edges])
    for a, b in edges:
        assert found.centres[a][1] < found.centres[b][1]
        path = found.paths[a, b]
        assert path[0] == found.centres[a] and path[-1] == found.centres[b]
        assert [layer for _, layer in path] == list(range(path[0][1], path[-1][1] + 1))
    for layer in range(found.layers):
        row = sorted((x, widths[n]) for n, (x, at) in found.centres.items() if at == layer)
        assert all(x + w / 2 + GAP <= y - v / 2 + 1e-6 for (x, w), (y, v) in pairwise(row))
        assert all(x - w / 2 >= -1e-6 and x + w / 2 <= found.width + 1e-6 for x, w in row)


def test_the_graph_shows_what_is_computed_again_and_what_was_refused():
    """`a` is cheap and computed in both readers; `s` is reduced, stored, and read by another kernel."""
    op = tilec.compile("""op f(x: f32[M, N], t: i32[N]) -> (y: f32[M, N], z: f32[M, N]) {
        a[i, j] = x[i, j] * 2
        s[j] = sum[i](a[i, j])
        y[i, j] = a[i, j] + s[t[j]]
        z[i, j] = a[i, j] * 3
    }""", target="h200").build(M=4096, N=4096)
    plan, found = op.plan, picture(op.stages["plan"], op.plan)
    boxes = {b.name: b for b in found.boxes}
    assert {b.name for b in found.boxes if b.what == "input"} == {"x", "t"}
    assert {b.name for b in found.boxes if b.what == "recomputed"} == set(plan.inlined)
    for kernel in plan.kernels:
        assert {n for n in kernel.nodes if boxes[n].stored} == set(kernel.outputs)
    arrows = {(a.source, a.reader): a for a in found.arrows}
    refused = [r for r in plan.remarks if r.verb == "refused" and r.subject == "s with y"]
    assert refused and arrows["s", "y"].how == "memory" and arrows["s", "y"].refused == refused[0].reason


def test_levers_are_predictions_of_half_an_amount():
    op = tilec.compile("op f(x: f32[M]) -> (y: f32[M]) { y[i] = x[i] * 2 }", target="h200").build(M=1 << 26)
    found = levers(op.plan.kernels[0], load("h200"))
    assert found[0].label == "bytes of memory" and 0.3 < found[0].share < 0.55


def test_shared_memory_is_read_as_it_was_printed():
    memory = SharedMemory(Names((), ()))
    memory.reserve("a_tiles", 4096, "bf16 2x32x32")
    memory.reserve("full", 20, "barriers")
    memory.reserve("result", 2048, "f32 16x32", overlay=True)
    text = "\n".join(["def f(x):", *memory.lines("shared_address(a)"), "    i = 0"])
    assert printed_map(text) == (memory.bytes, memory.pieces)
    found = shared_memory(text, load("h200"))
    assert [(s.name, s.row) for s in found.spans] == [("a_tiles", 0), ("full", 0), ("result", 1)]
    assert printed_map("def f(x):\n    pass") == (0, [])


def test_a_kernel_at_the_roof_lies_on_it():
    op = tilec.compile("op f(x: f32[M]) -> (y: f32[M]) { y[i] = x[i] * 2 + 1 }", target="h200").build(M=1 << 28)
    kernel = op.plan.kernels[0]
    found = figure(op.plan, {kernel.name: 2 * kernel.prediction.time_us})
    (point,) = found.points
    assert found.left <= point.x <= found.right and found.top <= point.y <= found.bottom
    assert point.measured > point.y  # half the speed is lower
    assert figure(tilec.compile("op f(x: f32[M]) -> (y: f32[M]) { y[i] = x[i] }", target="h200").build(M=64).plan, {}) is None


def test_two_plans_show_where_they_differ(tmp_path):
    program = "op f(x: f32[M, N]) -> (y: f32[M, N]) { m[i] = max[j](x[i, j])  y[i, j] = x[i, j] - m[i] }"
    path = tmp_path / "f.sched.toml"
    path.write_text('[[plan]]\nprogram = "f(x: f32[64, 512])"\ntarget = "h200"\n'
                    '[plan.kernels.f_m]\noperations = ["m"]\n[plan.kernels.f_y]\noperations = ["y"]\n')  # fmt: skip
    op = tilec.compile(program, target="h200").build(M=64, N=512)
    other = tilec.compile(program, target="h200", schedule=path).build(M=64, N=512)
    assert len(other.plan.kernels) == 2
    found = compare(op._lowered[0], (op.plan, other.plan), ("the compiler", "f.sched.toml"))
    assert [len(s.kernels) for s in found.sides] == [1, 2] and all(k.own for s in found.sides for k in s.kernels)
    assert found.verdict.startswith("The plan of the compiler is predicted to be ")
    assert [(d.kernel, {label for label, *_ in d.facts} >= {"computes", "traffic"}) for d in found.differences] == [("f_y", True)]
    same = compare(op._lowered[0], (op.plan, op.plan), ("a", "b"))
    assert same.differences == [] and not any(k.own for s in same.sides for k in s.kernels)

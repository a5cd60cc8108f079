"""Ops whose sizes vary: one compilation for each class of sizes, results at all of them."""

import pickle
import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import tilec
from tilec import api
from tilec.core import targets
from tilec.core.diagnostics import Source
from tilec.core.varying import Varies, Varying
from tilec.driver import class_loss
from tilec.driver.classes import Classes, intervals, typical
from tilec.driver.find_classes import CPU_ENDS, find_classes, row_units
from tilec.dsl.parse import parse
from tilec.dsl.specialise import choose_op

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = """op rows(x: f32[M, N], b: f32[N]) -> (y: f32[M, N], s: f32[M]) {
    y[i, j] = exp(x[i, j] - max[k](x[i, k])) + b[j]
    s[i]    = sum[j](x[i, j]) / M
}"""


def rows(m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([m, n])
    return random.standard_normal((m, n), dtype=np.float32), random.standard_normal(n, dtype=np.float32)


def expected(x: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64)
    return np.exp(wide - wide.max(1, keepdims=True)) + b, wide.sum(1) / len(x)


@pytest.mark.parametrize("sizes", [(1, 2, 3, 16), (17, 128, 100), (129, 600), (2, 19, 300)])
def test_a_class_serves_all_of_its_sizes(sizes):
    op = tilec.compile(ROWS, varies={"M": (1, 4000)}, target="cpu")
    for m in sizes:
        x, b = rows(m, 40)
        for found, right in zip(op(x, b), expected(x, b)):
            np.testing.assert_allclose(found, right, rtol=2e-6, atol=2e-6)
    ends = {next(v for v in intervals(Varying(1, 4000), CPU_ENDS) if v.has(m)) for m in sizes}
    assert len(op.classes()) == len(ends)
    assert not any(c.refused for c in op.classes())


def test_a_size_outside_of_its_range_is_refused():
    op = tilec.compile(ROWS, varies={"M": (2, 100, 2)}, target="cpu")
    for m in (1, 3, 102):
        with pytest.raises(tilec.CallError, match=rf"the size `M` is {m}, and varies in 2\.\.100 by 2"):
            op(*rows(m, 4))


@pytest.mark.parametrize("varies", [{"K": (1, 4)}, {"M": (5, 4)}, {"M": 3}, {"M": (1, 3, 0)}, {"M": (-1, 3)}])
def test_ranges_are_checked(varies):
    with pytest.raises(tilec.CallError):
        tilec.compile(ROWS, varies=varies, target="cpu")(*rows(2, 4))


def test_what_cannot_vary_is_compiled_for_its_number():
    """And the op says so, with the reason."""
    op = tilec.compile(EXAMPLES / "softmax.tile", varies={"M": (1, 300), "N": (1, 300)}, target="cpu")
    for m, n in ((3, 20), (5, 20), (5, 21)):
        x, _ = rows(m, n)
        right = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(op(x), right / right.sum(1, keepdims=True), rtol=1e-5)
    for served in op.classes():
        assert all(names in ("M, N", "N", "M") and why for names, why in served.refused), served


def test_a_pickled_op_keeps_its_ranges():
    op = pickle.loads(pickle.dumps(tilec.compile(ROWS, varies={"M": (1, 8)}, target="cpu")))
    with pytest.raises(tilec.CallError, match=r"varies in 1\.\.8"):
        op(*rows(9, 4))


def test_intervals_have_every_number_once():
    for v in (Varying(0, 5), Varying(1, 1), Varying(1, 100_000), Varying(8, 4096, 8), Varying(3, 3000, 3)):
        parts = intervals(v)
        for n in range(0, min(v.high, 5000) + 2):
            assert sum(p.has(n) for p in parts) == v.has(n), (v, n)
        for p in parts:
            assert p.has(typical(p)), p
            assert p.low == p.high or typical(p) // p.multiple % 2, (
                f"{p}: what typical sizes are multiples of, others may not be"
            )


def test_a_class_depends_on_no_number_within_its_intervals():
    classes = Classes({"M": Varying(1, 9000), "S": Varying(1, 9000)}, {})
    assert classes.of({"M": 17, "S": 600}) == classes.of({"M": 128, "S": 1000})
    assert classes.of({"M": 1, "S": 600}).fixed == (("M", 1),)


@pytest.mark.parametrize("v", [Varying(0, 40), Varying(1, 3000), Varying(6, 3000, 3), Varying(16, 3008, 16)])
def test_multiples_have_classes(v):
    classes = Classes({"N": v}, {"N": 8})
    all_classes = list(classes)
    for n in filter(v.has, range(v.low, v.high + 1)):
        of = classes.of({"N": n})
        assert of in all_classes
        assert of.fixed == (("N", n),) or dict(of.ranges)["N"].has(n)
        assert of.fixed or (dict(of.ranges)["N"].multiple % 8 == 0) == (n % 8 == 0)


@pytest.mark.parametrize(
    ("joins", "ranges"),
    [
        (lambda v: True, ["0", "1", "2..20000"]), (lambda v: v.high <= 256, ["2..256", "257..512", "513..1024"]),
        (lambda v: v.low > 128 and v.high < 16384, ["2..16", "17..128", "129..256", "257..1024", "1025..16384", "16385..20000"]),
    ],
)  # fmt: skip
def test_intervals_are_joined(joins, ranges):
    """Whichever number comes first, and what is asked is asked once."""
    for numbers in (
        range(20001),
        range(20000, -1, -1),
        (300, 2, 20000, 1, 0, 1000, 16, 17, 128, 129, 256, 257, 513, 1025, 19999),
    ):
        asked = Mock(side_effect=lambda name, v: joins(v))
        classes = Classes({"N": Varying(0, 20000)}, {"N": 8}, asked)
        assert {f"N = {r}" for r in ranges} <= {str(classes.of({"N": n})) for n in numbers}
        assert asked.call_count <= 6


def test_classes_are_found_once(monkeypatch, tmp_path):
    """By the losses of plans; another op of the same text asks the disk cache."""
    text = "op f(x: f32[M, N], z: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] * z[i, j] + 0.375 }"
    program, varies, target = parse(Source("t.tile", text)), {"M": Varying(1, 16384)}, targets.load("h200")
    planned = Mock(side_effect=class_loss.planned)
    monkeypatch.setattr(class_loss, "planned", planned)
    for _ in range(2):
        classes = find_classes(program, None, None, {"N": 1000}, varies, target, digest=str(tmp_path))
        assert [str(of) for of in classes] == ["M = 1", "M = 2..16384"]
        assert 4 <= planned.call_count <= 6


def test_a_plan_that_loses_is_not_joined():
    linear = "op f(x: bf16[M, K], w: bf16[K, N]) -> (y: bf16[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }"
    program, varies = parse(Source("t.tile", linear)), {"M": Varying(1, 128)}
    classes = find_classes(program, None, None, {"N": 4096, "K": 4096}, varies, targets.load("h200"))
    assert classes.of({"M": 7}) != classes.of({"M": 100})


def units_of(text, target="h200", inputs=None, fixed=None, by=1):
    """What the least class of each size has multiples of."""
    program = parse(Source("t.tile", text))
    varies = {name: Varying(1040, 8192, by) for name in "MNK" if name in text and name not in (fixed or {})}
    classes = find_classes(program, None, inputs, fixed or {}, varies, targets.load(target))
    return {name: v.multiple for name, v in classes.of(dict.fromkeys(varies, 1040)).ranges}


def test_lengths_of_rows_have_classes_of_multiples():
    """As many as 16 bytes have elements, or what is left to it by a factor in the length. Offsets are not undone."""
    linear = "op f(x: bf16[M, K], w: bf16[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }"
    assert units_of(linear) == {"M": 1, "N": 8, "K": 8}
    assert units_of(linear, fixed={"N": 40}) == {"M": 1, "K": 8}
    assert units_of(linear, "cpu") == {"M": 1, "N": 1, "K": 1}
    assert units_of(linear, by=16) == {"M": 16, "N": 16, "K": 16}
    rows = "op f(x: u8[M, N], b: u8[N]) -> (y: u8[M, N]) { y[i, j] = x[i, j] + b[j] }"
    assert units_of(rows) == {"M": 1, "N": 16}
    assert units_of("op f(x: u8[M, N]) -> (y: u8[M, N]) { y[i, j] = x[i, j] }") == {"M": 1, "N": 1}, "it is one row"
    small = "op f(x: bf16[M, 64], n: i64[M, N]) -> (y: bf16[M, 64]) { y[i, j] = x[i, j] + bf16(n[i, 0]) }"
    assert units_of(small) == {"M": 1, "N": 1}, "its rows take no part of the time"
    varies = {name: Varying(1040, 8192) for name in "MN"}
    for length, unit in (("4 * N", 2), ("8 * N", 1), ("N + M", 8), ("N + 1", 1)):
        op = f"op f(x: bf16[N, M], z: bf16[{length}]) -> (y: bf16[{length}]) {{ y[i] = z[i] }}"
        assert row_units(choose_op(parse(Source("t.tile", op)), None), None, {}, varies)["N"] == unit


def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by each recipe that is compiled, or found in the disk cache."""
    made, build = [], api.build_executable
    monkeypatch.setattr(api, "build_executable", lambda recipe: made.append(recipe) or build(recipe))
    return made


def test_classes_are_compiled_ahead_of_calls(monkeypatch):
    """All combinations, each class once; what is called then is there."""
    made = compiled(monkeypatch)
    op = tilec.compile(ROWS, varies={"M": (1, 4000), "N": (1, 300)}, target="cpu").warm(M=[1, 20, 70], N=range(17, 100))
    assert {c.sizes for c in op.classes()} == {"M = 1, N = 17..128", "M = 17..128, N = 17..128"}
    assert len(made) == 2 and op.warm(M=128, N=17) is op and len(made) == 2
    for found, right in zip(op(*rows(100, 40)), expected(*rows(100, 40))):
        np.testing.assert_allclose(found, right, rtol=2e-6, atol=2e-6)
    assert len(made) == 2
    op(*rows(3, 40))
    assert len(made) == 3


def test_exact_sizes_are_compiled_ahead_of_calls(monkeypatch):
    made = compiled(monkeypatch)
    op = tilec.compile(ROWS, target="cpu").warm(M=[3, 5], N=4)
    assert len(made) == 2 and op.classes() == []
    for m in (3, 5):
        np.testing.assert_allclose(op(*rows(m, 4))[1], rows(m, 4)[0].mean(1) * 4 / m, rtol=1e-6, atol=1e-6)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"M": [4, 4001], "N": 3}, "the size `M` is 4001, and varies in 1..4000"), ({"M": [], "N": 3}, "no number of the size M"),
        ({"M": "12", "N": 3}, "the size M must be a whole number"), ({"M": [2.5], "N": 3}, "the size M must be a whole number"),
        ({"M": 3}, "the size `N` is not known"), ({"M": range(1 << 40), "N": 3}, "more than 65,536 numbers of the size M"),
    ],
)  # fmt: skip
def test_what_is_compiled_ahead_is_checked(sizes, message):
    with pytest.raises(tilec.CallError, match=message):
        tilec.compile(ROWS, varies={"M": (1, 4000)}, target="cpu").warm(**sizes)


def scheduled(folder: Path, low: int, high: int) -> Path:
    """A schedule file with a plan of one class, of small tiles."""
    path = folder / "rows.sched.toml"
    head = f'program = "rows(x: f32[M, 40], b: f32[40])"\nsizes = {{M = "{low}..{high}"}}\ntarget = "cpu"\n'
    path.write_text(
        f'[[plan]]\n{head}\n[plan.kernels.rows_y_s]\noperations = ["s.sum", "s", "y.max", "y"]\ntile = [3]\n'
    )
    return path


def test_a_schedule_of_one_class_is_obeyed(tmp_path):
    """Other classes have the compiler's plans."""
    op = tilec.compile(ROWS, varies={"M": (1, 4000)}, target="cpu", schedule=scheduled(tmp_path, 17, 128))
    tiles = {}
    for m in (5, 17, 100, 300):
        x, b = rows(m, 40)
        for found, right in zip(op(x, b), expected(x, b)):
            np.testing.assert_allclose(found, right, rtol=2e-6, atol=2e-6)
        tiles[m] = op.plan.kernels[-1].tile
    assert tiles[17] == tiles[100] == (3,) and (3,) not in (tiles[5], tiles[300])


@pytest.mark.parametrize("low, high, varies", [(20, 100, (1, 4000)), (17, 128, (1, 100)), (2, 16, (9, 4000))])
def test_a_range_that_is_no_class_is_refused(tmp_path, low, high, varies):
    with pytest.raises(
        tilec.CallError, match=rf"M = {low}\.\.{high} is no class of the sizes M = .*(.|\n)*the classes are M = "
    ):
        tilec.compile(ROWS, varies={"M": varies}, target="cpu", schedule=scheduled(tmp_path, low, high))


def test_plans_of_sizes_that_no_call_has_are_left_alone(tmp_path):
    tilec.compile(ROWS, varies={"M": (200, 300)}, target="cpu", schedule=scheduled(tmp_path, 17, 128))


def test_explain_reports_every_class_that_was_compiled():
    op = tilec.compile(ROWS, varies={"M": (1, 100)}, target="cpu").warm(M=[1, 9, 50], N=4)
    text = op.explain(full=True)
    heads = [line for line in text.splitlines() if line.endswith(":") and " planned at " in line]
    assert heads == ["M = 2..16, planned at these sizes:", "M = 17..100, planned at these sizes:"]
    assert text.count("rows(x: f32[M, 4], b: f32[4]) on ") == 2
    assert "rows(x: f32[1, 4], b: f32[4]) on " in text
    assert re.findall(r"planned at M = \d+", op.explain()) == ["planned at M = 13", "planned at M = 97"]


def test_classes_do_not_depend_on_earlier_calls():
    """Where a class is refused, sizes of other classes go on to vary together."""
    found = []
    calls = [(3, 5), (0, 5), (4, 6), (0, 5), (0, 7)]
    for order in (calls, calls[::-1]):
        op = tilec.compile(
            "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[m, n] = 2 * x[m, n] }", varies={"M": (0, 16), "N": (2, 16)}
        )
        by_class, built = op._by_class, []
        assert by_class is not None
        build = by_class._build

        def refusing(recipe, build=build, built=built):
            built.append(str(recipe.of))
            if recipe.of is not None and [name for name, _ in recipe.of.ranges] == ["N"]:
                raise Varies("N alone")
            return build(recipe)

        by_class._build = refusing
        for shape in order:
            assert (op(np.ones(shape, np.float32)) == 2).all()
        tried = [text for text in built if text != "None"]
        assert len(set(tried)) == len(tried), "a class is refused once"
        found.append(sorted(c.sizes for c in op.classes()))
    assert found[0] == found[1] == ["M = 2..16, N = 2..16", "N = 5, M = 0", "N = 7, M = 0"]

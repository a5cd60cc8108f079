"""The algebra of reductions that read earlier ones: carried states, iterated in chunks, give what the program means.

Expressions are evaluated in NumPy here, so nothing of any backend takes part.
"""

import numpy as np
import pytest
from conftest import OTHER_ORDER, assert_close

from tilec.analysis import online_reduction
from tilec.analysis.carried import Carried
from tilec.analysis.expression import Expr, Reader, Unreadable
from tilec.core import mlir
from tilec.core.diagnostics import Source
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.semantics.reference import reference

SIZES = {"M": 3, "T": 23, "D": 5}
HEAD = "op f(x: f32[M, T], v: f32[T, D], w: f32[M, T]) -> "

CARRIED = {
    "softmax": HEAD + "(y: f32[M, D]) { p[i, j] = softmax[j](x[i, j])\n y[i, d] = sum[j](p[i, j] * v[j, d]) }",
    "exp2": HEAD
    + """(y: f32[M, D]) { m[i] = max[j](x[i, j])
 e[i, j] = exp2((x[i, j] - m[i]) * 1.5)
 s[i] = sum[j](e[i, j])
 y[i, d] = sum[j](e[i, j] * v[j, d]) / s[i] }""",
    "scaled and masked": HEAD
    + """(y: f32[M, D]) { s[i, j] = x[i, j] / 3 if j <= 5 * i else -inf
 p[i, j] = softmax[j](s[i, j])
 y[i, d] = sum[j](p[i, j] * v[j, d]) }""",
    "mask around the exponential": HEAD
    + """(y: f32[M]) { m[i] = max[j](x[i, j] if w[i, j] > 0 else -inf)
 e[i, j] = exp(x[i, j] - m[i]) if w[i, j] > 0 else 0
 y[i] = sum[j](e[i, j] * w[i, j]) / sum[j](e[i, j]) }""",
    "smallest first": HEAD
    + """(y: f32[M]) { m[i] = min[j](x[i, j])
 y[i] = sum[j](exp(2 * (m[i] - x[i, j])) * w[i, j]) }""",
    "log-sum-exp": HEAD
    + """(y: f32[M]) { m[i] = max[j](x[i, j])
 y[i] = m[i] + log(sum[j](exp(x[i, j] - m[i]))) }""",
    "no maximum": HEAD + "(y: f32[M]) { y[i] = sum[j](exp(x[i, j]) * w[i, j] / sum[k](exp(x[i, k]))) }",
    "a mean weighted by a norm": HEAD
    + """(y: f32[M]) { n[i] = sum[j](x[i, j] * x[i, j])
 y[i] = sum[j](w[i, j] * rsqrt(n[i]) - x[i, j] * rsqrt(n[i])) }""",
}

NOT_EXACT = {
    "library's log-sum-exp": HEAD + "(y: f32[M]) { y[i] = logsumexp[j](x[i, j]) }",
    "a softmax and its log-sum-exp": HEAD
    + """(y: f32[M, D]) { p[i, j] = softmax[j](x[i, j])
 y[i, d] = sum[j](p[i, j] * v[j, d]) + logsumexp[j](x[i, j]) }""",
    "the exponential of a distance from it": HEAD
    + """(y: f32[M, D]) { l[i] = logsumexp[j](x[i, j])
 y[i, d] = sum[j](exp(x[i, j] - l[i]) * v[j, d]) }""",
    "a sink": HEAD
    + """(y: f32[M, D]) { m[i] = max(max[j](x[i, j]), 0.5)
 e[i, j] = exp(x[i, j] - m[i])
 s[i] = sum[j](e[i, j]) + exp(0.5 - m[i])
 y[i, d] = sum[j](e[i, j] / s[i] * v[j, d]) }""",
    "a sink far below": HEAD
    + """(y: f32[M, D]) { m[i] = max(max[j](x[i, j]), -900)
 e[i, j] = exp(x[i, j] - m[i])
 s[i] = sum[j](e[i, j]) + exp(-900 - m[i])
 y[i, d] = sum[j](e[i, j] / s[i] * v[j, d]) }""",
    "sinks, and a distance from the maximum twice": HEAD
    + """(y: f32[M, D]) { m[i] = max(max(max[j](x[i, j]), w[i, 0]), w[i, 1])
 z[i, j] = x[i, j] - m[i]
 n[i] = max(max[j](z[i, j]), w[i, 0] - m[i])
 e[i, j] = exp(z[i, j] - n[i])
 s[i] = sum[j](e[i, j]) + exp(w[i, 0] - m[i] - n[i]) + exp(w[i, 1] - m[i] - n[i])
 y[i, d] = sum[j](e[i, j] / s[i] * v[j, d]) }""",
    "a sink in a log-sum-exp": HEAD
    + """(y: f32[M, D]) { m[i] = max(max[j](x[i, j]), w[i, 0])
 l[i] = m[i] + log(sum[j](exp(x[i, j] - m[i])) + exp(w[i, 0] - m[i]))
 y[i, d] = sum[j](exp(x[i, j] - l[i]) * v[j, d]) }""",
    "a guarded maximum": HEAD
    + """(y: f32[M, D]) { m[i] = max[j](x[i, j])
 g[i] = m[i] if m[i] > -inf else 0
 e[i, j] = exp(x[i, j] - g[i])
 y[i, d] = sum[j](e[i, j] * v[j, d]) / max(sum[j](e[i, j]), 1e-20) }""",
    "a row's condition": HEAD
    + """(y: f32[M, D]) { m[i] = max[j](x[i, j])
 p[i, j] = softmax[j](x[i, j]) if m[i] > -inf else 0
 y[i, d] = sum[j](p[i, j] * v[j, d]) }""",
}
STATES = {"a softmax and its log-sum-exp": 3, "a row's condition": 3, "a guarded maximum": 3,
          "sinks, and a distance from the maximum twice": 3}  # fmt: skip

SQUARES = {
    "variance": HEAD + "(y: f32[M]) { a[i] = mean[j](x[i, j])\n y[i] = mean[j]((x[i, j] - a[i]) ** 2) }",
    "from the mean, negated": HEAD
    + """(y: f32[M]) { a[i] = mean[j](x[i, j] * w[i, j])
 y[i] = sum[j]((a[i] - x[i, j] * w[i, j]) ** 2) + a[i] }""",
    "distances alone": HEAD
    + """(y: f32[M]) { a[i] = mean[j](x[i, j])
 m[i] = max[j](x[i, j])
 y[i] = sum[j](m[i] - x[i, j]) + a[i] }""",
    "library's log-sum-exp": HEAD + "(y: f32[M]) { y[i] = logsumexp[j](x[i, j]) }",
    "from the largest": HEAD
    + """(y: f32[M]) { m[i] = max[j](x[i, j])
 a[i] = sum[j](x[i, j])
 y[i] = sum[j]((x[i, j] - 2 * m[i]) ** 2) / a[i] }""",
}

REFUSED = {
    "variance": (
        HEAD + "(y: f32[M]) { a[i] = mean[j](x[i, j])\n y[i] = sum[j]((x[i, j] - a[i]) * (x[i, j] - a[i])) }",
        "different factors",
    ),
    "not its maximum": (
        HEAD + "(y: f32[M]) { m[i] = max[j](abs(x[i, j]))\n y[i] = sum[j](exp(x[i, j] - m[i])) }",
        "not bounded",
    ),
    "the maximum of another scale": (
        HEAD + "(y: f32[M]) { m[i] = max[j](x[i, j])\n y[i] = sum[j](exp(2 * x[i, j] - m[i])) }",
        "not bounded",
    ),
    "a second maximum": (
        HEAD + "(y: f32[M]) { m[i] = max[j](x[i, j])\n y[i] = max[j](tanh(x[i, j]) - m[i]) }",
        "is not a sum",
    ),
    "a maximum of distances from another one": (
        HEAD + "(y: f32[M]) { m[i] = max[j](abs(x[i, j]))\n y[i] = max[j](x[i, j] - m[i]) }",
        "is not a sum",
    ),
    "rounded": (
        HEAD
        + """(y: f32[M]) { m[i] = max[j](x[i, j])
 e[i, j]: bf16 = exp(x[i, j] - m[i])
 y[i] = sum[j](e[i, j] * w[i, j]) }""",
        "rounded to bf16",
    ),
    "through a tanh": (
        HEAD + "(y: f32[M]) { m[i] = max[j](x[i, j])\n y[i] = sum[j](tanh(x[i, j] - m[i])) }",
        "tanh",
    ),
    "squared": (
        HEAD
        + """(y: f32[M]) { m[i] = max[j](x[i, j])
 e[i, j] = exp(x[i, j] - m[i])
 y[i] = sum[j](e[i, j] * e[i, j]) }""",
        "two exponentials",
    ),
}


def read(text: str):
    """The program's reductions, its result, and the reader's names of dimensions: j is the one that is reduced."""
    specialised = specialise(parse(Source("t.tile", text)), None, None, SIZES)
    module = build(specialised)
    from tilec.analysis.graph import build_graph
    from tilec.analysis.space import space_of

    simplified = mlir.parse(lower(module, load("h200")).texts["simplify"])
    function = mlir.functions(simplified)[0]
    graph = build_graph(function)
    space = space_of(graph.nodes, graph)
    places = {n.op: space.dims[n] for n in graph.nodes}
    made = {r.value: (n.op, k) for n in graph.nodes for k, r in enumerate(n.results)}
    reader = Reader(places, lambda v: made.get(v), computed=True)
    (result,) = graph.returned
    operation, number = made[result]
    output = reader.result(operation, number)
    streams = {d for t in reader.totals for d in t.reduced}
    return simplified, function, reader, output, streams


NUMPY = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.negf": np.negative, "math.exp": np.exp, "math.exp2": np.exp2, "math.log": np.log, "arith.select": np.where,
    "math.fma": lambda a, b, c: a * b + c, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "math.rsqrt": lambda a: 1 / np.sqrt(a), "arith.index_cast": lambda a: a, "arith.muli": np.multiply,
    "arith.extf": lambda a: a, "math.absf": np.abs,
}  # fmt: skip


def evaluate(x: Expr, env: dict, at: dict[int, np.ndarray]):
    """An expression over the index arrays `at`, which broadcast against each other."""
    if (x.op, x.key) in env:
        return env[x.op, x.key]
    match x.op:
        case "constant":
            return x.key
        case "index":
            return at[x.own_dims[0]]
        case "element":
            places = [evaluate(a, env, at) for a in x.args] or [at[d] for d in x.own_dims]
            return env["inputs"][x.key][tuple(places)]
    args = [evaluate(a, env, at) for a in x.args]
    if x.op == "arith.cmpi":
        return {"2": np.less, "3": np.less_equal, "4": np.greater}[x.key.split("predicate=")[1][0]](*args)
    if x.op == "arith.cmpf":
        return {"1": np.equal, "2": np.greater, "4": np.less, "13": np.not_equal}[x.key.split("predicate=")[1].split()[0]](*args)
    return NUMPY[x.op](*args)


def add(terms: np.ndarray) -> np.ndarray:
    return np.add.reduce(terms, axis=-1)


def exponent(found: online_reduction.Online, rescale: online_reduction.Rescale, env: dict, grid) -> np.ndarray:
    """What a state is relative to; infinite where its extreme has seen nothing."""
    row = evaluate(found.final(rescale.row), env, grid)[..., 0]
    identity = next(c.identity for c in found.carried if c.total.number == rescale.extreme)
    return np.where(env["state", rescale.extreme][..., 0] == identity, np.inf, row)


def about_mean(c: Carried, states: dict, count: int, off: np.ndarray) -> np.ndarray:
    """A sum of distances from a mean, or of their squares, from those from a mean that is `off` more."""
    rest = states[c.rest]
    if c.rest == c.total.number:
        return rest + count * off
    return states[c.total.number] + off * (2 * rest + count * off)


def walk(
    found: online_reduction.Online, output: Expr, extents: dict[int, int], inputs, rng, dims, exact: bool = True
) -> np.ndarray:
    """Brings the states up to date chunk by chunk, as the module says."""
    (stream,) = found.dims
    others = [d for d in extents if d != stream]
    shape = [extents[d] for d in others]
    grid = {d: g[..., None] for d, g in zip(others, np.meshgrid(*map(np.arange, shape), indexing="ij"))}
    env: dict = {"inputs": inputs}
    states = {c.total.number: np.full(shape, c.identity) for c in found.carried}
    old = {s.number: np.full(shape, np.inf) for s in found.rescales}
    start = 0
    while start < extents[stream]:
        end = min(extents[stream], start + int(rng.integers(1, 7)))
        at = {**grid, stream: np.arange(start, end)}
        sums, sum_before, distances = {}, {}, {}
        for c in sorted(found.carried, key=lambda c: c.about is not None):
            state = states[c.total.number]
            if c.rescale is not None:
                env |= {("state", n): v[..., None] for n, v in states.items()}
                new = exponent(found, c.rescale, env, grid)
                new = np.where(np.isinf(new) if not exact else new == np.inf, 0.0, new)
                state = state * NUMPY[c.rescale.op](new - old[c.rescale.number])
                env["reference", c.rescale.number] = new[..., None]
            part = {n: add(t) for n, t in sums.items()}
            means = {n: p / (end - start) for n, p in part.items()}
            env |= {("mean", n): m[..., None] for n, m in means.items()}
            terms = np.broadcast_to(evaluate(c.term, env, at), (*shape, end - start))
            if c.about is not None:
                distances[c.total.number] = add(terms)
                continue
            if c.total.combine == "arith.addf":
                sums[c.total.number], sum_before[c.total.number] = terms, state
            states[c.total.number] = NUMPY[c.total.combine](state, NUMPY[c.total.combine].reduce(terms, axis=-1))
        old_states = dict(states)
        for c in (c for c in found.carried if c.about is not None):
            counts = (start, end - start)
            totals = (sum_before[c.about], add(sums[c.about]))
            mean = sum(totals) / sum(counts)
            sides = [
                about_mean(c, given, n, total / max(1, n) - mean)
                for given, n, total in zip((old_states, distances), counts, totals)
            ]
            states[c.total.number] = sum(sides)
        for s in found.rescales:
            env |= {("state", n): v[..., None] for n, v in states.items()}
            old[s.number] = exponent(found, s, env, grid)
            if not exact:
                old[s.number] = np.where(old[s.number] == -np.inf, 0.0, old[s.number])
        start = end
    env |= {("state", n): v[..., None] for n, v in states.items()} | {("count", None): start}
    env |= {("mean", n): v[..., None] / start for n, v in states.items()}
    result = evaluate(found.final(output), env, grid)[..., 0]
    return result[tuple(slice(None) if d in dims else 0 for d in others)]


def inputs_for(case: str, rng) -> list[np.ndarray]:
    x = rng.standard_normal((3, 23)) * 3
    v, w = rng.standard_normal((23, 5)), rng.standard_normal((3, 23))
    match case:
        case "infinite":
            x[0], x[1, :9], x[2, 4] = -np.inf, -np.inf, np.inf
        case "nan":
            x[0, 20], w[1, 3] = np.nan, np.nan
        case "large":
            x[:, :5] -= 3000
            x[1] += 2000
    return [a.astype(np.float32) for a in (x, v, w)]


@pytest.mark.crossed
@pytest.mark.parametrize("case", ["plain", "infinite", "nan", "large"])
@pytest.mark.parametrize("name, exact", [(n, False) for n in CARRIED | NOT_EXACT] + [(n, True) for n in CARRIED | SQUARES])
def test_carried(name, exact, case):
    rng = np.random.default_rng(len(name))
    text = (CARRIED | SQUARES | NOT_EXACT)[name]
    with mlir.context(), ir.Location.unknown(), np.errstate(all="ignore"):
        _keep, function, reader, output, streams = read(text)
        found = online_reduction.derive(reader.totals, streams, exact=exact)
        assert not isinstance(found, str), found
        assert len(found.carried) == STATES.get(name, len(found.carried))
        arrays = inputs_for(case, rng)
        arguments = list(mlir.entry(function).arguments)
        kinds = [tuple(a.type.shape) for a in arguments]
        given = {a: x.astype(np.float64) for a, x in zip(arguments, arrays)}
        extents = {}
        for node, places in reader.dims.items():
            extents |= zip(places, mlir.extents_of(node))
        assert kinds == [a.shape for a in arrays]
        got = walk(found, output, extents, given, rng, output.dims, exact)
        expected = reference(text)(*arrays)
        bad = ~np.isfinite(expected)
        assert (np.isfinite(got) == ~bad).all(), (got, expected)
        assert_close(got[~bad], expected[~bad], OTHER_ORDER)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, reason = REFUSED[name]
    with mlir.context(), ir.Location.unknown():
        try:
            _keep, _, reader, _, streams = read(text)
            found = online_reduction.derive(reader.totals, streams)
        except Unreadable as error:
            found = str(error)
    assert isinstance(found, str) and reason in found, found


def test_squares_are_of_distances_from_the_mean():
    """What is iterated depends on no earlier reduction; without the sum of the elements there is no mean."""
    with mlir.context(), ir.Location.unknown():
        _keep, _, reader, _, streams = read(SQUARES["variance"])
        mean, rest, square = online_reduction.derive(reader.totals, streams, exact=True).carried
        alone = online_reduction.derive(reader.totals[1:], streams, exact=True)
    assert square.about == rest.about == mean.total.number and not square.term.totals | rest.term.totals
    assert square.rest == rest.rest == rest.total.number >= 0
    assert not isinstance(alone, str) and alone.carried[0].about is None


def test_squares_of_distances_that_a_row_scales_are_no_distances_from_a_mean():
    scaled = "(x[i, j] - a[i]) * s[i]"
    text = HEAD + f"(y: f32[M]) {{ a[i] = mean[j](x[i, j])\n s[i] = max[j](x[i, j])\n y[i] = sum[j](({scaled}) * ({scaled})) }}"
    with mlir.context(), ir.Location.unknown():
        _keep, _, reader, _, streams = read(text)
        assert isinstance(online_reduction.derive(reader.totals, streams, exact=True), str)


def test_softmax_is_one_rescaled_state():
    with mlir.context(), ir.Location.unknown():
        _keep, _, reader, _, streams = read(CARRIED["softmax"])
        m, s, y = online_reduction.derive(reader.totals, streams).carried
    assert (m.rescale, m.total.combine) == (None, "arith.maximumf")
    assert s.rescale is y.rescale and s.rescale is not None
    assert s.term.op == "math.exp2" and y.term.op == "arith.mulf" and y.term.args[0] == s.term
    assert y.final.op == "arith.divf" and y.final.args[1] == s.final  # the division comes once, at the end


def test_a_positive_factor_is_applied_to_the_maximum_once():
    with mlir.context(), ir.Location.unknown():
        _keep, _, reader, _, streams = read(CARRIED["scaled and masked"])
        m, *_ = online_reduction.derive(reader.totals, streams).carried
    assert m.term.op == "arith.select" and m.term.args[1].op == "element"
    assert m.final.op == "arith.divf" and m.final.args[0].op == "state"

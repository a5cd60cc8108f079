"""The algebra of subscripts: each normal form, proof and answer, against all values that the symbols have."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf

import numpy as np
import pytest

from tilec.index import answers, facts
from tilec.index.facts import NONE, choose, clamp, maximum, minimum
from tilec.index.questions import (
    diagonal,
    digits,
    factor,
    in_lanes,
    is_adjacent,
    is_shared,
    multiple,
    page,
    period,
    step,
)  # fmt: skip
from tilec.index.ranges import is_least
from tilec.index.terms import Term, at_least, below, call, equal, index, size, term, traverse

ROUNDS = 60  # 30,000 were tried once


class World:
    """Symbols, with arrays that have all of their allowed values together."""

    def __init__(self, symbolic: bool):
        self.i, self.j = index("i", 12), index("j", 5)
        self.symbols = {self.i.leaf: range(12), self.j.leaf: range(5)}
        self.sizes: list[Term] = []
        self.indices = [self.i, self.j]
        if symbolic:
            n, m = size("N", 1, 7), size("M", 4, 12, multiple=4)
            x, y = index("x", n), index("y", m)
            (half,) = m.free
            self.symbols |= {n.leaf: range(1, 8), half: range(1, 4), x.leaf: range(7), y.leaf: range(12)}
            self.sizes, self.indices = [n, m], [self.i, self.j, x, y]
        grid = np.meshgrid(*self.symbols.values(), indexing="ij")
        self.values = {leaf: g.ravel() for leaf, g in zip(self.symbols, grid)}
        allowed = np.ones(len(grid[0].ravel()), bool)
        for leaf in self.symbols:
            low, high = (self.of(e) for e in leaf.ends)
            allowed &= (low <= self.values[leaf]) & (self.values[leaf] <= high)
        self.values = {leaf: v[allowed] for leaf, v in self.values.items()}
        self.count = int(allowed.sum())

    def of(self, x: Term, at=None) -> np.ndarray:
        at = self.values if at is None else at
        total = np.zeros_like(next(iter(at.values())))
        for m, f in x.parts.items():
            product = np.full_like(total, f)
            for leaf in m:
                product = product * self._leaf(leaf, at)
            total = total + product
        return total

    def _leaf(self, leaf, at) -> np.ndarray:
        if leaf in at:
            return at[leaf]
        args = [self.of(a, at) for a in leaf.args]
        if leaf.op == "//" or leaf.name in ("//", "%"):
            return divided(args[0], args[1], leaf.name or leaf.op)
        if leaf.op == "min":
            return np.minimum.reduce(args)
        if leaf.op == "if":
            return np.where(self.holds(leaf.when, at), *args)
        return memory(*args)

    def holds(self, when, at=None) -> np.ndarray:
        if when.parts:
            each = [self.holds(p, at) for p in when.parts]
            return np.logical_and.reduce(each) if when.op == "and" else np.logical_or.reduce(each)
        t = self.of(when.term, at)
        return {">=": t >= 0, "==": t == 0, "!=": t != 0}[when.op]


def divided(a, n, op):
    """By 0 a quotient is 0 here, and a remainder 0."""
    safe = np.where(n == 0, 1, n)
    return np.where(n == 0, 0, a // safe if op == "//" else a % safe)


def memory(*args):
    return sum((a * p for a, p in zip(args, (7, 11, 13)))) % 5


@pytest.fixture(scope="module", params=[False, True], ids=["numbers", "sizes"])
def world(request):
    return World(request.param)


def made(w: World, r: random.Random, depth: int) -> tuple[Term, np.ndarray]:
    """A term, and its values computed apart from it."""
    if depth == 0 or r.random() < 0.1:
        x = r.choice([*w.indices, *w.indices, *w.sizes, term(r.randint(-3, 9))])
        return x, w.of(x)
    a, av = made(w, r, depth - 1)
    op = r.choice("++-*//%%mMcCdf")
    if op in "+-m" or op in "Mdf":
        b, bv = made(w, r, depth - 1)
    n = r.choice([2, 3, 4, 4, 6, 8, 12, -2])
    if op == "+":
        return a + b, av + bv
    if op == "-":
        return a - b, av - bv
    if op == "*":
        by = r.choice([*w.sizes, term(n)])
        return a * by, av * w.of(by)
    if op in "/%":
        by = r.choice([*w.sizes, *w.sizes, term(n), term(n)])
        return (a // by, divided(av, w.of(by), "//")) if op == "/" else (a % by, divided(av, w.of(by), "%"))
    if op == "m":
        return minimum(a, b), np.minimum(av, bv)
    if op == "M":
        return maximum(a, b), np.maximum(av, bv)
    if op == "c":
        return clamp(a, 0, 7), np.clip(av, 0, 7)
    if op == "C":
        when, wv = condition(w, r, depth - 1)
        other, ov = made(w, r, depth - 1)
        return choose(when, a, other), np.where(wv, av, ov)
    if op == "d":  # a divisor that may be 0 or less
        return a // b if b.constant != 0 else a, divided(av, bv, "//") if b.constant != 0 else av
    return call("mem", a, low=0, high=4), memory(av)


def condition(w: World, r: random.Random, depth: int):
    a, av = made(w, r, depth)
    b, bv = made(w, r, 0)
    n = r.choice([2, 3, 4])
    kind = r.randrange(6)
    if kind == 0:
        return at_least(a, b), av >= bv
    if kind == 1:
        return below(a, b), av < bv
    if kind == 2:
        return equal(a, b), av == bv
    if kind == 3:
        rest = r.randrange(n)
        return equal(a % n, rest), av % n == rest
    if kind == 4:
        return ~equal(a, b), av != bv
    first, fv = condition(w, r, 0)
    second, sv = condition(w, r, 0)
    return (first & second, fv & sv) if r.random() < 0.7 else (first | second, fv | sv)


def cases(seed: int, rounds: int = ROUNDS):
    for n in range(rounds):
        yield random.Random(seed * 100_003 + n)


def test_normal_forms_have_the_same_values(world):
    for r in cases(1, 2 * ROUNDS):
        x, want = made(world, r, r.randint(1, 4))
        assert (world.of(x) == want).all(), x


def test_texts_have_the_same_values():
    w = World(False)
    for r in cases(12):
        x, want = made(w, r, r.randint(1, 3))
        if all(leaf.op in ("index", "//") for y in traverse(x) for leaf in y.leaves):
            assert (eval(str(x), {"i": w.values[w.i.leaf], "j": w.values[w.j.leaf]}) == want).all(), x


def test_bounds_and_ends_hold(world):
    for r in cases(2):
        x, values = made(world, r, r.randint(1, 3))
        low, high = NONE.bounds(x)
        assert low <= values.min() and values.max() <= high, x
        for end, ok in zip(NONE.ends(x), (np.less_equal, np.greater_equal)):
            if end is not None:
                assert ok(world.of(end), values).all(), (x, end)


def test_ends_of_many_digits():
    """A sum of them is asked about one digit after another: of its subsets there are too many."""
    n = index("n", 1 << 40)
    for bits in (range(0, 40, 2), range(1, 40, 3), [b for b in range(40) if b % 7 not in (2, 5)]):
        x = sum((n // 2**b % 2 * 2**b for b in bits), term(0))
        assert NONE.bounds(x) == (0, sum(2**b for b in bits)) and NONE.bounds(7 - 3 * x)[0] == 7 - 3 * sum(2**b for b in bits)


def test_ends_of_fields_of_bits():
    """Quotients of one index by several numbers, of which each sum is a number of some of its digits."""
    t, a = index("t", 128), index("a", 5)
    block = minimum(3, 4 - 3 * (a // 2))
    forms = [
        t // 8 - 32 * (t // 128) + 4 * (t // 32), 2 * t - 9 * (t // 4) + 2 * (t // 8), t - 3 * (t // 16),
        t % 64 - t // 8 * 8 + 16 * (t // 32), (43 * t + 1) // 2 - 86 * (t // 4) + 21, 8 * ((7 * t) // 8) - 8 * t + 8 * (t // 8),
        5 * (t // 4) - t, (t // 4 % 8) * 4 + t // 2 % 2, 3 * (a // 2) + block, (3 * (a // 2) + block + 5) // 2,
        7 - block - 3 * (a // 2), (t % 8 + 2) * (5 - a) - 3,
    ]  # fmt: skip
    for x in forms:
        values = [NONE.rebuilt(x, {t.symbol: term(n), a.symbol: term(m)}).constant for n in range(128) for m in range(5)]
        assert NONE.bounds(x) == (min(values), max(values)), x


def test_proofs_hold(world):
    """About the least value, which is the hardest that is true, and about one more, which is not."""
    proved = 0
    for r in cases(3):
        x, values = made(world, r, r.randint(1, 3))
        least = int(values.min())
        assert not NONE.proves(x - least - 1), x
        proved += NONE.proves(x - least)
    assert proved > 0.6 * ROUNDS


def test_least_values_that_terms_have(world):
    """Under facts about single indices, too."""
    found = 0
    for r in cases(9, 4 * ROUNDS):
        facts, inside = NONE, np.ones(world.count, bool)
        for x in world.indices if r.random() < 0.5 else ():
            n = r.randint(0, 4)
            facts, inside = facts.assume(at_least(x, n)), inside & (world.of(x) >= n)
        x, values = made(world, r, r.randint(1, 3))
        if facts._is_box and inside.any() and is_least(facts, x):
            assert facts.bounds(x)[0] == values[inside].min(), (x, facts)
            found += 1
    assert found > ROUNDS // 4


def test_what_is_clamped_is_not_searched(monkeypatch):
    """Subscripts of tensors that others are parts of: the least value of each is known, and it is below 0."""
    monkeypatch.setattr(facts, "search", lambda *given: pytest.fail(f"a proof of {given[1]} is searched"))
    block, thread, i, value = index("block", 128), index("thread", 128), index("i", 1024), call("value", low=0, high=4095)
    for x in (i - 320, 8 * block + thread % 8 - 960, 512 * (block % 2) + thread - 320, value // 9 - 31, value % 70 - 3):
        inside = clamp(x, 0, 31)
        assert NONE.bounds(inside) == (0, 31)
        assert not NONE.proves(inside - 1) and not NONE.proves(30 - inside) and not NONE.proves(minimum(x, 31))
    here = NONE.assume(at_least(i, 320))
    assert not here.proves(i - 321) and here.proves(i - 320) and not here.proves(minimum(i, 7) - 8)


def test_proofs_hold_for_large_open_sizes():
    """Sizes without an upper end: proofs are checked where sizes are small, and at random where they are large."""
    n, m = size("On"), size("Om", 3, None, multiple=1)
    x, y, i = index("ox", n), index("oy", m), index("oi", 12)
    r, w = np.random.default_rng(0), World.__new__(World)
    ns = np.concatenate([r.integers(1, 6, 400), r.integers(1, 3000, 400)])
    ms = np.concatenate([r.integers(3, 8, 400), r.integers(3, 3000, 400)])
    spots = [r.integers(0, 12, 800), (r.random(800) * ns).astype(np.int64), (r.random(800) * ms).astype(np.int64)]
    spots[1][::5], spots[2][::7], spots[1][1::5], spots[2][1::7] = 0, 0, ns[1::5] - 1, ms[1::7] - 1
    w.values = dict(zip((z.leaf for z in (n, m, i, x, y)), (ns, ms, *spots)))
    w.sizes, w.indices, w.count = [n, m, n * m], [i, x, y], 800
    proved = 0
    for rand in cases(11, 2 * ROUNDS):
        (a, av), (b, bv) = made(w, rand, rand.randint(1, 3)), made(w, rand, 1)
        assert (w.of(a) == av).all(), a
        for p, pv in ((a, av), (a - b, av - bv), (b - a, bv - av)):
            assert not NONE.proves(p) or (pv >= 0).all(), p
            proved += NONE.proves(p)
    assert proved > ROUNDS


def test_proofs_between_terms_hold(world):
    for r in cases(4):
        (x, xs), (y, ys) = made(world, r, 2), made(world, r, 2)
        assert not NONE.proves(x - y) or (xs >= ys).all(), (x, y)


def test_what_is_decided_holds(world):
    for r in cases(5):
        when, values = condition(world, r, 2)
        assert (world.holds(when) == values).all(), when
        assert (world.holds(~when) == ~values).all(), when
        known = NONE.decide(when)
        assert known is None or (values == known).all(), when


def test_guards_are_used_soundly(world):
    """Under facts, a proof holds wherever the facts do; what is simplified has the same values there."""
    for r in cases(6):
        facts, inside = NONE, np.ones(world.count, bool)
        for _ in range(r.randint(1, 3)):
            when, values = condition(world, r, r.randint(0, 1))
            facts, inside = facts.assume(when), inside & values
        assert not facts.never or not inside.any()
        x, xs = made(world, r, 2)
        assert (world.of(facts.simplified(x))[inside] == xs[inside]).all(), (x, facts)
        low, high = facts.bounds(x)
        assert not inside.any() or (low <= xs[inside].min() and xs[inside].max() <= high) or facts.never, (x, facts)
        least = int(xs[inside].min()) if inside.any() else 0
        for p in (x - least, x - least - 1, x - made(world, r, 1)[0]):
            assert not facts.proves(p) or (world.of(p)[inside] >= 0).all(), (p, facts)
        when, values = condition(world, r, 1)
        known = facts.decide(when)
        assert known is None or (values[inside] == known).all(), (when, facts)


# ---- questions -------------------------------------------------------------------------------------------------------

D, E = 16, 6


def table(x: Term, d: Term, e: Term) -> np.ndarray:
    """Its values by two indices."""
    w = World.__new__(World)
    at = np.meshgrid(range(D), range(E), indexing="ij")
    return w.of(x, {d.leaf: at[0].ravel(), e.leaf: at[1].ravel()}).reshape(D, E)


def subscript(r: random.Random, d: Term, e: Term, depth: int = 2) -> Term:
    if depth == 0:
        return r.choice([d, d, e, term(r.randint(0, 8))])
    a, b = subscript(r, d, e, depth - 1), subscript(r, d, e, depth - 1)
    n = r.choice([2, 4, 4, 8])
    return r.choice([a + b, a - b, a * n + b, a // n, a % n, a // n * n + b, minimum(a, b), clamp(a, 0, 5), a * n, a // 3])


def test_answers_about_one_index():
    d, e = index("d", D), index("e", E)
    count = {"shared": [0, 0], "adjacent": [0, 0], "step": [0, 0], "period": [0, 0]}
    for r in cases(7, 2 * ROUNDS):
        x = subscript(r, d, e, r.randint(1, 3))
        t = table(x, d, e)
        rise = np.diff(t, axis=0)
        found = step(x, d)
        if found is not None:
            assert (rise == table(found, d, e)[:-1]).all(), x
        count["step"][0] += found is not None
        count["step"][1] += (rise == rise[:1]).all()
        if (f := factor(x, d)) is not None:
            assert (rise == (f.constant if f.constant is not None else inf)).all() or f.free, x
        for v in (2, 4, 8):
            blocks = t.reshape(D // v, v, E)
            true = (blocks == blocks[:, :1]).all()
            shared = is_shared(x, d, v)
            assert true or not shared, x
            count["shared"][0] += shared
            count["shared"][1] += true
            true = (blocks - np.arange(v)[None, :, None] == blocks[:, :1]).all() and (blocks[:, 0] % v == 0).all()
            adjacent = is_adjacent(x, d, v, v)
            assert true or not adjacent, x
            count["adjacent"][0] += adjacent
            count["adjacent"][1] += true
        p = period(d, x).constant
        if p == 0:
            assert (rise == 0).all()
        else:
            blocks = [t[n : n + p] for n in range(0, D, p)]
            assert all((b == b[:1]).all() for b in blocks), (x, p)
        true = max((v for v in range(1, D) if all((t[n : n + v] == t[n]).all() for n in range(0, D, v))), default=1)
        count["period"][0] += p == 0 or p >= true
        count["period"][1] += 1
        if (n := page(x, d)) is not None:
            assert (t == (np.arange(D) % n.constant)[:, None]).all()
        m = multiple(x)
        assert (t % m == 0).all() if m else (t == 0).all()
        pair = diagonal(d, e, x)
        if pair is not None:
            by: dict = {}
            for a, b in itertools.product(range(D), range(E)):
                assert by.setdefault(pair[0] * a + pair[1] * b, t[a, b]) == t[a, b], (x, pair)
    for name, (found, true) in count.items():
        assert found >= 0.75 * true, (name, found, true)


def test_digits_leave_no_division():
    p = index("p", 96)
    xs = p // 32, p // 4 % 8, p % 4
    extents = digits(p, *xs)
    assert [e.constant for e in extents] == [3, 8, 4]
    a, b, c = (index(n, e) for n, e in zip("abc", extents))
    assert [NONE.rebuilt(x, {p.leaf: (a * 8 + b) * 4 + c}) for x in xs] == [a, b, c]
    assert digits(p, p // 32, p % 5) is None


# ---- what programs need ----------------------------------------------------------------------------------------------


def test_digits_in_any_order_are_found_again():
    """Of an index of 2 * 4 * 4 * 8 numbers, at other places of a sum: each quotient and remainder of the sum is some digits."""
    i, rng = index("i", 256), np.random.default_rng(7)
    digits = {2: i // 128, 4: i // 32 % 4, -4: i // 8 % 4, 8: i % 8}  # by extents
    for _ in range(24):
        place, x = 1, term(0)
        for extent in rng.permutation(list(digits)).tolist():
            known, x = (x, place, digits[extent]), x + place * digits[extent]
            place *= abs(extent)
            before, at, last = known
            assert x // at is last and x % at is before
    assert 8 * (i // 64) + 32 * (i // 8 % 8) + i % 8 - (8 * (i // 64) + i % 8) is 32 * (i // 8 % 8)


def test_programs_for_ranges_of_sizes():
    N = size("N", 1, 8192, multiple=8)
    n = index("n", N)
    assert NONE.proves(N - 8) and multiple(N * 3) == 24
    assert N // 8 * 8 is N and NONE.proves(N - 1 - (n // 8 * 8 + 7)) and (N - 1) // 8 is N // 8 - 1
    any_ = size("A", 1, 8192)
    a = index("a", any_)
    assert not NONE.proves(any_ - 1 - (a // 8 * 8 + 7)) and NONE.proves((any_ + 7) // 8 * 8 - 1 - (a // 8 * 8 + 7))
    assert NONE.assume(equal(any_ % 8, 0)).proves(any_ - 1 - (a // 8 * 8 + 7))


def test_guards_of_parity():
    N = size("N")
    d = index("d", N)
    odd = NONE.assume(equal(d % 2, 1))
    assert odd.proves(d - 1) and not NONE.proves(d - 1)
    assert NONE.assume(equal(d % 2, 0) & below(d, 2 * (N // 2))).proves(N - 1 - (d + 1))
    even = NONE.assume(equal(N % 2, 0)).assume(equal(d % 2, 0))
    assert even.proves(N - 1 - (d + 1)) and not NONE.assume(equal(d % 2, 0)).proves(N - 1 - (d + 1))
    assert NONE.assume(~equal(d % 2, 0)).proves(d - 1)


def test_quotients_by_open_sizes():
    C = size("C", 4, 4096, multiple=4)
    c = index("c", C)
    assert NONE.proves(3 - c // (C // 4)) and period(c, c // (C // 4)) is C // 4
    G, K = size("G"), size("K")
    x = index("x", G * K)
    assert NONE.proves(G - 1 - x // K) and not NONE.proves(G - 1 - x // G) and NONE.proves(K - 1 - x // G)
    open_ = size("C", 4, 4096)
    assert not NONE.proves(3 - index("c", open_) // (open_ // 4))  # 7 // (7 // 4) is 7


def test_open_sizes_that_divide_others():
    C, G = size("C"), size("G")
    c = index("c", C)
    facts = NONE.assume(equal(C % G, 0))
    assert facts.proves(G - 1 - c // (C // G)) and facts.mod(facts.replaced(C * 3), G) is term(0)
    assert not NONE.proves(G - 1 - c // (C // G)) and C % G is not term(0)


@pytest.mark.parametrize("more", [1, 3])
@pytest.mark.parametrize("heads", [2, 4, 6])
def test_quotients_by_multiples_of_an_open_sum(heads, more):
    """A head's number from a position among all elements of its group, where a cache has some more rows than a size."""
    N, i, k = size("N", 2, 1 << 20), index("i", 24), index("k", 64)
    rows = N + more
    j = index("j", rows)
    position = (i * rows + j) * 64 + k
    assert position // (rows * 64 * heads) is i // heads
    assert position // (rows * 64) is i
    assert position % (rows * 64 * heads) // (rows * 64) is i % heads
    assert (position + 1) // (rows * 64 * heads) is not i // heads  # the last of a row is in the next one then


@pytest.mark.parametrize("most", [None, 4096])
@pytest.mark.parametrize("k", [3, 8, 16])
def test_blocks_of_open_sizes_whose_elements_change_places(k, most):
    N, j = size("N", k, most, multiple=k), index("j", 64)
    n = index("n", N)
    block, at = n // k * k, n % k
    for x in (block + (n + k // 2) % k, block + k - 1 - at, block + 5 * n % k, block + (n + j) % k, block + j * n % k,
              N - k - block + at, N - k - block + (n + 1) % k, block + n // 2 % k, at * (N // k) + n // k):  # fmt: skip
        assert NONE.proves(x) and NONE.proves(N - 1 - x), x
        assert not NONE.proves(x - 1) and not NONE.proves(N - 2 - x), x


def test_open_blocks_whose_elements_change_places():
    M, B = size("M"), size("B")
    N, n, j = M * B, index("n", M * B), index("j", B)
    block, at = n // B * B, n % B
    for x in (block + (n + 1) % B, block + B - 1 - at, block + (n + j) % B, (n + 1) % B * M + n // B, at * M + n // B):
        assert NONE.proves(x) and NONE.proves(N - 1 - x), x
        assert not NONE.proves(x - 1) and not NONE.proves(N - 2 - x), x


def test_views():
    M, N = size("M"), size("N")
    p, m, n = index("p", M * N), index("m", M), index("n", N)
    assert p // N * N + p % N is p and (m * N + n) // N is m and (m * N + n) % N is n
    assert NONE.proves(M - 1 - p // N) and NONE.proves(N - 1 - p % N)
    assert NONE.ends(m * N + n) == (term(0), M * N - 1)


def test_windows():
    H = size("H", 4)
    h, r = index("h", (H - 3) // 2 + 1), index("r", 3)
    assert NONE.proves(H - 1 - (2 * h + r)) and not NONE.proves(H - 1 - (2 * h + r + 1))
    x = index("x", H)
    inside = NONE.assume(at_least(x + r, 1) & below(x + r - 1, H))
    assert inside.simplified(clamp(x + r - 1, 0, H - 1)) is x + r - 1
    assert NONE.simplified(clamp(x + r - 1, 0, H - 1)) is not x + r - 1


def test_facts_about_two_indices():
    N = size("N")
    i, j = index("i", N), index("j", N)
    causal = NONE.assume(at_least(i, j))
    assert causal.proves(i - j) and causal.proves(N - 1 - (i - j)) and causal.assume(below(i, j)).never
    assert causal.decide(below(i, j)) is False and NONE.decide(below(i, j)) is None
    t = index("t", i + 1)  # a triangle
    assert NONE.proves(N - 1 - t) and NONE.proves(i - t)


def test_equalities_and_products():
    M, N, K = size("M"), size("N"), size("K")
    facts = NONE.assume(equal(M * N, K))
    a, b = index("a", M), index("b", N)
    assert facts.proves(K - 1 - (a * N + b)) and not NONE.proves(K - 1 - (a * N + b))
    assert NONE.decide(equal(2 * a, 2 * b + 1)) is False and NONE.decide(equal((2 * a + 1) % 2, 1)) is True


def test_memory_is_the_same_for_the_same_place():
    b, j = index("b", 8), index("j", 128)
    page = call("table", b, j // 16, low=0, high=99)
    assert is_shared(page, j, 16) and not is_shared(page, j, 32) and period(j, page).constant == 16
    assert NONE.bounds(page * 16 + j % 16) == (0, 99 * 16 + 15) and is_adjacent(page * 16 + j % 16, j, 8, 8)


def test_one_liners_of_the_page():
    """The answers of the page's table that are no function of their own."""
    h, r, c = index("h", 16), index("r", 3), index("c", 64)
    padded = h + r - 1
    inside = at_least(padded, 0) & below(padded, 16)
    assert (padded - h - r).constant == -1 and step(clamp(padded, 0, 15), h) is None
    assert step(NONE.assume(inside).simplified(clamp(padded, 0, 15)), h).constant == 1
    assert NONE.assume(inside).decide(inside) is True and NONE.decide(inside) is None
    wider = at_least(padded, 0) & below(padded, 17)  # does not hold just where the subscript is inside
    assert NONE.assume(inside).decide(wider) is True and NONE.assume(wider).decide(inside) is None
    assert multiple(NONE.rebuilt(h * 64 + r * 8 + c, {c.leaf: term(0)})) == 8
    moved, lane = in_lanes((h * 64 + c) % 4, c, 4)
    assert moved is term(lane)
    k, outer = index("k", 12), index("o", 3)
    inner = index("n", 4)
    x = NONE.rebuilt(outer * 2 + inner // 2, {outer.leaf: k // 4, inner.leaf: k % 4})  # the place of both as one dimension
    assert period(k, x).constant == 2
    assert NONE.assume(at_least(c, 32)).bounds(c // 16) == (2, 3)  # in a piece of its dimension
    joined = index("z", 24 * 5)
    assert joined // 24 * 24 + joined % 24 is joined
    assert NONE.decide(below(c // 4, 16)) is True and NONE.decide(below(c, 0)) is False
    assert maximum(c, -c) is c and NONE.fits(c * 1000, 32) and not NONE.fits(c * 10**9, 32)
    assert next(v for v in (8, 4, 2, 1) if is_adjacent(h * 60 + c, c, v, v)) == 4


def test_periods_of_huge_divisors():
    """Divisors are not tried one by one; a large prime is one of them."""
    i = index("i", 130)
    for x, found in [
        (i % (2**63 - 2), 1),
        (i // 8 % (2**62), 8),
        ((i // 12) * 5 + i // (12 * (2**61 - 1)), 12),
        (i // 8 + i // 12, 4),
        (i // (2**61 - 1), 0),  # 0 throughout
    ]:
        assert period(i, x).constant == found


def test_a_quotient_and_its_product_are_summed():
    """Taken into the quotient around it, it came back as a remainder, for ever."""
    b = index("b", 4)
    inner = (minimum(term(64), 64 * (b // 2) + 2) + 31) // 32
    x = (inner + b * inner) // 2
    for n in range(4):
        assert NONE.rebuilt(x, {b.leaf: term(n)}).constant == (1 + n) * ((min(64, 64 * (n // 2) + 2) + 31) // 32) // 2


def test_a_failing_proof_takes_few_steps(world):
    """Facts that go in a circle, and choices of choices, come to an end."""
    N = size("N")
    a, b, d = index("a", N), index("b", N), index("d", N)
    facts = NONE.assume(below(a, b)).assume(below(b, d)).assume(at_least(d, a + 2))
    x = minimum(choose(below(a, b), minimum(a, d), d), choose(equal(d % 2, 1), b, maximum(a, d)))
    assert not facts.proves(x - N) and facts.proves(d - a - 1) and facts.proves(x - a)


def test_equal_terms_are_one_object_and_have_one_order():
    i, j, N = index("i", 32), index("j", 8), size("N")
    assert i + j is j + i and 2 * (i + j) is i * 2 + j * 2 and index("i", 32) is i and index("i", 33) is not i
    first, second = minimum(i * N, j // 3, 7), minimum(7, j // 3, i * N)
    assert first is second and str(first) == str(second) and [*(i * j + N).parts] == [*(N + j * i).parts]
    assert min(i.leaf.order, (i // 3).leaf.order) is i.leaf.order


def questions_of(seed: int) -> list[Callable[[], object]]:
    """Questions about random terms, under facts that may go in a circle."""
    r, w = random.Random(seed), World(True)
    facts = NONE
    for _ in range(3):
        facts = facts.assume(condition(w, r, 1)[0])
    xs = [made(w, r, 3)[0] for _ in range(4)]
    asked: list[Callable[[], object]] = [partial(facts.bounds, x) for x in xs]
    asked += [partial(facts.proves, x - y) for x in xs for y in xs]
    asked += [partial(facts.decide, condition(w, r, 1)[0]) for _ in range(3)]
    asked += [lambda x=x: str(facts.simplified(x)) for x in xs]
    return asked


def test_answers_depend_on_no_earlier_question():
    for seed in range(ROUNDS // 6):
        answers._ANSWERS.clear()
        found = [ask() for ask in questions_of(seed)]
        answers._ANSWERS.clear()
        assert [ask() for ask in reversed(questions_of(seed))] == found[::-1], seed


def test_threads_share_terms():
    """Each thread makes the same terms, with tables that start empty."""
    answers._ANSWERS.clear()
    start = threading.Barrier(4)

    def made_here(_: int) -> list[Term]:
        start.wait()
        return [made(World(False), random.Random(seed), 3)[0] for seed in range(40)]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(made_here, range(4))
    assert all(a is b for found in others for a, b in zip(first, found))


def test_answers_are_forgotten_at_last(monkeypatch):
    monkeypatch.setattr(answers, "MOST", 50)
    i = index("i", 1000)
    assert all(is_shared(i // n, i, n) for n in range(2, 200)) and len(answers._ANSWERS) <= 50


def chained(step: Callable[[Term, Term, int], Term], first: Term, *others: Term) -> Term:
    for k, x in enumerate(others, 1):
        first = step(first, x, k)
    return first


def greatest_and_where(xs: list[Term]) -> Term:
    """As unrolled loops and the threads of a warp find them: both are chosen by a condition on both."""
    pairs = [(x, term(k)) for k, x in enumerate(xs)]
    while len(pairs) > 1:
        (a, p), (b, q), *pairs = pairs
        later = below(a, b) | (equal(a, b) & below(q, p))
        pairs.append((choose(later, b, a), choose(later, q, p)))
    return pairs[0][0] + pairs[0][1]


def one_of_two_random_numbers(xs: list[Term]) -> Term:
    """Each is made in many rounds of multiplications and shifts, as dropout's are; conditions on the same indices choose one."""
    a, b = (chained(lambda t, x, k: call("xor", (3528531795 * t + x) // 2**32, low=0), *way) for way in (2 * xs, 2 * xs[::-1]))
    for k in (2, 3):
        a, b = choose(equal(xs[0] % k, 1), a, b), choose(equal(xs[1] % k, 1), b, a)
    return choose(equal(xs[2] % 2, 0), a, b)


@pytest.mark.parametrize("made_of", [lambda k: index(f"i{k}", 64), lambda k: call(f"d{k}", low=-(2**31), high=2**31 - 1)])
@pytest.mark.parametrize(
    "form",
    [
        greatest_and_where,
        one_of_two_random_numbers,
        lambda xs: chained(lambda t, x, k: choose(below(t, x), k, x + 1), *xs),
        lambda xs: chained(lambda t, x, k: choose(below(x, k), t, x), *xs),
        lambda xs: chained(lambda t, x, k: choose(below(x, k), x, t), *xs),
        lambda xs: chained(lambda t, x, k: choose(below(t, x), x - t, t - x), *xs),
        lambda xs: chained(lambda t, x, k: choose(below(t, 0), t + 1000, t) + x, *xs),
        lambda xs: chained(lambda t, x, k: choose(equal(t % 3, 1), t // 2, t * 3 + x), *xs),
        lambda xs: chained(lambda t, x, k: t + choose(at_least(x, 3), 2 * x, x + 1), *xs),
        lambda xs: chained(lambda t, x, k: clamp(t + x, -3 * k, 100 + k), *xs),
        lambda xs: chained(lambda t, x, k: minimum(t, x) if k % 2 else maximum(t, x), *xs),
        lambda xs: chained(lambda t, x, k: (3 * t + x) // (k % 5 + 2), *xs),
        lambda xs: chained(lambda t, x, k: (3 * t + x) % (k % 5 + 2), *xs),
    ],
)
def test_a_long_chain_takes_few_questions(form, made_of):
    """Not twice as many for each of its parts: choices in choices are simplified, and ranges taken by cases, to some depth."""
    answers._ANSWERS.clear()
    x = form([made_of(k) for k in range(12)])
    NONE.fits(x, 32), NONE.proves(x), NONE.ends(x)
    assert len(answers._ANSWERS) < 7500


# ---- against a solver of whole numbers --------------------------------------------------------------------------------


def set_of(p: Term) -> str:
    """Presburger text of a term."""
    return " + ".join(["0", *("*".join([str(f), *map(leaf_text, m)]) for m, f in p.parts.items())])


def leaf_text(leaf) -> str:
    if leaf.is_symbol:
        return leaf.name.replace("/", "_")
    if leaf.op == "//":
        return f"floor(({set_of(leaf.args[0])})/{leaf.args[1].constant})"
    assert leaf.op == "min"
    return f"min({','.join(map(set_of, leaf.args))})"


def test_proofs_for_all_sizes_agree_with_isl():
    """Sizes are open: what is proved has no counterexample, and most of what has none is proved."""
    isl = pytest.importorskip("islpy")
    N, M = size("N"), size("M", 4, multiple=4)
    i, x, y = index("i", 12), index("x", N), index("y", M)

    def subscript(r: random.Random, depth: int) -> Term:
        if depth == 0:
            return r.choice([i, x, x, y, y, N, M, term(r.randint(0, 9))])
        a, b, n = subscript(r, depth - 1), subscript(r, depth - 1), r.choice([2, 3, 4, 8])
        return r.choice([a + b, a - b, a * n + b, a // n, a % n, a // n * n, minimum(a, b), maximum(a, b)])

    space = "[N, M_4] -> {{ [i, x, y] : N >= 1 and M_4 >= 1 and 0 <= i < 12 and 0 <= x < N and 0 <= y < 4*M_4 and {} < 0 }}"
    proved = true = 0
    for r in cases(13, 3 * ROUNDS):
        a, b = subscript(r, r.randint(1, 2)), subscript(r, 1)
        for p in (a, a - b, b - a):
            holds = isl.Set(space.format(set_of(p))).is_empty()
            known = NONE.proves(p)
            assert holds or not known, p
            proved, true = proved + known, true + holds
    assert proved > 0.9 * true, (proved, true)

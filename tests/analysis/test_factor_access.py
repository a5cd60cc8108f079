"""How factors are addressed, against their addresses: what a tile is described as, its elements are."""

from itertools import permutations, product
from math import gcd, prod

import pytest
from tools.lowering import planned

from tilec.analysis.expression import Unreadable
from tilec.index.facts import NONE
from tilec.index.terms import term
from tilec.plan.cuda import operands

FORM = "op f(x: bf16[{shape}], w: bf16[4, 4, 4]) -> (y: bf16[I, J, 4]) {{\n y[i, j, n] = sum[k, l]({access} * w[n, k, l])\n}}"
FORMS = {
    "x[i, j, k, l]": "I, J, 4, 4",
    "x[k, l, i, j]": "4, 4, I, J",
    "x[i, j, l, k]": "I, J, 4, 4",
    "x[i, j + k, l]": "I, J + 3, 4",
    "x[i, l, j + k]": "I, 4, J + 3",
    "x[i, 2 * j + 1, k, l]": "I, 2 * J, 4, 4",
    "x[i, j, k, 2 * l]": "I, J, 4, 8",
    "x[i, j, 4 * k + l]": "I, J, 16",
    "x[i, 4 * j + k, l]": "I, 4 * J, 4",
    "x[i, j * 4 + l, k, l]": "I, 4 * J, 4, 4",
    "x[l, j * 4 + k, l]": "4, 4 * J, 4",
    "x[i, 3 - k, j, l]": "I, 4, J, 4",
    "x[i, j // 2, k, l]": "I, J, 4, 4",
    "x[i, j // 2 * 2 + k // 2, l]": "I, J + 2, 4",
    "x[i, j, k, l + 8]": "I, J, 4, 16",
    "x[i, k, l, 8 * j]": "I, 4, 4, 8 * J",
    "x[i, k, 8 * j + l]": "I, 4, 8 * J",
    "x[j, i, (k + l) % 4]": "J, I, 4",
    "pad(x[i, j + k - 1, l], 0)": "I, J, 4",
    "pad(x[i, k, j + l - 1], 0)": "I, 4, J",
    "pad(x[i, 2 * j + k - 1, l], 0)": "I, 2 * J, 4",
    "pad(x[i + k - 1, j, l], 0)": "I, J, 4",
    "pad(x[i, j, k, l - 1], 0)": "I, J, 4, 4",
}


def accesses(access, monkeypatch):
    """What planning asked for, by the tensor's shape."""
    found, asked = {}, operands.factor_access

    def noted(node, factor, g):
        made = asked(node, factor, g)
        if made is not None:
            found[id(factor)] = made
        return made

    monkeypatch.setattr(operands, "factor_access", noted)
    planned(FORM.format(access=access, shape=FORMS[access]), None, {"I": 2, "J": 4})
    return list(found.values())


def places(f):
    """Of each element, by the kernel dimensions."""
    symbols = [d.symbol for d in f.subscripts[-1].dims]
    for at in product(*(range(f.extents[d]) for d in f.own)):
        values = dict(zip(symbols, map(term, at)))
        yield dict(zip(f.own, at)), tuple(NONE.rebuilt(s.term, values).constant for s in f.subscripts)


@pytest.mark.parametrize("access", FORMS)
def test_tiles_are_what_they_are_documented_to_be(access, monkeypatch):
    found = accesses(access, monkeypatch)
    assert found
    for f in found:
        known = [*places(f)]
        where_of = {tuple(at.values()): where for at, where in known}
        steps = [prod(f.shape[p + 1 :]) for p in range(len(f.shape))]
        address = {tuple(at.values()): sum(s * p for s, p in zip(steps, where)) for at, where in known}

        def moved(at, d, by=1):
            return tuple(n + by * (e == d) for e, n in at.items())

        if (line := f.contiguous) is not None and line not in f.opaque[-1]:
            inside = [at for at, _ in known if at[line] + 1 < f.extents[line]]
            assert all(address[moved(at, line)] - address[tuple(at.values())] == 1 for at in inside)
            starts = [where[-1] - at[line] for at, where in known if all(s.opaque == frozenset() for s in f.subscripts)]
            assert not any(starts) or gcd(*starts) % f.offset(line) == 0
        wide = [d for d in f.own if f.extents[d] > 1]
        boxes = 0
        for size in range(1, 4):
            for dims in permutations(wide, size):
                try:
                    tile = f.tile({*dims}, {*dims}, 2)
                except Unreadable:
                    continue
                boxes += 1
                assert {d for d in tile.along if d is not None} == {*dims}
                for at, where in known:
                    for d in dims:  # one subscript moves, by the same step everywhere
                        if at[d]:
                            (p,) = [p for p, e in enumerate(tile.along) if e == d]
                            change = [a - b for a, b in zip(where, where_of[moved(at, d, -1)])]
                            assert [n for n, c in enumerate(change) if c] == [p] and 1 <= change[p] <= 2
        assert boxes or len(wide) < 2 or "%" in access


def test_what_is_a_box(monkeypatch):
    """Its dimensions in order, the lines last."""
    (f,) = [f for f in accesses("x[i, j, k, l]", monkeypatch) if len(f.shape) == 4]
    i, j, k, line = (next(iter(at)) for at in f.factors)
    assert f.contiguous == line
    assert not f.is_box((i, j, line), {line: 4})  # rows of 8 bytes
    assert f.tile({j, line}, {j, line}).ends(line, 4)
    with pytest.raises(Unreadable):
        f.tile({i, j, k + 100}, {i, j})

"""Online reductions: reductions whose terms read earlier reductions over the same index, in one pass with one partial state.

    m = max_j x_j              state m                                  m' = max(m, x)
    l = sum_j exp(x_j - m)     exp(x - m') = exp(x - m) exp(m - m')     l' = l exp(m - m') + exp(x - m')
    o = sum_j exp(x_j - m) / l v_j                                      o' = o exp(m - m') + exp(x - m') v;  o / l last

A term may depend on a running value through a *factor* that is the same for all elements. Sums distribute over such a
factor, so that the old factor of the partial sum can be replaced by the new one (rescaling):

- a factor exp(a) of a row's value `a`, inside an exponential with the element's own part: the state is kept relative to
  the newest `a` (its *reference*), and rescaled when that moves; no intermediate is larger than the terms are.
- a row's value as a multiplicand or divisor is left out, and applied to the complete sum (*postponed*); so is a row's
  condition without which all terms are 0.

What takes the place of the maximum in an exponent may be another value of the row, such as a maximum that is replaced where
it is infinite, or a log-sum-exp. The state is relative to the maximum all the same, and moved to that value at the end.

A sum of distances from a row's value, z - a, or of their squares, follows from those from the mean m of `z`, which do not depend
on `a`:

    r = sum (z - m)        sum (z - a)   = r + n (m - a)
    q = sum (z - m)^2      sum (z - a)^2 = q + (m - a) (2 r + n (m - a))

So does the step from one mean to that of more elements. A mean is rounded, and r, which would be 0 of numbers, is what it was
rounded by: no digits are lost where `z` is large beside its distances. A variance takes one pass in this way, as in Chan, Golub &
LeVeque, "Algorithms for computing the sample variance" (1983), but for r.

The recurrence is derived from the expressions alone; no operation is known by name. The recurrence is that of
Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), in the generality of Rabe & Staats,
"Self-attention does not need O(n^2) memory" (2021).

Infinities. While nothing but -inf has been seen, `a` = -m is +inf. The reference is then 0, at which all terms so far are
exp(-inf) = 0, as they are at any other finite reference; this is why the element's part must be bounded by the maximum that
is subtracted from it. Where `a` is made of more, such as a further term of the softmax, it may be a number all the same,
far from 0: then the state stays at the end (`extremes.moved`). Once +inf has been seen, `a` is -inf, and the reference is 0
again, unless expressions are kept as they are (`exact`). At the end the state is moved from the reference to `a` itself: by
exp(0) = 1, or by exp(+inf) from 0 to NaN, which is what the definition gives for a row of -inf. A NaN stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import e as EULER
from math import isclose, log2
from typing import TypeVar

from tilec.analysis.carried import IDENTITY, Carried, Online, Rescale
from tilec.analysis.expression import POSITION, Dims, Expr, Total, constant
from tilec.analysis.extremes import below, equals, is_finite, moved
from tilec.analysis.linear_factor import inside, linear_factor

LOG2E = log2(EULER)


T = TypeVar("T")


class _Refused(Exception):
    pass


def derive(totals: Sequence[Total], dims: Dims, exact: bool = False, rounded: bool = False) -> Online | str:
    """How the reductions over `dims` among `totals`, each after those it reads, are carried; or why they cannot be.

    `exact`: a state may be about a mean, and exponentials stay what they are, of a difference. Otherwise they are powers
    of 2 whose exponent is one fused multiply-add, which errs by as much as a large exponent is rounded by. `rounded`: a term
    may be rounded to 16 bits before a row's factor is applied to it, where the program does so after."""
    carrier = _Carrier(frozenset(dims), {t.number: t for t in totals}, exact, rounded)
    try:
        for total in totals:
            if carrier.dims & total.reduced:
                carrier.add(total)
    except _Refused as refused:
        return str(refused)
    own = tuple(c for n, c in carrier.carried.items() if n not in carrier.shared)
    return Online(tuple(dims), own, tuple(carrier.rescales.values()), tuple(carrier.shared.items()))


class _Carrier:
    def __init__(self, dims: frozenset[int], totals: dict[int, Total], exact: bool, rounded: bool):
        self.dims, self.totals, self.exact, self.rounded = dims, totals, exact, rounded
        self.carried: dict[int, Carried] = {}
        self.shared: dict[int, Expr] = {}
        self.rescales: dict[tuple[Expr, str], Rescale] = {}
        self.assumed: list[Expr] = []  # conditions that hold where the part that is looked at is used

    # ---- what an expression depends on ---------------------------------------------------------------------

    def running(self, x: Expr) -> bool:
        """Whether it depends on a reduction that is not complete during the pass."""
        return bool(x.totals & self.carried.keys())

    def row(self, x: Expr) -> bool:
        """Whether it is the same for all elements of the pass."""
        return not self.dims & x.dims

    def names(self, x: Expr) -> str:
        return ", ".join(self.totals[n].name for n in sorted(x.totals & self.carried.keys()))

    # ---- reductions ----------------------------------------------------------------------------------------

    def add(self, total: Total) -> None:
        if total.number in self.carried:
            return
        if total.reduced != self.dims:
            raise _Refused(f"{total.name} reduces over other indices")
        if total.combine == POSITION:
            self.carried[total.number] = self.position(total)
            return
        if total.combine not in IDENTITY or total.term.type != "f32":
            raise _Refused(f"{total.name} is not a sum, maximum or minimum of f32")
        state = Expr("state", key=total.number, own_dims=total.dims)
        if not self.running(total.term):
            term, final = total.term, state
            located = any(t.extreme == total.number for t in self.totals.values())  # scaled, others might be equal
            if total.combine != "arith.addf" and not located:
                term, final = inside(total.term, state)
            self.carried[total.number] = Carried(total, term, final, None)
            return
        if total.combine != "arith.addf":
            final = self.of_distances(total)
            self.carried[total.number], self.shared[total.number] = Carried(total, total.term, final, None), final
            return
        if self.exact and (made := self.distances(total)):
            self.carried |= {c.total.number: c for c in made}
            return
        factor = self.factor(total.term)
        rescale, row, power = next(iter(factor.exponents.values()), (None, None, 1))
        term = self.strip(total.term)
        twin = next((c for c in self.carried.values() if self._is_twin(c, total, term, rescale, power)), None)
        final = state = state if twin is None else Expr("state", key=twin.total.number, own_dims=total.dims)
        if rescale is not None and row is not None:
            move, extreme = Expr("arith.subf", (self.current(row), _reference(rescale))), self.totals[rescale.extreme]
            if not self.exact:
                seen = Expr("state", key=extreme.number, own_dims=extreme.dims)
                move = moved(self.current(row), move, equals(seen, IDENTITY[extreme.combine]))
            for _ in range(power):
                final = Expr("arith.mulf", (final, Expr(rescale.op, (move,))))
        for value, op in factor.postponed:
            final = self._applied(final, value, op)
        self.carried[total.number] = Carried(total, term, final, rescale, power=power)
        if twin is not None:
            self.shared[total.number] = final

    def of_distances(self, total: Total) -> Expr:
        """A maximum of what a row's value, which is no less, is taken from: that of the elements alone is carried."""
        part = None if self.exact or total.combine != "arith.maximumf" else below(total.term, self.row, self.totals)
        known = (n for n in self.carried if n not in self.shared and self.totals[n].combine == total.combine)
        source = next((n for n in known if self.totals[n].term == part), None)
        if source is None or any(t.extreme == total.number for t in self.totals.values()):
            raise _Refused(f"{total.name} is not a sum, and its terms depend on {self.names(total.term)}")
        extreme = Expr("total", key=source, own_dims=total.dims)
        return self.current(total.term.replace(lambda x: extreme if x == part else None))

    def _is_twin(self, c: Carried, total: Total, term: Expr, rescale: Rescale | None, power: int) -> bool:
        """Whether another reduction carries the same state."""
        mine = (total.combine, total.dims, term, rescale, power)
        return not self.exact and c.total.number not in self.shared and mine == (
            c.total.combine, c.total.dims, c.term, c.rescale, c.power
        )  # fmt: skip

    def _applied(self, final: Expr, value: Expr, op: str) -> Expr:
        """A postponed factor, divisor or condition."""
        now = self.current(value)
        if op != "arith.select":
            return Expr(op, (final, now))
        return Expr(op, (now.args[0], final, now.args[2]), now.key, now.own_dims, now.type, now.template)

    def position(self, total: Total) -> Carried:
        index = Expr("index", own_dims=tuple(self.dims), type="index")
        if self.exact or total.term.op != "arith.index_cast" or total.term.args[0] != index:
            raise _Refused(f"{total.name} is not the index of an extreme")
        state = Expr("state", key=total.number, own_dims=total.dims, type="i32")
        final = state if total.term.type == "i32" else Expr("arith.extsi", (state,), type=total.term.type)
        return Carried(total, total.term, final, None)

    def current(self, x: Expr) -> Expr:
        """An expression of reductions in terms of their states."""
        finals = {n: c.final for n, c in self.carried.items()}
        return x.replace(lambda part: finals.get(part.key) if part.op == "total" else None)

    # ---- distances -----------------------------------------------------------------------------------------

    def distances(self, total: Total) -> list[Carried]:
        """A sum of z - a or of (z - a)^2, for a row's value `a`, where the sum of `z` is carried, too; with the sum of distances
        from the mean if that is not carried yet."""
        squared = total.term.op == "arith.mulf" and total.term.args[0] == total.term.args[1]
        term = total.term.args[0] if squared else total.term
        try:
            element, row = self.parts(term)
        except _Refused:
            return []
        if element is None or row is None:
            return []
        z, sign = (element.args[0], -1) if element.op == "arith.negf" else (element, 1)
        if (sums := self._sum_of(z)) is None:
            return []
        mean = Expr("mean", key=sums.number, own_dims=sums.dims)
        distance = Expr("arith.subf", (z, mean))
        off = Expr("arith.addf" if sign > 0 else "arith.subf", (mean, self.current(row)))
        moved = Expr("arith.mulf", (Expr("count"), off))
        known = next((c for c in self.carried.values() if c.about == sums.number and c.rest == c.total.number), None)
        own = known.total if known else total if not squared else self._sum_of(term) or self._hidden(sums)
        rest = Expr("state", key=own.number, own_dims=own.dims)
        made: list[Carried] = []
        if known is None:
            value = Expr("arith.addf", (rest, moved))
            value = value if sign > 0 else Expr("arith.negf", (value,))
            made.append(Carried(own, distance, value, None, sums.number, rest=own.number))
        elif not squared:
            return []
        if squared:
            state = Expr("state", key=total.number, own_dims=total.dims)
            double = Expr("arith.addf", (rest, Expr("arith.addf", (rest, moved))))
            final = Expr("arith.addf", (state, Expr("arith.mulf", (off, double))))
            final = Expr("arith.select", (is_finite(state), final, state))
            made.append(Carried(total, Expr("arith.mulf", (distance, distance)), final, None, sums.number, rest=own.number))
        return made

    def _sum_of(self, term: Expr) -> Total | None:
        return next(
            (t for t in self.totals.values() if (t.combine, t.reduced, t.term) == ("arith.addf", self.dims, term)), None
        )

    def _hidden(self, sums: Total) -> Total:
        """A sum of the state alone, which the program does not have."""
        return replace(sums, number=-1 - sums.number, name=f"{sums.name}.rest")

    # ---- factors -------------------------------------------------------------------------------------------

    def factor(self, x: Expr) -> _Factor:
        """The part of `x` as a product that depends on running reductions and not on the element."""
        if not self.running(x):
            return _Factor({}, ())
        if self.row(x):
            return _Factor({}, ((x, "arith.mulf"),))
        match x.op:
            case "arith.mulf":
                return self.factor(x.args[0]).times(self.factor(x.args[1]), self.exact)
            case "arith.divf" if self.row(x.args[1]) and self.running(x.args[1]):
                return self.factor(x.args[0]).times(_Factor({}, ((x.args[1], x.op),)), self.exact)
            case "arith.divf" if not self.running(x.args[1]):
                return self.factor(x.args[0])
            case "arith.negf":
                return self.factor(x.args[0])
            case "math.exp" | "math.exp2":
                _, rescale, row = self.exponent(x)
                return _Factor({(rescale.row, rescale.op): (rescale, row, 1)}, ())
            case "arith.extf" | "arith.truncf" if self.rounded and {x.type, x.args[0].type} & {"bf16", "f16"}:
                return self.factor(x.args[0])
            case "arith.select" if self._is_row_choice(x):
                return self.factor(x.args[1]).times(_Factor({}, ((x, x.op),)), self.exact)
            case "arith.addf" | "arith.subf":
                return self._common(x, [self.factor(a) for a in x.args])
            case "arith.select" if not self.running(x.args[0]):
                return self._common(x, [f for a, f in zip(x.args[1:], self._branches(x, self.factor)) if a.number != 0])
        if x.op in ("arith.extf", "arith.truncf"):
            type_ = x.type if x.op == "arith.truncf" else x.args[0].type
            raise _Refused(f"the part that depends on {self.names(x)} is rounded to {type_} before it is scaled")
        raise _Refused(
            f"the part that depends on {self.names(x)} is not a factor of the sum: it goes through {_short(x)}"
        )

    def _is_row_choice(self, x: Expr) -> bool:
        """Whether a row's condition decides between the terms and 0."""
        return not self.exact and self.running(x.args[0]) and self.row(x.args[0]) and x.args[2].number == 0

    def _branches(self, x: Expr, action: Callable[[Expr], T]) -> list[T]:
        """`action` on both branches of a select, on the first where its condition holds."""
        self.assumed.append(x.args[0])
        taken = action(x.args[1])
        self.assumed.pop()
        return [taken, action(x.args[2])]

    def _common(self, x: Expr, factors: Sequence[_Factor]) -> _Factor:
        if any(f != factors[0] for f in factors):
            raise _Refused(f"terms that are added depend on {self.names(x)} by different factors")
        return factors[0]

    def exponent(self, x: Expr) -> tuple[Expr, Rescale, Expr]:
        """An exponential of its element part and a shift, that shift, and what the program has in its place."""
        scale = LOG2E if x.op == "math.exp" else 1.0
        element, row = self.parts(x.args[0])
        if row is None or element is None:
            raise _Refused(f"the exponent is {self.names(x)} alone, without a part that depends on the element")
        taken_away = row
        if (extreme := self.bounded(element, row)) is None and not self.exact:
            extreme, taken_away = self._extreme(element, row)
        if extreme is None:
            raise _Refused(
                f"an exponent is not bounded: {self.names(x)} is not the maximum of the values that it is subtracted from"
            )
        taken_away, op = (taken_away, x.op) if self.exact else (_scaled(taken_away, scale), "math.exp2")
        row = row if self.exact else _scaled(row, scale)
        rescale = self.rescales.setdefault((taken_away, op), Rescale(len(self.rescales), taken_away, op, extreme))
        if self.exact:
            return Expr(
                op, (Expr("arith.addf", (element, _reference(rescale))),), x.key, x.own_dims, x.type, x.template
            ), rescale, row
        z, c = linear_factor(element)
        return Expr(op, (Expr("math.fma", (z, constant(c * scale), _reference(rescale))),)), rescale, row

    def parts(self, x: Expr) -> tuple[Expr | None, Expr | None]:
        """`x` as a sum of what depends on the element and what depends on running reductions."""
        if not self.running(x):
            return x, None
        if self.row(x):
            return None, x
        match x.op:
            case "arith.addf" | "arith.subf":
                (e1, r1), (e2, r2) = (self.parts(a) for a in x.args)
                return _both(x.op, e1, e2), _both(x.op, r1, r2)
            case "arith.negf":
                element, row = self.parts(x.args[0])
                return element and Expr("arith.negf", (element,)), row and Expr("arith.negf", (row,))
            case "arith.mulf" | "arith.divf":
                a, b = x.args
                if x.op == "arith.mulf" and a.number is not None:
                    a, b = b, a
                if b.number is not None:
                    element, row = self.parts(a)
                    return element and Expr(x.op, (element, b)), row and Expr(x.op, (row, b))
        raise _Refused(
            f"an exponent is not the sum of a part of each element and {self.names(x)}: it goes through {_short(x)}"
        )

    def bounded(self, element: Expr, row: Expr) -> int | None:
        """The extreme that `row` takes away from just the element's part, so that their sum is never above 0.

        A condition outside of which the maximum counts no element may stand around the exponential instead. An extreme
        that is replaced where it is infinite, as a log-sum-exp does, leaves what it would in the program.
        """
        leaf, c = linear_factor(row)
        if self.exact and leaf.op == "arith.select":
            extreme = next((x for x in leaf.args[1:] if x.op == "total"), leaf)
            leaf = extreme if leaf.totals == {extreme.key} else leaf
        if leaf.op != "total" or leaf.key not in self.carried:
            return None
        source = self.totals[leaf.key]
        wanted = {"arith.maximumf": c < 0, "arith.minimumf": c > 0}.get(source.combine, False)
        if not wanted:
            return None
        (z, a), (y, b) = (linear_factor(self._taken(part)) for part in (element, source.term))
        return source.number if z == y and isclose(a, -c * b, rel_tol=1e-6) else None

    def _extreme(self, element: Expr, row: Expr) -> tuple[int | None, Expr]:
        """The maximum of the element's part, where `row` is made of it in another way than by a factor; and what takes it away."""
        if linear_factor(row)[0].op == "total":
            return None, row
        z, a = linear_factor(self._taken(element))
        for n in sorted(self.carried):
            source = self.totals[n]
            y, b = linear_factor(self._taken(source.term))
            if source.combine == "arith.maximumf" and z == y and a * b > 0:
                away = Expr("arith.negf", (Expr("total", key=n, own_dims=source.dims),))
                return n, away if isclose(a, b, rel_tol=1e-6) else _scaled(away, a / b)
        return None, row

    def _taken(self, x: Expr) -> Expr:
        """`x` where the assumed conditions hold."""
        return x.replace(
            lambda part: (
                self._taken(part.args[1]) if part.op == "arith.select" and part.args[0] in self.assumed else None
            )
        )

    # ---- terms ---------------------------------------------------------------------------------------------

    def strip(self, x: Expr) -> Expr:
        """A term without its postponed factors, and relative to references."""
        if not self.running(x):
            return x
        if self.row(x):
            return constant(1.0)
        match x.op:
            case "arith.mulf":
                left, right = (self.strip(a) for a in x.args)
                return right if left.number == 1 else left if right.number == 1 else Expr(x.op, (left, right))
            case "arith.divf" if self.row(x.args[1]) and self.running(x.args[1]):
                return self.strip(x.args[0])
            case "math.exp" | "math.exp2":
                return self.exponent(x)[0]
            case "arith.select" if self._is_row_choice(x):
                return self.strip(x.args[1])
            case "arith.select":
                args = (x.args[0], *self._branches(x, self.strip))
                return Expr(x.op, args, x.key, x.own_dims, x.type, x.template)
        return Expr(x.op, tuple(self.strip(a) for a in x.args), x.key, x.own_dims, x.type, x.template)


@dataclass(frozen=True)
class _Factor:
    """Exponentials of the `exponents`, with the program's own row and a power, and the `postponed` values with what is done by
    them: a multiplication, a division, or a choice between the product and 0."""

    exponents: dict[tuple[Expr, str], tuple[Rescale, Expr, int]]
    postponed: tuple[tuple[Expr, str], ...]

    def times(self, other: _Factor, powers: bool) -> _Factor:
        if powers and self.exponents.keys() == other.exponents.keys():
            both = {key: (rescale, row, n + other.exponents[key][2]) for key, (rescale, row, n) in self.exponents.items()}
            return _Factor(both, self.postponed + other.postponed)
        if self.exponents and other.exponents:
            raise _Refused("a product has two exponentials that depend on earlier reductions")
        return _Factor(self.exponents | other.exponents, self.postponed + other.postponed)


def _reference(rescale: Rescale) -> Expr:
    return Expr("reference", key=rescale.number, own_dims=tuple(sorted(rescale.row.dims)))


def _scaled(x: Expr, by: float) -> Expr:
    return x if by == 1 else Expr("arith.mulf", (x, constant(by)))


def _both(op: str, a: Expr | None, b: Expr | None) -> Expr | None:
    if b is None:
        return a
    if a is None:
        return b if op == "arith.addf" else Expr("arith.negf", (b,))
    return Expr(op, (a, b))


def _short(x: Expr) -> str:
    return f"'{x.op.split('.')[-1]}'"

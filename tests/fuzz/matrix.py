"""Random programs that matrix units multiply: products, windows, attention and its relatives, and products that are only reduced.

What `fuzz.programs` draws has sizes and forms that seldom get such kernels. Here the form is given, and what varies is what users
vary: types, layouts, sizes around the edges of tiles, masks, biases, casts, scales and what follows; and which part of a tensor is
read, since copies of whole boxes bring what lies around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from fuzz.choices import Choices
from fuzz.compare import Verdict, expect, specialised
from fuzz.edges import integer_data
from fuzz.programs import Case
from tilec.core import mlir
from tilec.core.dtypes import BOOL, DTYPES
from tilec.core.fitted import WarpgroupTimes
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.semantics.interpreted import interpret_stage

SMALL = (16, 8, 17, 24, 33, 40, 64, 65, 72, 1, 2, 5)
LARGE = (128, 64, 72, 120, 129, 136, 200, 256, 257, 300, 520, 1, 7, 33)
EDGES = (21, 63, 65, 127, 129, 7, 9, 15, 31)
"""Around boxes and pieces, of the inner one of two dimensions."""
AROUND = (*3 * [(0, 0)], (0, 2), (0, 1), (3, 0), (0, 8), (8, 0), (1, 7), (0, 63), (64, 5), (16, 16))
"""Elements of a tensor along a dimension before those that are read, and behind them."""
MACHINES = {"wgmma": "h200", "mma.sync": "a100", "stream-k": "h200", "packed": "h200"}
"""Of those who multiply: `wgmma`, where blocks share the steps of tiles that do not fill the machine, too, or where all factors are
stored first that TMA cannot copy as they are."""


@dataclass
class _Maker:
    """A program under construction. `partial`: whether it may read parts of its arguments. `inputs`: type and shape of each
    argument; `read`: the part that is read. `ranges`: of indices whose ranges are written; `around`: what most tensors have around
    those of an index; `outer`: of indices that others continue."""

    draw: Choices
    sizes: tuple[int, ...]
    partial: bool = False
    inputs: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    read: dict[str, tuple[slice, ...]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    around: dict[str, tuple[int, int]] = field(default_factory=dict)
    outer: dict[str, str] = field(default_factory=dict)

    def size(self, *more: int) -> int:
        return self.draw.pick(*self.sizes, *more)

    def begins(self, d: str, size: int) -> None:
        """May have an index that is only summed run from another number than 0."""
        if self.partial and self.draw.chance(30):
            first = self.draw.pick(3, 1, 8, 64)
            self.ranges[d] = first, first + size

    def split(self, outer: str, inner: str, size: int, percent: float) -> dict[str, int]:
        """One dimension, or two in its place."""
        if not self.draw.chance(percent):
            return {inner: size}
        self.outer[inner] = outer
        return {outer: self.draw.pick(3, 2, 5), inner: self.draw.pick(size, *EDGES)}

    def tensor(self, name: str, dtype: str, dims: dict[str, int], last: str = "", orders=None, **given: str) -> str:
        """Adds an argument with these indices and sizes, in any order or in one of `orders`, mostly with one of `last` as the last;
        returns how it is read. `given`: subscripts that are no indices."""
        orders = orders or [list(dims), *map(list, permutations(dims))]
        if last and not self.draw.chance(8):
            orders = [o for o in orders if o[-1] in last]
        order, subscripts, shape, read = self.draw.pick(*orders), [], [], []
        for before, d in zip([None, *order], order):
            size, at = dims[d], given.get(d, d)
            first, _ = self.ranges.get(d, (0, 0)) if d not in given else (0, 0)
            if d not in given and before == self.outer.get(d, "") and self.draw.chance(20):  # both are one dimension of the tensor
                self.ranges |= {x: self.ranges.get(x, (0, dims[x])) for x in (before, d)}
                at, size, whole = f"{size} * {before} + {d}", size * dims[before], self.ranges[before][0] * size
                first += whole
                for made in (subscripts, shape, read):
                    made.pop()
            left, right = self._around(d) if self.partial and d not in given else (0, 0)
            left = first if first and self.draw.chance(50) else left
            if left + right and d not in self.ranges:
                self.ranges[d] = 0, size
            subscripts.append(at + (f" {'-' if first > left else '+'} {abs(left - first)}" if left != first else ""))
            shape.append(left + size + right)
            read.append(slice(left, left + size))
        self.inputs[name], self.read[name] = (dtype, tuple(shape)), tuple(read)
        return f"{name}[{', '.join(subscripts)}]"

    def _around(self, d: str) -> tuple[int, int]:
        if d not in self.around:
            self.around[d] = self.draw.pick(*AROUND)
        return self.draw.pick(*AROUND) if self.draw.chance(40) else self.around[d]

    def case(self, results: str) -> Case:
        results = self._stacked(results) if self.draw.chance(12) else results
        self.lines = [self._ranged(line) for line in self.lines]
        strange = self.partial and self.draw.chance(50)
        given = ", ".join(f"{n}: {t}[{', '.join(map(str, s))}]" for n, (t, s) in self.inputs.items())
        body = "\n".join(f"    {line}" for line in self.lines)
        rng, arrays = np.random.default_rng(self.draw.below(1 << 16)), {}
        for name, (kind, shape) in self.inputs.items():
            dtype = DTYPES[kind]
            if dtype is BOOL:
                arrays[name] = rng.integers(0, 3, shape) > 0
            elif dtype.is_float:
                arrays[name] = (rng.integers(-8, 9, shape) / 4).astype(dtype.numpy)
            elif kind in ("i8", "u8"):
                arrays[name] = np.asarray(integer_data(rng, dtype, shape))
            else:  # numbers of segments, lengths, rows
                arrays[name] = rng.integers(0, max(self.sizes) // 4, shape).astype(dtype.numpy)
            if strange and dtype.is_float:  # what is not read may be no number
                part = arrays[name][self.read[name]].copy()
                arrays[name][...] = np.nan
                arrays[name][self.read[name]] = part
        return Case(f"op f({given}) -> ({results}) {{\n{body}\n}}", {}, arrays)

    def _stacked(self, results: str) -> str:
        """The first result with a further index, as of `stack` and `expand`."""
        name, dtype, sizes, others = re.fullmatch(r"(\w+): (\w+)\[(.*?)\](.*)", results).groups()
        indices, shape = [f"x{n}" for n in range(sizes.count(",") + 1)], sizes.split(", ")
        value = f"{name}[{', '.join(indices)}]"
        at = next(n for n, line in enumerate(self.lines) if line.startswith(f"{name}["))
        own = self.lines[at][len(name) + 1 : self.lines[at].index("]")].split(", ")
        self.ranges |= {i: (0, int(n)) for i, n in zip(own, shape)}  # a result's shape tells ranges
        place, count = self.draw.below(len(shape) + 1), self.draw.pick(2, 1, 3)
        indices.insert(place, "c")
        shape.insert(place, str(count))
        value = self.draw.pick(value, f"({value} if c < 1 else 2 * {value})", f"({value} if c == 1 else f32(c))")
        ranges = ", ".join(f"{i} in 0:{n}" for i, n in zip(indices, shape))
        self.lines.append(f"z0[{', '.join(indices)}] = {value} where {ranges}")
        return f"z0: {dtype}[{', '.join(shape)}]{others}"

    def _ranged(self, line: str) -> str:
        """With the ranges that its tensors do not tell."""
        own = [d for d in self.ranges if re.search(rf"\b{d}\b(?!\[)", line)] if " where " not in line else []
        return line + (" where " + ", ".join(f"{d} in {self.ranges[d][0]}:{self.ranges[d][1]}" for d in own) if own else "")


def drawn_matrix_case(draw: Choices, large: bool = False) -> Case:
    """A program and its inputs; `large`: with sizes for which planners take matrix units by themselves."""
    maker = _Maker(draw, LARGE if large else SMALL, draw.chance(50))
    return draw.pick(_attention, _reduced, _window, _product, _gradient, _product)(maker)


# ---- attention -------------------------------------------------------------------------------------------------------


def _attention(m: _Maker) -> Case:
    draw, kind = m.draw, m.draw.pick("bf16", "f16")
    sizes = {"b": draw.pick(1, 2), "h": draw.pick(2, 1, 4, 2, 4, 20), "i": m.size(), "j": m.size()}
    sizes["d"] = draw.pick(16, 64, 24, 40, 65, 72, 128)
    sizes["e"] = draw.pick(sizes["d"], sizes["d"], 16, 48)
    group = draw.pick(*(g for g in (1, 2, 4, 20) if sizes["h"] % g == 0))
    part = lambda names: {n: sizes[n] for n in names}  # noqa: E731
    m.begins("d", sizes["d"])
    query = m.tensor("q", kind, part("bhid"), "d")
    shared, of_group = {"h": sizes["h"] // group}, {"h": f"h // {group}"} if group > 1 else {}
    key = m.tensor("k", kind, part("bhjd") | shared, draw.pick("d", "d", "j"), **of_group)
    value = m.tensor("v", kind, part("bhje") | shared, draw.pick("e", "e", "j"), **of_group)
    scale = draw.pick("", " / 8", " * 0.125", f" / sqrt(f32({sizes['d']}))")
    m.lines.append(f"s[b, h, i, j] = sum[d]({query} * {key}){scale}")
    m.lines.append(f"t[b, h, i, j] = {_scored(m, part)}")
    results = [f"o: {draw.pick('f32', kind)}[{', '.join(str(sizes[d]) for d in 'bhie')}]"]
    rounded = draw.pick("", "", f": {kind}")
    match draw.below(5):
        case 0 | 1:
            weights = "softmax[j](t[b, h, i, j])"
        case 2:
            m.lines.append("l[b, h, i] = logsumexp[j](t[b, h, i, j])")
            results.append(f"l: f32[{', '.join(str(sizes[d]) for d in 'bhi')}]")
            weights = "exp(t[b, h, i, j] - l[b, h, i])"
        case 3:
            weights = "sigmoid(t[b, h, i, j])"
        case _:
            m.lines.append("m[b, h, i] = max[j](t[b, h, i, j])")
            m.lines.append("w[b, h, i, j] = exp(t[b, h, i, j] - (m[b, h, i] if m[b, h, i] > -inf else 0))")
            m.lines.append("n[b, h, i] = sum[j](w[b, h, i, j])")
            weights = "w[b, h, i, j] / (n[b, h, i] if n[b, h, i] > 0 else 1)"
    m.lines.append(f"p[b, h, i, j]{rounded} = {weights}")
    using = draw.pick(f" using {kind}", "") if kind == "bf16" else ""
    m.lines.append(f"o[b, h, i, e] = sum[j](p[b, h, i, j] * {value}){using}")
    return m.case(", ".join(results))


def _scored(m: _Maker, part) -> str:
    """What softmax takes of a score."""
    draw, score = m.draw, "s[b, h, i, j]"
    if draw.chance(20):
        score = f"5 * tanh({score} / 5)"
    match draw.below(4):
        case 1:
            score += f" + {m.tensor('a', draw.pick('f32', 'bf16'), part(draw.pick('hij', 'ij', 'bj')))}"
        case 2:
            score += f" - {m.tensor('c', 'f32', part('h'))} * abs(f32(i - j)) / 8"
    conditions = []
    for which in draw.ordered(range(7))[: draw.pick(0, 1, 1, 2)]:
        conditions.append((
            "j <= i", "j <= i + 3", "j > i - 20", "(i + j) % 3 != 0",
            f"j < {m.tensor('z', 'i32', part('b'))}" if which == 4 else "",
            f"{m.tensor('x', 'i32', part('bi'), 'i')} == {m.tensor('y', 'i32', part('bj'), 'j')}" if which == 5 else "",
            m.tensor("g", "bool", part("ij")) if which == 6 else "",
        )[which])  # fmt: skip
    return f"({score} if {' and '.join(conditions)} else -inf)" if conditions else score


def _gradient(m: _Maker) -> Case:
    """Weights of the results of two or three contractions, over rows or columns of these."""
    draw, kind = m.draw, m.draw.pick("bf16", "f16")
    sizes = {"h": draw.pick(2, 1), "i": m.size(), "j": m.size(), "d": draw.pick(16, 64, 40, 72), "e": draw.pick(64, 16, 24, 48)}
    part = lambda names: {n: sizes[n] for n in names}  # noqa: E731
    query, key = m.tensor("q", kind, part("hid"), "d"), m.tensor("k", kind, part("hjd"), draw.pick("d", "d", "j"))
    left, right = m.tensor("g", kind, part("hie"), "e"), m.tensor("v", kind, part("hje"), draw.pick("e", "e", "j"))
    m.lines.append(f"s[h, i, j] = sum[d]({query} * {key}){draw.pick(' / 8', '', ' * 0.125')}")
    m.lines.append(f"r[h, i, j] = sum[e]({left} * {right})")
    mask = draw.pick("j <= i", "", "j <= i + 3", "j >= i", "j > i - 20 and j <= i")
    score = f"(s[h, i, j] if {mask} else -inf)" if mask else "s[h, i, j]"
    row, column = m.tensor("l", "f32", part("hi")), m.tensor("c", "f32", part("hj"))
    m.lines.append(f"p[h, i, j]{draw.pick('', f': {kind}')} = exp({score} / 8 - abs({draw.pick(row, column)}) - 2)")
    more = ""
    if draw.chance(6):
        m.lines.append(f"t[h, i, j] = sum[e]({left} * {right.replace('v', 'u')})")
        m.inputs["u"], m.read["u"] = m.inputs["v"], m.read["v"]
        more = " + t[h, i, j] / 8"
    weight = (
        f"p[h, i, j] * (r[h, i, j] / 8 - {row}){more}", f"p[h, i, j] * r[h, i, j] - p[h, i, j] * {column}{more}",
        f"s[h, i, j] * r[h, i, j] / 64{more}", f"r[h, i, j] / 8 + {row} if s[h, i, j] > 0 else s[h, i, j] / 8{more}",
    )  # fmt: skip
    m.lines.append(f"w[h, i, j]{draw.pick('', f': {kind}')} = {draw.pick(*weight)}")
    by_row = draw.chance(50)
    rows, summed = ("i", "j") if by_row else ("j", "i")
    values = draw.pick(key, right) if by_row else draw.pick(query, left)
    last = "d" if values in (key, query) else "e"
    using = draw.pick(f" using {kind}", "") if kind == "bf16" else ""
    m.lines.append(f"o[h, {rows}, {last}] = sum[{summed}](w[h, i, j] * {values}){using}")
    return m.case(f"o: {draw.pick('f32', kind)}[{sizes['h']}, {sizes[rows]}, {sizes[last]}]")


# ---- contractions that are only reduced ----------------------------------------------------------------------------------


SCALED = ("s[i, j]", "(s[i, j] / 8)", "(s[i, j] * 0.3 + {b})", "({b} - 2 * s[i, j])", "(s[i, j] if j <= i + 9 else -inf)")
REDUCED = (
    "logsumexp[j]({s})", "max[j]({s})", "min[j]({s})", "sum[j]({s})", "sum[j](exp({s} / 8 - 3))", "sqrt(sum[j]({s} ** 2))",
    "f32(argmax[j]({s}))", "f32(argmin[j]({s}))", "sum[j]({s} if j == {c} else 0)", "sum[j](exp({s} / 8 - m[i]) * {s})",
)  # fmt: skip


def _reduced(m: _Maker) -> Case:
    draw, kind = m.draw, m.draw.pick("bf16", "f16")
    sizes = {"i": m.size(), "j": m.size(), "k": draw.pick(64, 8, 16, 33, 72, 129, 136)}
    m.begins("k", sizes["k"])
    left = m.tensor("x", kind, {d: sizes[d] for d in "ik"}, draw.pick("k", "k", "i"))
    right = m.tensor("y", kind, {d: sizes[d] for d in "jk"}, draw.pick("k", "k", "j"))
    bias, column = m.tensor("b", "f32", {"j": sizes["j"]}), m.tensor("c", "i32", {"i": sizes["i"]})
    m.lines.append(f"s[i, j] = sum[k]({left} * {right})")
    scaled = draw.pick(*SCALED).format(b=bias)
    bodies = [draw.pick(*REDUCED).format(s=scaled, c=column) for _ in range(draw.pick(1, 1, 2))]
    if any("m[i]" in b for b in bodies):
        m.lines.append(f"m[i] = max[j]({scaled} / 8)")
    m.lines += [f"r{n}[i] = {body}" for n, body in enumerate(bodies)]
    for name in ("b", "c"):
        if not any(f"{name}[" in line for line in m.lines):
            del m.inputs[name]
    return m.case(", ".join(f"r{n}: f32[{sizes['i']}]" for n in range(len(bodies))))


# ---- windows -------------------------------------------------------------------------------------------------------------


def _window(m: _Maker) -> Case:
    """A convolution of one or two dimensions; of each channel alone where it is depthwise."""
    draw, kind = m.draw, m.draw.pick("bf16", "f16", "f32")
    flat, alone, padded = draw.chance(40), draw.chance(25), draw.chance(60)
    across = "u" if flat else "uv"
    channels, kernels, count = draw.pick(16, 8, 24, 40, 3, 64), draw.pick(16, 8, 40, 72), draw.pick(1, 2)
    shape: dict[str, int] = {"n": count}
    out, access, windows = {"n": count}, {}, {}
    for d in across:
        window, step, apart = draw.pick(3, 1, 2, 5), draw.pick(1, 1, 2, 3), draw.pick(1, 1, 2)
        before = (window // 2) * apart if padded else 0
        windows["rs"["uv".index(d)]] = window
        out[d] = draw.pick(9, 5, 12, 16, 20)
        extent = (out[d] - 1) * step + (window - 1) * apart + 1 - before - (window - 1 - window // 2) * apart * padded
        shape[d] = max(1, extent + draw.pick(0, 0, 1) * (step - 1))
        place = f"{step} * {d}" if step > 1 else d
        place += f" + {apart} * {'rs'['uv'.index(d)]}" if apart > 1 else f" + {'rs'['uv'.index(d)]}"
        access[d] = place + (f" - {before}" if before else "")
    shape["c"] = channels
    if not alone:
        m.begins("c", channels)
    element = m.tensor("x", kind, shape, orders=[[*shape], ["n", "c", *across]], **access)
    element = f"pad({element}, 0)" if padded else element
    filters = {"c": channels} | windows if alone else {"o": kernels, "c": channels} | windows
    weight = m.tensor("w", kind, filters)
    summed = ", ".join(windows) if alone else ", ".join(draw.ordered([*windows, "c"]))
    out |= {"c": channels} if alone else {"o": kernels}
    value = f"sum[{summed}]({element} * {weight})"
    if draw.chance(40):
        value = f"max({value} + {m.tensor('t', 'f32', {list(out)[-1]: list(out.values())[-1]})}, 0)"
    order = draw.pick([*out], ["n", list(out)[-1], *across])
    m.lines.append(f"y[{', '.join(order)}] = {value}")
    return m.case(f"y: {draw.pick('f32', kind)}[{', '.join(str(out[d]) for d in order)}]")


# ---- products ------------------------------------------------------------------------------------------------------------


def _product(m: _Maker) -> Case:
    draw = m.draw
    left, right = draw.pick(
        ("bf16", "bf16"), ("f16", "f16"), ("bf16", "i8"), ("i8", "i8"), ("f8e4m3", "f8e4m3"), ("f32", "f32"), ("bf16", "f16"),
        ("f8e5m2", "f8e4m3"),
    )  # fmt: skip
    whole = left == right == "i8"
    rows, columns = m.split("p", "i", m.size(), 12), m.split("q", "j", m.size(), 12)
    inner, last = m.split("g", "k", m.size(64, 128, 256), 50), draw.pick("", "k")
    sizes = rows | columns | inner
    for d, size in inner.items():
        m.begins(d, size)
    batch = {"b": draw.pick(2, 3)} if draw.chance(25) else {}
    chosen = {}
    if draw.chance(15) and not batch:  # rows that an index chooses
        chosen = {"i": f"abs({m.tensor('e', 'i32', {'i': sizes['i']})}) % {sizes['i']}"}
    a = m.tensor("a", left, batch | rows | inner, last, **chosen)
    shared = {} if draw.chance(30) else batch
    b = m.tensor("w", right, shared | columns | inner, last)
    if whole:
        a, b = f"i32({a})", f"i32({b})"
    elif draw.chance(20):
        a = f"silu({a})"
    scaled = ""
    if not whole and draw.chance(30):
        at = draw.pick("i", "j", "b")
        if at != "b":
            scaled = f" * {m.tensor('u', 'f32', {at: sizes[at]})}"
        elif sizes["k"] % 32 == 0 and len(inner) == 1:
            _, end = m.ranges.get("k", (0, sizes["k"]))
            scaled = f" * {m.tensor('u', 'f32', {'i': sizes['i'], 'k': -(-end // 32)}, orders=['ik'], k='k // 32')}"
    using = draw.pick("", " using tf32") if left == right == "f32" else ""
    value = f"sum[{', '.join(draw.ordered([*inner]))}]({a} * {b}{scaled}){using}"
    if draw.chance(30) and not whole:
        value = draw.pick(f"max({value}, 0)", f"gelu({value})", f"{value} + {m.tensor('t', 'f32', {'j': sizes['j']})}")
    out = batch | rows | columns
    order = draw.pick([*out], [*reversed(out)])
    m.lines.append(f"y[{', '.join(order)}] = {value}")
    kind = "i32" if whole else draw.pick("f32", "bf16", "f16")
    return m.case(f"y: {kind}[{', '.join(str(out[d]) for d in order)}]")


# ---- checking ------------------------------------------------------------------------------------------------------------


def machine(unit: str) -> Target:
    """One whose planner takes this unit for few elements, and one kernel wherever that is legal."""
    target = load(MACHINES[unit])
    rates = target.tensor
    if unit == "stream-k":
        free = replace(target.fit(WarpgroupTimes), stream_k=0.1, part_us=0, part_wait_us=0)
        groups = target.fitted.groups | {"warpgroup_contraction": free}
        target = replace(target, units=3, fitted=replace(target.fitted, groups=groups))
    if unit == "packed":  # threads copy slowly, memory is as fast as it is
        slow = replace(target.fit(WarpgroupTimes), piece_operations=1e6, filled=1e3, parts=1e-6)
        target = replace(target, fitted=replace(target.fitted, groups=target.fitted.groups | {"warpgroup_contraction": slow}))
    if unit != "mma.sync":
        rates = {kind: of | {"mma.sync": 0.01} if "wgmma" in of else of for kind, of in rates.items()}
    memory = target.dram if unit == "packed" else replace(target.dram, bandwidth_gbs=1.0)
    return replace(target, tensor=rates, dram=memory)


def check_matrix(case: Case, unit: str) -> Verdict:
    """Holds the mapped IR for a GPU, run thread by thread, to the reference. Raises Wrong, and what compiling and running raise."""
    program = specialised(case)
    with mlir.context(), ir.Location.unknown():
        lowered = lower(build(program), machine(unit))
    with np.errstate(all="ignore"):
        results = interpret_stage(program, lowered.texts, "map", case.inputs)
    return expect(case, program, results, "cuda", f"by {unit}: ")

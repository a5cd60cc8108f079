"""Random programs that matrix units multiply: products, windows, attention and its relatives, and products that are only reduced.

What `fuzz.programs` draws has sizes and forms that seldom get such kernels. Here the form is given, and what varies is what users
vary: types, layouts, sizes around the edges of tiles, masks, biases, casts, scales and what follows.
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
MACHINES = {"wgmma": "h200", "mma.sync": "a100", "stream-k": "h200"}
"""Of those who multiply: `wgmma`, where blocks share the steps of tiles that do not fill the machine, too."""


@dataclass
class _Maker:
    """A program under construction. `inputs`: type and shape of each argument."""

    draw: Choices
    sizes: tuple[int, ...]
    inputs: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def size(self, *more: int) -> int:
        return self.draw.pick(*self.sizes, *more)

    def tensor(self, name: str, dtype: str, dims: dict[str, int], last: str = "") -> str:
        """Adds an argument with these indices and sizes, in any order, mostly with one of `last` as the last; returns how it is
        read."""
        orders = [list(dims), *map(list, permutations(dims))]
        if last and not self.draw.chance(8):
            orders = [o for o in orders if o[-1] in last]
        order = self.draw.pick(*orders)
        self.inputs[name] = (dtype, tuple(dims[d] for d in order))
        return f"{name}[{', '.join(order)}]"

    def case(self, results: str) -> Case:
        results = self._stacked(results) if self.draw.chance(12) else results
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
        return Case(f"op f({given}) -> ({results}) {{\n{body}\n}}", {}, arrays)

    def _stacked(self, results: str) -> str:
        """The first result with a further index, as of `stack` and `expand`."""
        name, dtype, sizes, others = re.fullmatch(r"(\w+): (\w+)\[(.*?)\](.*)", results).groups()
        indices, shape = [f"x{n}" for n in range(sizes.count(",") + 1)], sizes.split(", ")
        value = f"{name}[{', '.join(indices)}]"
        at = next(n for n, line in enumerate(self.lines) if line.startswith(f"{name}["))
        if " where " not in self.lines[at]:  # a result's shape tells ranges
            own = self.lines[at][len(name) + 1 : self.lines[at].index("]")].split(", ")
            self.lines[at] += " where " + ", ".join(f"{i} in 0:{n}" for i, n in zip(own, shape))
        place, count = self.draw.below(len(shape) + 1), self.draw.pick(2, 1, 3)
        indices.insert(place, "c")
        shape.insert(place, str(count))
        value = self.draw.pick(value, f"({value} if c < 1 else 2 * {value})", f"({value} if c == 1 else f32(c))")
        ranges = ", ".join(f"{i} in 0:{n}" for i, n in zip(indices, shape))
        self.lines.append(f"z0[{', '.join(indices)}] = {value} where {ranges}")
        return f"z0: {dtype}[{', '.join(shape)}]{others}"


def drawn_matrix_case(draw: Choices, large: bool = False) -> Case:
    """A program and its inputs; `large`: with sizes for which planners take matrix units by themselves."""
    maker = _Maker(draw, LARGE if large else SMALL)
    return draw.pick(_attention, _reduced, _window, _product, _gradient)(maker)


# ---- attention -------------------------------------------------------------------------------------------------------


def _attention(m: _Maker) -> Case:
    draw, kind = m.draw, m.draw.pick("bf16", "f16")
    sizes = {"b": draw.pick(1, 2), "h": draw.pick(2, 1, 4, 2, 4, 20), "i": m.size(), "j": m.size()}
    sizes["d"] = draw.pick(16, 64, 24, 40, 65, 72, 128)
    sizes["e"] = draw.pick(sizes["d"], sizes["d"], 16, 48)
    group = draw.pick(*(g for g in (1, 2, 4, 20) if sizes["h"] % g == 0))
    part = lambda names: {n: sizes[n] for n in names}  # noqa: E731
    query = m.tensor("q", kind, part("bhid"), "d")
    key = m.tensor("k", kind, part("bhjd"), draw.pick("d", "d", "j"))
    value = m.tensor("v", kind, part("bhje"), draw.pick("e", "e", "j"))
    if group > 1:
        for name in "kv":
            dims = key if name == "k" else value
            at = dims[2:-1].split(", ").index("h")
            shape = list(m.inputs[name][1])
            shape[at] //= group
            m.inputs[name] = (kind, tuple(shape))
        key, value = (x.replace("h", f"h // {group}") for x in (key, value))
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
        m.inputs["u"] = m.inputs["v"]
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


SCALED = ("s[i, j]", "(s[i, j] / 8)", "(s[i, j] * 0.3 + b[j])", "(b[j] - 2 * s[i, j])", "(s[i, j] if j <= i + 9 else -inf)")
REDUCED = (
    "logsumexp[j]({s})", "max[j]({s})", "min[j]({s})", "sum[j]({s})", "sum[j](exp({s} / 8 - 3))", "sqrt(sum[j]({s} ** 2))",
    "f32(argmax[j]({s}))", "f32(argmin[j]({s}))", "sum[j]({s} if j == c[i] else 0)", "sum[j](exp({s} / 8 - m[i]) * {s})",
)  # fmt: skip


def _reduced(m: _Maker) -> Case:
    draw, kind = m.draw, m.draw.pick("bf16", "f16")
    sizes = {"i": m.size(), "j": m.size(), "k": draw.pick(64, 8, 16, 33, 72, 129, 136)}
    left = m.tensor("x", kind, {d: sizes[d] for d in "ik"}, draw.pick("k", "k", "i"))
    right = m.tensor("y", kind, {d: sizes[d] for d in "jk"}, draw.pick("k", "k", "j"))
    m.tensor("b", "f32", {"j": sizes["j"]})
    m.tensor("c", "i32", {"i": sizes["i"]})
    m.lines.append(f"s[i, j] = sum[k]({left} * {right})")
    scaled = draw.pick(*SCALED)
    bodies = [draw.pick(*REDUCED).format(s=scaled) for _ in range(draw.pick(1, 1, 2))]
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
    out, access, windows = {"n": count}, ["n"], {}
    for d in across:
        window, step, apart = draw.pick(3, 1, 2, 5), draw.pick(1, 1, 2, 3), draw.pick(1, 1, 2)
        before = (window // 2) * apart if padded else 0
        windows["rs"["uv".index(d)]] = window
        out[d] = draw.pick(9, 5, 12, 16, 20)
        extent = (out[d] - 1) * step + (window - 1) * apart + 1 - before - (window - 1 - window // 2) * apart * padded
        shape[d] = max(1, extent + draw.pick(0, 0, 1) * (step - 1))
        place = f"{step} * {d}" if step > 1 else d
        place += f" + {apart} * {'rs'['uv'.index(d)]}" if apart > 1 else f" + {'rs'['uv'.index(d)]}"
        access.append(place + (f" - {before}" if before else ""))
    shape["c"] = channels
    names = {"n": "n", **dict(zip(across, access[1:])), "c": "c"}
    first = draw.pick([*names], ["n", "c", *across])
    m.inputs["x"] = (kind, tuple(shape[d] for d in first))
    element = f"x[{', '.join(names[d] for d in first)}]"
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
    sizes = {"i": m.size(), "j": m.size(), "k": m.size(64, 128, 256)}
    batch = {"b": draw.pick(2, 3)} if draw.chance(25) else {}
    a = m.tensor("a", left, batch | {d: sizes[d] for d in "ik"})
    shared = {} if draw.chance(30) else batch
    b = m.tensor("w", right, shared | {d: sizes[d] for d in "jk"})
    if draw.chance(15) and not batch:  # rows that an index chooses
        rows = m.inputs["a"][1]["ik".index("i") if a.startswith("a[i") else 1]
        m.tensor("e", "i32", {"i": sizes["i"]})
        a = a.replace("i", f"abs(e[i]) % {rows}", 1)
    if whole:
        a, b = f"i32({a})", f"i32({b})"
    elif draw.chance(20):
        a = f"silu({a})"
    scaled = ""
    if not whole and draw.chance(30):
        at = draw.pick("i", "j", "b")
        if at != "b":
            scaled = f" * {m.tensor('u', 'f32', {at: sizes[at]})}"
        elif sizes["k"] % 32 == 0:
            m.inputs["u"] = ("f32", (sizes["i"], sizes["k"] // 32))
            scaled = " * u[i, k // 32]"
    using = draw.pick("", " using tf32") if left == right == "f32" else ""
    value = f"sum[k]({a} * {b}{scaled}){using}"
    if draw.chance(30) and not whole:
        value = draw.pick(f"max({value}, 0)", f"gelu({value})", f"{value} + {m.tensor('t', 'f32', {'j': sizes['j']})}")
    out = batch | {d: sizes[d] for d in "ij"}
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
    if unit != "mma.sync":
        rates = {kind: of | {"mma.sync": 0.01} if "wgmma" in of else of for kind, of in rates.items()}
    return replace(target, tensor=rates, dram=replace(target.dram, bandwidth_gbs=1.0))


def check_matrix(case: Case, unit: str) -> Verdict:
    """Holds the mapped IR for a GPU, run thread by thread, to the reference. Raises Wrong, and what compiling and running raise."""
    program = specialised(case)
    with mlir.context(), ir.Location.unknown():
        lowered = lower(build(program), machine(unit))
    with np.errstate(all="ignore"):
        results = interpret_stage(program, lowered.texts, "map", case.inputs)
    return expect(case, program, results, "cuda", f"by {unit}: ")

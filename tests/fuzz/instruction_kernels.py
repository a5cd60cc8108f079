"""Kernels of drawn instructions: expressions that share parts, what they compute, and their PTX as NVVM writes it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fuzz.instruction_set import ALIASES, OPS, WRITTEN_OUT, Op
from fuzz.instruction_values import KINDS

THREADS = 128
SHARED_DEPTH = 3
"""Of expressions that are part of others: deep ones are a NaN or 0 in every thread, and slow to reduce."""
REGISTERS = {"pred": "p", "b16": "rs", "b32": "r", "b64": "rd", "f32": "f", "f64": "fd"}
_SLOT = 8 * THREADS  # bytes of an input or of a result


@dataclass(frozen=True, eq=False)
class Input:
    """`loaded` is the type in memory, which may be narrower than the register."""

    kind: str
    loaded: str
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Number:
    """Written out. `kind` may be one of `ALIASES`."""

    kind: str
    value: float


@dataclass(frozen=True, eq=False)
class Node:
    op: Op
    operands: tuple[Node | Input | Number, ...]

    @property
    def kind(self) -> str:
        return self.op.result


Part = Node | Input | Number
Values = dict[Part, np.ndarray]


def parts(roots: Iterable[Part]) -> list[Part]:
    """Everything below, operands first."""
    found: dict[Part, None] = {}

    def visit(part: Part) -> None:
        if part not in found:
            for operand in part.operands if isinstance(part, Node) else ():
                visit(operand)
            found[part] = None

    for root in roots:
        visit(root)
    return list(found)


def evaluate(roots: Iterable[Part], instead: Mapping[str, Callable] | None = None) -> Values:
    """The value of every part in every thread. `instead` has other meanings of some instructions."""
    values: Values = {}
    with np.errstate(all="ignore"):
        for part in parts(roots):
            if isinstance(part, Input):
                values[part] = part.values
            elif isinstance(part, Number):
                values[part] = _array([part.value] * THREADS, ALIASES.get(part.kind, part.kind))
            else:
                value = (instead or {}).get(part.op.name, part.op.value)
                values[part] = value(*(values[o] for o in part.operands))
                assert values[part].dtype == KINDS[part.kind], part.op.name
    return values


def _array(numbers: Iterable[float], kind: str) -> np.ndarray:
    dtype = KINDS[kind]
    return np.array([int(n) % 2 ** int(kind[1:]) for n in numbers] if kind[0] == "b" else list(numbers), dtype)


def same(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Threads whose results are alike: NaN is NaN, and zeros have signs."""
    if found.dtype.kind != "f":
        return found == expected
    as_bits = f"u{found.dtype.itemsize}"
    return (found.view(as_bits) == expected.view(as_bits)) | (np.isnan(found) & np.isnan(expected))


# ---- text --------------------------------------------------------------------------------------------------------------


def _number(number: Number, op: Op, place: int) -> str:
    value, kind = number.value, ALIASES.get(number.kind, number.kind)
    if kind in ("f32", "f64"):
        bits = np.array(value, KINDS[kind]).view(f"u{KINDS[kind].itemsize}")
        return f"0{kind[0] if kind == 'f32' else 'd'}{int(bits):0{2 * KINDS[kind].itemsize}X}"
    width = int(kind[1:])
    value = int(value) % 2**width
    return str(value - 2**width if value >> (width - 1) and not op.unsigned and number.kind[0] != "a" else value)


def written(roots: list[Part], chip: str = "sm_90a") -> tuple[str, bytes]:
    """The kernel `k(in, out)` that stores the roots' values, and its input's bytes."""
    counts, names, lines, memory = dict.fromkeys(REGISTERS, 0), {}, [], []
    counts["b64"], counts["b32"] = 5, 1
    places: dict[Part, list[int]] = {}
    for place, root in enumerate(roots):
        places.setdefault(root, []).append(place)

    def register(kind: str) -> str:
        counts[kind] += 1
        return f"%{REGISTERS[kind]}{counts[kind]}"

    for part in parts(roots):
        if isinstance(part, Number):
            continue
        names[part] = register(part.kind)
        if isinstance(part, Input):
            at = f"[%rd4+{_SLOT * len(memory)}]"
            if part.kind == "pred":
                lines += [
                    f"ld.global.nc.b16 {(byte := register('b16'))}, {at};",
                    f"setp.ne.s16 {names[part]}, {byte}, 0;",
                ]
            else:
                lines.append(f"ld.global.nc.{part.loaded} {names[part]}, {at};")
            held = np.zeros(THREADS, "u8")
            size = part.values.dtype.itemsize
            held.view(part.values.dtype)[:: 8 // size] = part.values
            memory.append(held.tobytes())
        else:
            given = [_number(o, part.op, i) if isinstance(o, Number) else names[o] for i, o in enumerate(part.operands)]
            lines.append(part.op.text.format(*given, d=names[part], n=len(names)))
        for place in places.get(part, ()):
            name, kind = names[part], part.kind
            if kind == "pred":
                name, kind = register("b16"), "b16"
                lines.append(f"selp.b16 {name}, 1, 0, {names[part]};")
            lines.append(f"st.global.{kind} [%rd5+{_SLOT * place}], {name};")
    declared = [f".reg .{kind} %{REGISTERS[kind]}<{count + 1}>;" for kind, count in counts.items()]
    begin = [
        "ld.param.b64 %rd1, [k_param_0];", "ld.param.b64 %rd2, [k_param_1];", "mov.u32 %r1, %tid.x;",
        "mul.wide.u32 %rd3, %r1, 8;", "add.s64 %rd4, %rd1, %rd3;", "add.s64 %rd5, %rd2, %rd3;",
    ]  # fmt: skip
    body = "\n".join(f"\t{line}" for line in [*declared, "", *begin, *lines, "ret;"])
    head = f".version 8.7\n.target {chip}\n.address_size 64\n\n"
    entry = f".visible .entry k(\n\t.param .u64 k_param_0,\n\t.param .u64 k_param_1\n)\n.maxntid {THREADS}, 1, 1\n"
    return f"{head}{entry}{{\n{body}\n}}\n", b"".join(memory)


def read(roots: list[Part], memory: bytes) -> list[np.ndarray]:
    """What a kernel stored."""
    whole = np.frombuffer(memory, "u8").reshape(len(roots), THREADS)
    found = []
    for root, row in zip(roots, whole):
        dtype = np.dtype("u2") if root.kind == "pred" else KINDS[root.kind]
        values = np.ascontiguousarray(row.view(dtype)[:: 8 // dtype.itemsize])
        found.append(values != 0 if root.kind == "pred" else values)
    return found


def expression(part: Part, names: dict[Part, str]) -> str:
    """For people; inputs are named as they come."""
    if isinstance(part, Number):
        return f"{part.value}"
    if isinstance(part, Input):
        return names.setdefault(part, f"{part.loaded}:{chr(97 + len(names) % 26)}")
    return f"{part.op.name}({', '.join(expression(o, names) for o in part.operands)})"


# ---- drawing -----------------------------------------------------------------------------------------------------------

_BY_RESULT = {k: [op for op in OPS.values() if op.result == k] for k in KINDS}
_WEIGHTS = {k: [op.weight for op in ops] for k, ops in _BY_RESULT.items()}
_TAKES = {k: [(op, i) for op in OPS.values() for i, kind in enumerate(op.operands) if kind == k] for k in KINDS}
_TAKES_WEIGHTS = {k: [op.weight for op, _ in takes] for k, takes in _TAKES.items()}
_LOADED = {
    "b16": ["b16", "b16", "u8", "s8"], "b32": ["b32", "b32", "b32", "u8", "s8", "u16", "s16"],
    "b64": ["b64", "b64", "s32", "u32", "s16"], "f32": ["f32"], "f64": ["f64"],
}  # fmt: skip
PATTERNS = [
    # three extremes, of numbers that are negated, made positive or extended
    "{m}.{s}({m}.{s}(?, {u}.s{w}(?)), ?)", "{m}.{s}(?, {m}.{s}({u}.s{w}(?), ?))", "{m}.{s}({M}.{s}(?, #), #)",
    "{m}.{s}({m}.{s}(sub.s{w}(#, ?), ?), {u}.s{w}(?))", "selp.b{w}(?, ?, setp.{c}.{s}({u}.s{w}(?), ?))",
    # comparisons of what has a known range
    "setp.{c}.s32(cvt.s32.s16({u}.s16(?)), #)", "setp.{c}.s64(cvt.s64.s32({u}.s32(?)), #)", "setp.{c}.s{w}({u}.s{w}(?), #)",
    "setp.{c}.{s}(and.b{w}(?, #), #)", "setp.{c}.{s}(shr.{s}(?, #), #)", "setp.{c}.u32(cvt.u32.u16({u}.s16(?)), #)",
    "cvt.s32.s16({u}.s16(?))", "cvt.s64.s16({u}.s16(?))", "cvt.u32.u16({u}.s16(?))", "cvt.u64.u32({u}.s32(?))",
    # shifts of masked and of shifted numbers, sums and products
    "shr.{s}(and.b{w}(?, #), #)", "and.b{w}(shr.{s}(?, #), #)", "shr.{s}(shl.b{w}(?, #), #)", "shl.b{w}(shr.{s}(?, #), #)",
    "shr.{s}(add.s{w}(shr.{s}(?, #), ?), #)", "or.b{w}(shl.b{w}(?, #), shr.u{w}(?, #))", "shr.{s}(mul.lo.s{w}(?, #), #)",
    "add.s{w}(mul.lo.s{w}(?, ?), ?)", "sub.s{w}(?, mul.lo.s{w}(?, ?))", "sub.s{w}(mul.lo.s{w}(?, #), mul.lo.s{w}(?, #))",
    "add.s64(mul.wide.s32(?, #), cvt.s64.s32(?))", "mul.lo.s{w}({u}.s{w}(?), {u}.s{w}(?))", "add.s{w}(not.b{w}(?), #)",
    "mul.lo.s{w}(add.s{w}(?, #), #)", "div.{s}({m}.{s}(?, #), #)", "rem.{s}(and.b{w}(?, #), #)", "div.u{w}(add.s{w}(?, #), #)",
    "add.s{w}(selp.b{w}(#, #, ?), ?)", "mul.lo.s{w}(selp.b{w}(1, 0, ?), ?)", "shl.b{w}(selp.b{w}(1, 0, ?), #)",
    "{m}.s32(cvt.s32.s16(?), cvt.s32.s8 of b32(?))", "cvt.u16.u32({M}.s32({m}.s32(?, #), #))",
    "cvt.rn.f32.u32(and.b32(shr.u32(?, #), 255))", "add.s32(add.s32(?, {u}.s32(?)), {u}.s32(?))",
    "prmt.b32(prmt.b32(?, ?, #), ?, #)",
    # floats: negations and absolute values, ranges, choices of constants, conversions there and back
    "{m}.{f}({m}.{f}(?, {v}.{f}(?)), ?)", "{m}.{f}({M}.{f}(?, #), #)", "{a}.rn.{f}({v}.{f}(?), {v}.{f}(?))",
    "fma.rn.{f}({v}.{f}(?), {v}.{f}(?), {v}.{f}(?))", "add.rn.{f}(mul.rn.{f}(?, ?), mul.rn.{f}(?, ?))",
    "setp.{c}{q}.{f}(add.rn.{f}(abs.{f}(?), #), #)", "setp.{c}{q}.{f}({m}.{f}(abs.{f}(?), #), {v}.{f}(?))",
    "setp.{c}{q}.{f}(mul.rn.{f}($1, $1), #)", "setp.{c}{q}.{f}($1, $1)", "selp.{f}($1, $2, setp.{c}{q}.{f}($1, $2))",
    "selp.{f}($1, {v}.{f}($1), setp.{c}{q}.{f}($1, 0))", "cvt.rn.f32.f64(selp.f64(#, #, ?))", "cvt.f64.f32(cvt.rn.f32.f64(?))",
    "cvt.rn.f32.f64(cvt.rn.f64.s32(?))", "cvt.rzi.s32.f32(cvt.rn.f32.s32(?))", "cvt.rzi.{s}.{f}({m}.{f}({M}.{f}(?, #), #))",
    "cvt.rn.{f}.s64(cvt.rzi.s64.{f}(?))", "cvt.rzi.u{w}.{f}({v}.{f}(?))", "mul.rn.{f}(mul.rn.{f}(?, #), #)",
    "add.rn.f32(cvt.rn.f32.f64(selp.f64(1, 0, ?)), cvt.rn.f32.f64(selp.f64(1, 0, ?)))",
    "setp.{c}.f64(cvt.f64.f32(cvt.rz.f32.f64($1)), $1)",
    "sub.rn.{f}(0, {v}.{f}(?))", "{v}.{f}(sub.rn.{f}(?, ?))", "add.rn.{f}(?, 0)", "mul.rn.{f}(selp.{f}(1, 0, ?), ?)",
    "selp.b{w}($1, $2, setp.{c}.{s}($1, $2))", "selp.b{w}($1, neg.s{w}($1), setp.{c}.s{w}($1, 0))",
    "and.pred(setp.{c}.{s}($1, #), setp.{d}.{s}($1, #))", "or.pred(setp.{c}{q}.{f}($1, #), setp.{d}.{f}($1, #))",
    "sub.s{w}({m}.{s}($1, $2), {M}.{s}($1, $2))", "selp.{f}(selp.{f}(#, #, ?), #, ?)",
    "abs.s{w}(sub.s{w}(cvt.s{w}.s8 of b{w}(?), ?))",
]  # fmt: skip
"""Shapes that compilers rewrite: `?` is any expression, `#` a number, `$1` one expression in several places."""
_CHOICES = {
    "m": ["max", "min"], "M": ["max", "min"], "u": ["neg", "abs"], "v": ["neg", "abs"], "a": ["add", "sub", "mul"],
    "c": ["lt", "le", "gt", "ge", "eq", "ne"], "d": ["lt", "le", "gt", "ge"], "q": ["", "u"], "f": ["f32", "f32", "f64"],
}  # fmt: skip


class Draw:
    """Expressions over some inputs; each is drawn once, and may be part of later ones."""

    def __init__(self, seed: str):
        self.random = random.Random(seed)
        self.depths: dict[Part, int] = {}
        self.known: dict[str, list[Part]] = {k: [] for k in KINDS}
        for kind, loaded in _LOADED.items():
            self.known[kind] = [self.input(kind, self.random.choice(loaded)) for _ in range(4)]

    def kernel(self, count: int) -> list[Part]:
        roots = []
        for _ in range(count):
            drawn = (
                self.pattern() if self.random.random() < 0.5 else self.expression(self.random.choice(list(KINDS)), 3)
            )
            while self.random.random() < 0.4:  # and something of it
                drawn = self.over(drawn)
            roots.append(drawn)
        return roots

    # ---- numbers

    def input(self, kind: str, loaded: str) -> Input:
        values = _array((self.value(kind) for _ in range(THREADS)), kind)
        if loaded[0] in "us" and int(loaded[1:]) < int(kind[1:]):
            width = int(loaded[1:])
            narrow = values.astype(f"{'i' if loaded[0] == 's' else 'u'}{width // 8}")
            values = narrow.astype(f"{'i' if loaded[0] == 's' else 'u'}{int(kind[1:]) // 8}").view(KINDS[kind])
        return Input(kind, loaded, values)

    def value(self, kind: str) -> float:
        """Of an input's element: at the ends of types as often as anywhere."""
        r = self.random
        if kind[0] == "b":
            width, near = int(kind[1:]), r.choice([8, 16, 32, 64, r.randrange(64)])
            ends = (2 ** min(near, width) - 1, 2 ** (min(near, width) - 1), -(2 ** (min(near, width) - 1)))
            some = r.getrandbits(width)
            return r.choice([r.choice(ends) + r.randint(-1, 1), r.randint(-9, 9), some, some >> r.randrange(width)])
        sizes = [0.0, 1.0, 0.5, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 32768.0, 255.0, 3.4e38, 1.2e-38, 1e-45, 65504.0]
        special = [float("inf"), float("nan"), 0.0, 1e308 if kind == "f64" else 3e38, 5e-324, 1e-40]
        found = r.choice([
            r.choice(sizes) + r.choice([0, 0, 1, -1, 0.5]), r.choice(special), r.randint(-9, 9) / 2, r.gauss(0, 1),
            r.gauss(0, 1) * 2.0 ** r.randint(-140, 120), r.gauss(0, 1) * 2.0 ** r.randint(-30, 66),
        ])  # fmt: skip
        return -found if r.random() < 0.5 else found

    def number(self, kind: str) -> Number:
        """Written out in an instruction."""
        r, width = self.random, int(ALIASES.get(kind, kind)[1:])
        if kind.startswith("bytes"):
            return Number(kind, sum(r.randrange(8) << 4 * n for n in range(4)))
        if kind.startswith(("amount", "place", "count")):
            below = int(kind[-2:]) // (1 if kind[0] == "a" else 2)
            ends = [n for n in (0, 1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 63, below - 1) if n < below]
            return Number(kind, r.choice([*ends, r.randrange(below)]) + kind.startswith("count"))
        if "divisor" in kind:
            below = width - (kind[0] == "s")
            small, some = r.choice([1, 2, 3, 5, 7, 10, 16, 255, 1000]), 1 + r.getrandbits(below - 1)
            found = r.choice([small, small, 2**below - 1, 2 ** r.randrange(below), some])
            return Number(kind, -found if kind[0] == "s" and found > 1 and r.random() < 0.3 else found)
        if kind[0] == "f":
            often = [0.0, 0.0, 1.0, 0.5, 2.0, 3.0, 255.0, 2.0**31, float("inf")]
            found = r.choice([*often, 2.0 ** r.randint(-40, 64), r.gauss(0, 1)])
            found = found if r.random() < 0.7 else -found
            return Number(kind, float(np.float32(found)) if kind == "f32" else found)
        if r.random() < 0.6:
            power, end = 2 ** r.randrange(width), 2 ** (width - 1)
            often = [0, 1, -1, 2, r.randint(-9, 9), power, power - 1, end, end - 1, 255, 32768, 65535, -32768, -128]
            return Number(kind, r.choice(often))
        return Number(kind, int(self.value(kind)))

    # ---- expressions

    def any(self, kind: str, depth: int) -> Part:
        if "divisor" in kind:  # neither 0 nor -1
            b = ALIASES[kind]
            found = self.expression(b, depth)
            if kind[0] == "s":
                below = int(b[1:]) - 1 - self.random.choice([0, 1, 4])
                found = self.made(OPS[f"and.{b}"], (found, Number(b, 2**below - 1)))
            return self.made(OPS[f"or.{b}"], (found, Number(b, 1)))
        if kind.startswith("amount"):
            return self.made(OPS["and.b32"], (self.any("b32", depth), Number("b32", int(kind[-2:]) - 1)))
        shared = self.known[kind]
        if shared and (depth <= 0 or self.random.random() < 0.3):
            return self.random.choice(shared if self.random.random() < 0.5 else shared[-9:])
        return self.expression(kind, depth)

    def expression(self, kind: str, depth: int) -> Part:
        op = self.random.choices(_BY_RESULT[kind], _WEIGHTS[kind])[0]
        return self.of(op, depth)

    def of(self, op: Op, depth: int, given: dict[int, Part] | None = None) -> Part:
        """`op` of what is given, and of what is drawn. At least one operand is in a register, but of `mov`."""
        given = given or {}
        free = [i for i in op.numbers if i not in given]
        if len(op.operands) > 1 and len(free) == len(op.operands):
            free.remove(self.random.choice([i for i in free if not op.operands[i].startswith(WRITTEN_OUT)]))
        operands = []
        for i, kind in enumerate(op.operands):
            always = kind.startswith(WRITTEN_OUT) or len(op.operands) == 1
            written_out = i in free and (always or self.random.random() < 0.4)
            operands.append(given[i] if i in given else self.number(kind) if written_out else self.any(kind, depth - 1))
        return self.made(op, tuple(operands))

    def made(self, op: Op, operands: tuple[Part, ...]) -> Node:
        node = Node(op, operands)
        self.depths[node] = depth = 1 + max(self.depths.get(o, 0) for o in operands)
        if depth <= SHARED_DEPTH:
            self.known[node.kind].append(node)
        return node

    def over(self, part: Part) -> Part:
        """An instruction that takes it."""
        op, place = self.random.choices(_TAKES[part.kind], _TAKES_WEIGHTS[part.kind])[0]
        return self.of(op, 2, {place: part})

    def pattern(self) -> Part:
        w = self.random.choice([16, 32, 32, 64])
        chosen = {k: self.random.choice(v) for k, v in _CHOICES.items()}
        text = self.random.choice(PATTERNS).format(**chosen, w=w, s=self.random.choice("su") + str(w))
        return self._shaped(re.findall(r"[^(),]+|[(),]", text)[::-1], "", {})

    def _shaped(self, tokens: list[str], kind: str, named: dict[str, Part]) -> Part:
        """What a text of `PATTERNS` says, whose next piece is the last of `tokens`."""
        piece = tokens.pop().strip()
        if piece == "?":
            return self.any(kind, self.random.choice([0, 0, 1, 2]))
        if piece == "#":
            return self.number(kind)
        if piece[0] == "$":
            return named.setdefault(piece, self.any(kind, 1))
        if piece.isdigit():
            return Number(kind, int(piece))
        op, operands = OPS[piece], []
        for operand in op.operands:
            tokens.pop()  # ( or ,
            operands.append(self._shaped(tokens, operand, named))
        tokens.pop()
        return self.made(op, tuple(operands))

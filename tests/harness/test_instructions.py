"""The hunt for faults of ptxas (`fuzz/instructions.py`): what it expects, number by number; what it draws; what it finds."""

import argparse
import math
import random
import re
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from fuzz import instructions
from fuzz.instruction_kernels import THREADS, Draw, Input, Node, Number, evaluate, parts, read, same, written
from fuzz.instruction_set import ALIASES, OPS, WRITTEN_OUT
from fuzz.instruction_values import KINDS
from tools.cuda_driver_fake import stand_in

from tilec.runtime.cuda import driver as cuda_driver

# ---- what one instruction computes: once more, with Python's integers and fractions, as the manual of PTX writes it


def rounded(x: Fraction, kind: str, how: str = "rn") -> float:
    """The nearest number of a type, or the next one in a direction."""
    digits, least = {"f16": (11, -24), "bf16": (8, -133), "f32": (24, -149), "f64": (53, -1074)}[kind]
    largest = {"f16": 2**16, "bf16": 2**128, "f32": 2**128, "f64": 2**1024}[kind]
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - digits + 1, least)
    whole = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}[how](x / unit) * unit
    if abs(whole) >= largest:
        away = how == "rn" or (how == "rp" and x > 0) or (how == "rm" and x < 0)
        whole = math.inf if away else largest - largest // 2**digits
    return math.copysign(float(whole), 1 if x > 0 else -1)


def total(a: float, b: float, exact: Fraction, kind: str) -> float:
    """Of a and b, of which the latter or both may be a product."""
    if exact:
        return rounded(exact, kind)
    return -0.0 if math.copysign(1, a) < 0 and math.copysign(1, b) < 0 else 0.0


def float_op(base: str, kind: str, v: list[float]) -> float:
    finite = all(map(math.isfinite, v))
    if base == "neg":
        return -v[0]
    if base == "abs":
        return abs(v[0])
    if base in ("add", "sub"):
        a, b = v[0], v[1] if base == "add" else -v[1]
        return total(a, b, Fraction(a) + Fraction(b), kind) if finite else a + b
    if base in ("mul", "fma"):
        sign = math.copysign(1, v[0]) * math.copysign(1, v[1])
        inner = all(map(math.isfinite, v[:2]))
        product = math.copysign(1, sign) if inner else v[0] * v[1]
        if base == "mul":
            exact = Fraction(v[0]) * Fraction(v[1]) if inner else 1
            return (rounded(exact, kind) if exact else math.copysign(0, sign)) if inner else product
        if not finite:
            return v[2] if inner else product + v[2]
        exact = Fraction(v[0]) * Fraction(v[1])
        return total(math.copysign(0 if exact == 0 else 1, sign), v[2], exact + Fraction(v[2]), kind)
    raise KeyError(base)


def cut(n: int, width: int, sign: str = "u") -> int:
    n %= 2**width
    return n - 2**width if sign == "s" and n >= 2 ** (width - 1) else n


def integer_op(base: str, sign: str, w: int, v: list[int]) -> int:
    """Of registers without a sign; what it gives is cut to a register afterwards."""
    s = [cut(x, w, sign) for x in v]
    shifted = min(v[1], w) if len(v) > 1 else 0
    if base in ("mul.wide", "mad.wide"):
        return s[0] * s[1] + (v[2] if base == "mad.wide" else 0)
    if base == "bfe":
        pos, length, a = v[1] & 255, v[2] & 255, v[0]
        top = a >> min(pos + length - 1, w - 1) & 1 if sign == "s" and length else 0
        return sum((a >> pos + i & 1 if i < length and pos + i < w else top) << i for i in range(w))
    if base == "bfi":
        pos, length, found = v[2] & 255, v[3] & 255, v[1]
        for i in range(length):
            if pos + i < w:
                found = found & ~(1 << pos + i) | (v[0] >> i & 1) << pos + i
        return found
    if base == "prmt":
        data = [v[0] >> 8 * i & 255 for i in range(4)] + [v[1] >> 8 * i & 255 for i in range(4)]
        picked = [(data[v[2] >> 4 * i & 7], v[2] >> 4 * i & 8) for i in range(4)]
        return sum((255 * (byte >> 7) if signs else byte) << 8 * i for i, (byte, signs) in enumerate(picked))
    if base.startswith("shf"):
        n = v[2] & 31 if "wrap" in base else min(v[2], 32)
        return v[1] << n | v[0] >> 32 - n if ".l." in base else cut(v[1] << 32 - n, 32) | v[0] >> n
    simple = {
        "mov": lambda: v[0], "add": lambda: v[0] + v[1], "sub": lambda: v[0] - v[1], "mul.lo": lambda: v[0] * v[1],
        "mad.lo": lambda: v[0] * v[1] + v[2], "mul.hi": lambda: s[0] * s[1] >> w, "neg": lambda: -v[0], "abs": lambda: abs(s[0]),
        "not": lambda: ~v[0], "and": lambda: v[0] & v[1], "or": lambda: v[0] | v[1], "xor": lambda: v[0] ^ v[1],
        "shl": lambda: v[0] << shifted, "shr": lambda: s[0] >> shifted, "min": lambda: min(s), "max": lambda: max(s),
        "div": lambda: math.trunc(Fraction(s[0], s[1])), "rem": lambda: s[0] - s[1] * math.trunc(Fraction(s[0], s[1])),
        "popc": lambda: bin(v[0]).count("1"), "clz": lambda: w - len(f"{v[0]:b}".lstrip("0")),
        "brev": lambda: sum((v[0] >> i & 1) << w - 1 - i for i in range(w)),
    }  # fmt: skip
    return simple[base]()


def compared(how: str, a, b) -> bool:
    if how in ("nan", "num"):
        return (a != a or b != b) == (how == "nan")
    if a != a or b != b:
        return len(how) == 3
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[how[:2]]


match = cache(re.fullmatch)  # of a name, once for all numbers


def expected(name: str, v: list):
    """What the instruction gives of these, or its lower bits do."""
    if m := match(r"loop (\d) (\S+) ?(\S*)", name):
        acc, kind = v[0], OPS[name].result
        for i in range(int(m[1])):
            step = expected(m[3], [i, v[1]]) if m[3] else v[1]
            acc = expected(m[2], [acc, cut(step, int(kind[1:])) if m[3] else step])
            acc = cut(acc, int(kind[1:])) if kind[0] == "b" else acc
        return acc
    if name.startswith("branch"):
        return v[1] if v[0] else expected(name.split()[1], v[1:])
    if m := match(r"(pack|lower|upper) b(\d+)", name):
        half = int(m[2]) // 2
        return v[0] + (v[1] << half) if m[1] == "pack" else v[0] >> (half if m[1] == "upper" else 0)
    if m := match(r"(f\d\d) of bits", name):
        return np.array(v[0], f"u{int(m[1][1:]) // 8}").view(KINDS[m[1]]).item()
    if m := match(r"bits of (f\d\d)", name):
        return 0 if math.isnan(v[0]) else int(np.array(v[0], KINDS[m[1]]).view(f"u{int(m[1][1:]) // 8}"))
    if m := match(r"through (\w+)", name):
        return rounded(Fraction(v[0]), m[1]) if math.isfinite(v[0]) and v[0] else v[0]
    if m := match(r"setp\.(\w+)\.([suf])(\d+)", name):
        return compared(m[1], *(v if m[2] == "f" else [cut(x, int(m[3]), m[2]) for x in v]))
    if name.startswith("selp"):
        return v[0] if v[2] else v[1]
    if m := match(r"(\w+)\.pred", name):
        return {"and": all(v), "or": any(v), "xor": v[0] != v[-1], "not": not v[0]}[m[1]]
    if m := match(r"cvt\.[su](\d+)\.([su])(\d+)(?: of b\d+)?", name):
        return cut(v[0], int(m[3]), m[2])
    if m := match(r"cvt\.rn\.(f\d+)\.([su])(\d+)", name):
        n = cut(v[0], int(m[3]), m[2])
        return rounded(Fraction(n), m[1]) if n else 0.0
    if m := match(r"cvt\.(r\w)\.f32\.f64", name):
        return rounded(Fraction(v[0]), "f32", m[1]) if math.isfinite(v[0]) and v[0] else v[0]
    if name == "cvt.f64.f32":
        return v[0]
    if m := match(r"cvt\.(r[nzmp])i\.([suf])(\d+)\.f\d+", name):
        if not math.isfinite(v[0]):
            inf = {"s": 2 ** (int(m[3]) - 1), "u": 2 ** int(m[3])}.get(m[2], 0)
            return v[0] if m[2] == "f" else 0 if v[0] != v[0] else inf - 1 if v[0] > 0 else -inf if m[2] == "s" else 0
        whole = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}[m[1]](Fraction(v[0]))
        if m[2] == "f":
            return math.copysign(float(whole), v[0])
        low, high = (-(2 ** (int(m[3]) - 1)), 2 ** (int(m[3]) - 1) - 1) if m[2] == "s" else (0, 2 ** int(m[3]) - 1)
        return max(low, min(high, whole))
    if m := match(r"(min|max)(\.NaN)?\.f\d+", name):
        numbers = [x for x in v if x == x]
        if len(numbers) < (2 if m[2] else 1):
            return math.nan
        return {"min": min, "max": max}[m[1]](numbers, key=lambda x: (x, math.copysign(1, x)))
    if m := match(r"(\w+)(?:\.rn)?\.(f\d+)", name):
        if m[1] == "mov":
            return v[0]
        if m[1] in ("div", "rcp", "sqrt"):
            return divided(m[1], m[2], v)
        return float_op(m[1], m[2], v)
    m = match(r"(.+)\.([sub])(\d+)", name)
    return integer_op(m[1], m[2], int(m[3]), v)


def divided(base: str, kind: str, v: list[float]) -> float:
    a, b = (v if base == "div" else [1.0, v[0]])[:2]
    if base == "sqrt":
        if not v[0] > 0 or v[0] == math.inf:
            return v[0] if v[0] == 0 or v[0] == math.inf else math.nan
        scaled = Fraction(v[0]) * 4**1200  # of which the root has more digits than any type
        root = math.isqrt(math.floor(scaled))
        return rounded(Fraction(2 * root + (root * root != scaled), 2 * 2**1200), kind)
    sign = math.copysign(1, a) * math.copysign(1, b)
    if a != a or b != b or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    if math.isinf(a) or b == 0:
        return math.copysign(math.inf, sign)
    return math.copysign(0.0, sign) if a == 0 or math.isinf(b) else rounded(Fraction(a) / Fraction(b), kind)


@cache
def operand(kind: str, place: int) -> np.ndarray:
    """Numbers of an instruction's operand, the same for all that have one of the kind there; divisors are neither 0 nor -1."""
    draw = Draw(f"{kind} {place}")
    if kind == "pred":
        return np.array([draw.random.random() < 0.5 for _ in range(THREADS)])
    if kind in ALIASES:
        values = [Number(kind, draw.number(kind).value) for _ in range(THREADS)]
        return np.array([int(n.value) % 2 ** int(ALIASES[kind][1:]) for n in values], KINDS[ALIASES[kind]])
    return draw.input(kind, kind).values


FAMILIES = sorted({re.split(r"[. ]", name)[0] for name in OPS})


@pytest.mark.parametrize("family", FAMILIES)
def test_what_instructions_compute(family):
    names = [name for name in OPS if re.split(r"[. ]", name)[0] == family]
    for name in random.Random(0).sample(names, 40) if family == "loop" else names:
        op = OPS[name]
        inputs = [operand(kind, place) for place, kind in enumerate(op.operands)]
        with np.errstate(all="ignore"):
            found = op.value(*inputs)
        assert found.dtype == KINDS[op.result] and found.shape == (THREADS,), name
        meant = [expected(name, list(v)) for v in zip(*(x.tolist() for x in inputs))]
        if op.result[0] == "b":
            meant = [cut(n, int(op.result[1:])) for n in meant]
        off = np.flatnonzero(~same(found, np.array(meant, KINDS[op.result])))
        assert not len(off), (name, [x[off[0]] for x in inputs], found[off[0]], meant[off[0]])


@pytest.mark.parametrize(
    "name, given, meant",
    [
        ("shl.b32", (1, 32), 0), ("shl.b32", (1, 2**32 - 1), 0), ("shr.s32", (2**31, 40), 2**32 - 1),
        ("shr.u64", (2**63, 64), 0), ("shr.s16", (2**15, 15), 2**16 - 1), ("abs.s16", (2**15,), 2**15),
        ("neg.s64", (2**63,), 2**63), ("div.s32", (-7, 2), -3), ("rem.s32", (-7, 2), -1), ("rem.s32", (7, -2), 1),
        ("mul.hi.s32", (2**31, 2**31), 2**30), ("mul.hi.u16", (65535, 65535), 65534),
        ("mul.wide.s16", (2**15, 2**15), 2**30), ("min.u16", (65535, 1), 1), ("min.s16", (65535, 1), 65535),
        ("prmt.b32", (0x44332211, 0x88776655, 0x7F5C), 0x88FF6600), ("bfe.s32", (0xF0, 4, 4), 2**32 - 1),
        ("bfe.u32", (0xF0, 4, 4), 15), ("bfe.s32", (2**31, 30, 9), 2**32 - 2),
        ("bfi.b32", (0xFF, 0, 28, 8), 0xF0000000),
        ("shf.l.wrap.b32", (2**31, 1, 1), 3), ("shf.r.clamp.b32", (1, 7, 99), 7),
        ("cvt.s32.s8 of b16", (0x1FF,), 2**32 - 1), ("clz.b64", (1,), 63), ("max.f32", (math.nan, -1.0), -1.0),
        ("min.f64", (0.0, -0.0), -0.0), ("max.f32", (-0.0, 0.0), 0.0), ("max.NaN.f32", (math.nan, 1.0), math.nan),
        ("setp.ne.f32", (math.nan, 1.0), False), ("setp.ltu.f64", (math.nan, 1.0), True),
        ("cvt.rzi.s32.f32", (3e9,), 2**31 - 1), ("cvt.rzi.u32.f32", (-1.0,), 0), ("cvt.rzi.s32.f32", (math.nan,), 0),
        ("cvt.rni.s64.f64", (2.5,), 2), ("cvt.rzi.u64.f64", (2.0**64,), 2**64 - 1),
        ("cvt.rzi.s64.f32", (-math.inf,), 2**63), ("cvt.rni.s16.f32", (-1.5,), 2**16 - 2),
        ("cvt.rpi.f32.f32", (-0.5,), -0.0), ("cvt.rn.f32.s64", (2**24 + 1,), 2.0**24),
        ("cvt.rn.f32.u64", (2**63 + 2**39 + 1,), 2.0**63 + 2.0**40),
        ("cvt.rz.f32.f64", (-1e300,), -3.4028234663852886e38),
        ("fma.rn.f32", (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60), 1 + 2.0**-11 + 2.0**-23),
        ("fma.rn.f64", (0.1, 10.0, -1.0), 2.0**-54),
    ],
)  # fmt: skip
def test_ends(name, given, meant):
    """By hand."""
    op = OPS[name]
    kinds = [ALIASES.get(k, k) for k in op.operands]
    values = [x % 2 ** int(k[1:]) if k[0] == "b" else x for x, k in zip(given, kinds)]
    with np.errstate(all="ignore"):
        found = op.value(*(np.array([x], KINDS[k]) for x, k in zip(values, kinds)))
    meant = cut(meant, int(op.result[1:])) if op.result[0] == "b" else meant
    assert same(found, np.array([meant], KINDS[op.result])).all(), found


def test_half_types_know_subnormals():
    x = np.float32(1e-40)
    assert float(x.astype(ml_dtypes.bfloat16)) == rounded(Fraction(float(x)), "bf16") != 0


# ---- what is drawn and found


@pytest.mark.parametrize("chip", ["sm_90a", "sm_100a"])
def test_drawn_kernels_assemble(chip):
    pytest.importorskip("cuda.pathfinder")
    run = instructions.Assembler(chip, raw=False)
    for seed in range(2):
        roots = Draw(f"tests {seed}").kernel(60)
        assert instructions.wrong(roots, run) == []


def test_every_instruction_assembles():
    """Each with operands in registers, and with numbers wherever it may have them."""
    pytest.importorskip("cuda.pathfinder")
    draw, roots = Draw("every"), []
    for op in OPS.values():
        for written_out in {(), op.numbers[:2], op.numbers[-1:]}:
            given = [
                draw.number(kind) if i in written_out or kind.startswith(WRITTEN_OUT) else draw.any(kind, 0)
                for i, kind in enumerate(op.operands)
            ]
            if len(written_out) < len(given) or len(given) == 1:
                roots.append(Node(op, tuple(given)))
    for chip in ("sm_90a", "sm_100a"):
        ptx = written(roots, chip)[0]
        assert instructions.image_of(ptx, chip, raw=True)


def test_the_same_seed_draws_the_same():
    one, two = (written(Draw("7 3").kernel(40)) for _ in range(2))
    assert one == two != written(Draw("7 4").kernel(40))


def test_numbers_reach_memory_and_return():
    values = np.arange(THREADS).astype("u4") * 16777213
    roots = [Input("b32", "b32", values), Input("pred", "u8", values % 3 == 0)]
    ptx, memory = written(roots)
    assert "st.global.b32" in ptx
    assert all(same(a, r.values).all() for a, r in zip(read(roots, memory), roots))


PLANTED = {
    "max.s32": lambda a, b: np.where(a == 2**31, a, OPS["max.s32"].value(a, b)).astype("u4"),
    "setp.lt.f32": lambda a, b: OPS["setp.lt.f32"].value(a, b) | np.isnan(a),
    "shr.u64": lambda a, n: OPS["shr.u64"].value(a, n & 31),
    "cvt.s32.s16": lambda a: np.where(a == 2**15, 2**15, OPS["cvt.s32.s16"].value(a)).astype("u4"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_reduced(name):
    def planted(roots):
        values = evaluate(roots, {name: PLANTED[name]})
        return [values[r] for r in roots]

    options = argparse.Namespace(seed=name, expressions=60, raw=False)
    for kernel in range(40):
        _, count, failed, kind, files = instructions.attempt(options, kernel, planted, float("inf"), [])
        assert count == 60
        if failed:
            break
    assert kind == name and f" = {name}(" in files["report.txt"] and "thread" in files["report.txt"]
    known = [[name]]  # and is not reduced once more
    assert instructions.attempt(options, kernel, planted, float("inf"), known)[3:] == (name, {}) and len(known) == 1


def test_a_fault_of_two_instructions_is_reduced_to_them():
    """The second operand's negation is lost in the larger of three: a fault that CUDA 13.0 has."""

    def lost(roots):
        values = evaluate(roots)
        for part in parts(roots):  # operands first, so that what takes it is wrong as well
            if isinstance(part, Node):
                again = [values[o] for o in part.operands]
                inner = part.operands[0]
                if part.op.name == "max.s32" and isinstance(inner, Node) and inner.op.name == "max.s32":
                    second = inner.operands[1]
                    if isinstance(second, Node) and second.op.name == "neg.s32":
                        again[0] = OPS["max.s32"].value(values[inner.operands[0]], values[second.operands[0]])
                with np.errstate(all="ignore"):
                    values[part] = part.op.value(*again)
        return [values[r] for r in roots]

    draw = Draw("lost")
    a, b, c = (draw.input("b32", "b32") for _ in range(3))
    make = lambda name, *operands: Node(OPS[name], operands)  # noqa: E731
    inner = make("max.s32", make("xor.b32", a, Number("b32", 5)), make("neg.s32", make("add.s32", b, Number("b32", 7))))
    root = make("sub.s32", make("max.s32", inner, make("mul.lo.s32", c, a)), b)
    small = instructions.reduced([*draw.kernel(10), root, *draw.kernel(10)], lost)
    assert instructions.opcodes(small) == {"max.s32", "neg.s32"} and len(parts(small)) == 6


def test_a_kernel_that_does_not_assemble_is_reduced():
    def refuses(roots):
        if "popc.b64" in instructions.opcodes(roots):
            raise instructions.CompileError("k does not assemble", "", "ptxas fatal: drawn")
        values = evaluate(roots)
        return [values[r] for r in roots]

    draw = Draw("refused")
    roots = [*draw.kernel(20), draw.of(OPS["popc.b64"], 3), *draw.kernel(20)]
    small = instructions.reduced(roots, refuses)
    assert instructions.opcodes(small) == {"popc.b64"} and "drawn" in instructions.report(small, refuses)


def test_the_command(tmp_path, capsys):
    pytest.importorskip("cuda.pathfinder")
    result = tmp_path / "found.json"
    arguments = ["--kernels", "2", "--expressions", "10", "--jobs", "2", "--assemble-only", "sm_90a"]
    assert instructions.main([*arguments, "--result", str(result), "--out", str(tmp_path)]) == 0
    assert "2 kernels, 20 expressions" in capsys.readouterr().out and '"instructions"' in result.read_text()


def test_a_kernel_is_launched_on_its_arrays(monkeypatch):
    """By a driver that runs nothing: what is read is what the results' memory held."""
    pytest.importorskip("cuda.pathfinder")
    fake = stand_in(monkeypatch)
    monkeypatch.setattr(cuda_driver, "chip_of", lambda: "sm_90a")
    run = instructions.Gpu(raw=True)
    run.arrays = [4096, 8192]
    roots = Draw("launched").kernel(5)
    found = run(roots)
    (launch,) = fake.launches
    assert launch.words == (4096, 8192) and launch.block == (THREADS, 1, 1) and fake.names()[-1] == "cuLibraryUnload"
    assert [f.dtype for f in found] == [KINDS[r.kind] for r in roots] and not any(f.any() for f in found)


@pytest.mark.gpu
def test_kernels_on_a_gpu():
    run = instructions.Gpu(raw=False)
    for seed in range(4):
        roots = Draw(f"gpu {seed}").kernel(100)
        assert not instructions.wrong(roots, run), instructions.report(instructions.reduced(roots, run), run)

"""Printed kernels are read as Numba reads them: by what NVVM computes of constants, as Python, and through Numba's front end."""

import ast
import re
from itertools import product

import numpy as np
import pytest

pytest.importorskip("numba_cuda_mlir")
pytest.importorskip("cuda.core")

from expectations import EXAMPLES
from tools.cuda_kernels import check, kernel
from tools.lowering import emitted

from tilec.runtime import generated
from tilec.runtime.cuda import compile as cuda_compile
from tilec.runtime.cuda import frontend, lower
from tilec.runtime.cuda.cubins import parameters
from tilec.runtime.cuda.numbers import Unknown

TYPES = "int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64"


def ptx_of(source: str, by_numba: bool = False, name: str = "kernel", **options) -> str:
    """By the reader of printed kernels alone, or by Numba alone."""
    with pytest.MonkeyPatch.context() as patch:

        def never(*_, **__):
            raise Unknown("not here")

        patch.setattr(lower if by_numba else frontend, "to_mlir", never)
        settings = {"chip": "sm_90a", "threads": 128, "parameters": None, "min_blocks": 1} | options
        return cuda_compile._compile_here(source, name, **settings)


def stored(ptx: str) -> dict[int, str]:
    """What a kernel stores, by its position: all are constants."""
    known = dict(re.findall(r"mov\.[ubf]\d+ \s*(%\w+), (\S+);", ptx))
    found = re.findall(r"st\.global\.[ubf]\d+ \s*\[%\w+(?:\+(\d+))?\], (\S+);", ptx)
    return {int(at or 0) // 8: known.get(value, value) for at, value in found}


def storing(expressions: list[str], before: str = "") -> str:
    """A kernel that stores integers."""
    lines = [before, *(f"store_i64(y + {8 * k}, int64({e}))" for k, e in enumerate(expressions))]
    return kernel("\n".join(lines), *TYPES.split(", "), "store_i64", "opaque")


VALUES = {
    "int8": (-128, -7, 3), "uint8": (200, 3), "int32": (-(2**31), -7, 3), "uint32": (2**32 - 1, 3), "int64": (-(2**63), -7, 5),
    "uint64": (2**64 - 1, 3),
}  # fmt: skip
OPERATORS = ("+", "-", "*", "//", "%", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=")


@pytest.mark.parametrize("left", VALUES)
def test_operators_of_integers_are_numbas(left):
    """Every operator, pair of types and pair of values; what is not an integer by Numba's rules is left out."""
    for right in VALUES:
        if {left, right} in ({"int64", "uint64"}, {"int32", "uint64"}, {"int8", "uint64"}):  # floats by Numba's rules
            continue
        pairs = list(product(VALUES[left], VALUES[right]))
        made = [f"{left}({a}) {o} {right}({b})" for a, b in pairs for o in OPERATORS]
        made += [f"{left}({a}) {o} {right}({b})" for a in VALUES[left] for b in (1, 5) for o in (">>", "<<")]
        source = storing(made)
        mine, numbas = stored(ptx_of(source)), stored(ptx_of(source, by_numba=True))
        assert len(mine) == len(made) and all(re.fullmatch(r"-?\d+", v) for v in mine.values())
        assert mine == numbas, [(made[k], v, numbas[k]) for k, v in mine.items() if v != numbas[k]]


def test_conversions_are_numpys():
    """Numba takes the sign of a constant along: for `int64(uint8(int8(-7)))` it has -7."""
    made = {f"{to}({of}({v}))": np.array(v, of).astype(to) for of, values in VALUES.items() for v in values for to in VALUES}
    for of, v, to in product(("float32", "float64"), (-3.75, 0.0, 100.5), ("int8", "int32", "int64")):
        made[f"{to}({of}({v}))"] = np.array(v, of).astype(to)
    made |= {f"int64(float32({of}({values[-1]})))": values[-1] for of, values in VALUES.items() if of != "uint64"}
    mine = stored(ptx_of(storing(list(made))))
    assert [int(v) % 2**64 for v in mine.values()] == [int(v) % 2**64 for v in made.values()]


def test_other_operations_are_numbas():
    made = ["float32(2.5) < float32(3)", "float32(2.5) != float32(2.5)", "not (int64(3) > 2)", "-int64(5)", "abs(int64(-5))"]
    made += ["min(int64(-5), int64(3))", "max(int64(-5), int64(3))", "-float32(2.5)", "abs(float32(-2.5))"]
    made += ["int64(3) if x == x else 4", "float64(1.5) * 3", "int32(3) * float64(1.5)"]
    made += ["float32(7) / float32(2)", "float32(0.1) * float32(10)"]
    source = storing(made)
    mine, numbas = stored(ptx_of(source)), stored(ptx_of(source, by_numba=True))
    assert len(mine) == len(made) and mine == numbas


FLOW = """
total = 0
found = 0
for i in range(3):
    for j in range(10, 2, -3):
        if j == 7:
            continue
        total = total * 3 + i * j
    if i > 1:
        found = found + 5
    elif i == 1:
        found = found * 2 + 1
    else:
        found = 7
count = 0
while count < 9:
    count = count + 2
    if count == 6:
        break
a, b = 3, 4
a, b = b, a * 2 + b
for i in range(2, 2):
    total = 0
for i in range(4):
    last = i
    i = 100
held = cuda.local.array(4, int64)
for k in range(4):
    held[k] = k * k
held[2] = held[3] + held[1]
small = int32(-5)
chosen = total if found > count else found
picked = held[2] if total == 0 else held[3] * 2
"""
RESULTS = ("total", "found", "count", "a", "b", "held[0]", "held[2]", "small // 2", "small % 3", "chosen", "picked")


def test_control_flow_is_pythons():
    """Loops of known bounds are unrolled, and all is a constant then."""
    scope: dict = {"cuda": type("Cuda", (), {"local": type("Local", (), {"array": staticmethod(lambda n, t: np.zeros(n, t))})}),
                   "int64": np.int64, "int32": int}  # fmt: skip
    exec(FLOW, scope)
    mine = stored(ptx_of(storing(list(RESULTS), FLOW)))
    assert [int(mine[k]) for k in range(len(RESULTS))] == [int(eval(r, scope)) for r in RESULTS]


@pytest.mark.parametrize("body, values", [
    ("if 3 > 2:\n    store_i64(y, 1)\n    return\nstore_i64(y + 8, 2)", ["1"]),
    ("if 3 < 2:\n    store_i64(y, 1)\n    return\nstore_i64(y + 8, 2)", ["2"]),
    ("store_i64(y, 1)\nreturn", ["1"]),
    ("if 3 > 2:\n    store_i64(y, 1)\n    return\nelse:\n    return", ["1"]),
    ("for i in range(3):\n    if i == 1:\n        return\n    store_i64(y + i * 8, i + 5)", ["5"]),
])  # fmt: skip
def test_a_return_ends_the_kernel(body, values):
    assert list(stored(ptx_of(kernel(body, "store_i64"))).values()) == values


@pytest.mark.parametrize("body", [
    "for i in range(n):\n    store_i64(y, i)\nelse:\n    store_i64(y, 3)",
    "store_i64(y, int64(float64(n) ** 2))",
    "k = 1\nk += n\nstore_i64(y, k)",
    "for i in range(0, n, n):\n    store_i64(y, i)",
    "store_i64(y, 1 if n and n > 3 else 2)",
])  # fmt: skip
def test_numba_reads_what_no_printed_kernel_says(body):
    source = kernel(body, "store_i64")
    with pytest.raises(cuda_compile.CompileError, match="not here"):
        ptx_of(source)
    assert "st.global" in check(source, ("sm_90a",)).ptx


@pytest.mark.parametrize("example", [pytest.param(e, id=name) for name, e in EXAMPLES.items()])
def test_every_kernel_of_the_examples_is_read(example, rng):
    """Without Numba's front end, which takes several times as long."""
    made = emitted(example.path, example.op, example.inputs(rng))
    for k in made.kernels:
        ptx_of(generated.alone(made.module)[k.name], name=k.name, threads=k.threads, parameters=parameters(k))


def test_numbers_are_made_once_and_functions_linked_once():
    tree = ast.parse("def k(x):\n    store_f32(x, f(float32(2)))\n    store_f32(x + 8, f(float32(2)) * float32(2))")
    scope = {name: getattr(__import__("tilec.runtime.cuda.intrinsics", fromlist=[name]), name) for name in ("store_f32", "float32")}
    scope["f"] = __import__("tilec.runtime.cuda.intrinsics", fromlist=["x"]).exp2_approx_f32
    text = lower.to_mlir(tree.body[0], scope, ["i64"], "sm_90a", 32, 1)
    assert text.count("arith.constant 0x40000000 : f32") == 1 and text.count("func.func private @store_f32") == 1

"""Python's names of upstream's scalar operations, by their names in MLIR."""

from __future__ import annotations

COMPARE_FLOAT = {  # cmpf predicates by number: text over {a}, {b}
    0: "False", 1: "{a} == {b}", 2: "{a} > {b}", 3: "{a} >= {b}", 4: "{a} < {b}", 5: "{a} <= {b}",
    6: "({a} < {b}) | ({a} > {b})", 7: "({a} == {a}) & ({b} == {b})", 8: "not (({a} < {b}) | ({a} > {b}))",
    9: "not ({a} <= {b})", 10: "not ({a} < {b})", 11: "not ({a} >= {b})", 12: "not ({a} > {b})", 13: "{a} != {b}",
    14: "({a} != {a}) | ({b} != {b})", 15: "True",
}  # fmt: skip
COMPARE_INTEGER = {0: "==", 1: "!=", 2: "<", 3: "<=", 4: ">", 5: ">=", 6: "<", 7: "<=", 8: ">", 9: ">="}
BINARY = {
    "arith.addf": "+", "arith.subf": "-", "arith.mulf": "*", "arith.divf": "/",
    "arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.andi": "&", "arith.ori": "|", "arith.xori": "^",
    "arith.floordivsi": "//", "arith.divui": "//", "arith.remui": "%", "arith.shli": "<<", "arith.shrsi": ">>",
    "arith.shrui": ">>",
}  # fmt: skip
EXTREMA = {
    "arith.maxsi": "max", "arith.minsi": "min", "arith.maxui": "max", "arith.minui": "min",
    "arith.maximumf": "maximum", "arith.minimumf": "minimum", "arith.maxnumf": "maximum", "arith.minnumf": "minimum",
}  # fmt: skip
UNSIGNED = {"arith.divui", "arith.remui", "arith.shrui", "arith.maxui", "arith.minui", "arith.extui", "arith.uitofp"}
NARROW = ("bf16", "f16", "tf32", "f8E4M3FN", "f8E5M2")
PURE = ("arith.", "math.", "affine.apply", "affine.min", "affine.max", "memref.dim")

"""Operations element by element."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, pi
from typing import Any

from tilec.core.dtypes import DTYPES
from tilec.torch.aten.promotion import cast, computed, elementwise
from tilec.torch.aten.table import (
    ONE,
    UNROUNDED,
    Call,
    Value,
    expresses,
    operand,
    read_wide,
    rounds_operation,
    stays_wide,
)
from tilec.torch.program import Tensor, Unsupported, constant, literal

TESTS = {
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
}  # fmt: skip

_LARGER, _SMALLER = ("max(abs({0}), abs({1}))", "min(abs({0}), abs({1}))")
HYPOT = (  # of the ratio, whose square neither overflows nor vanishes beside 1
    f"({_LARGER} * sqrt(1 + {_SMALLER} / {_LARGER} * ({_SMALLER} / {_LARGER})) "
    f"if 0 < {_LARGER} and {_LARGER} < inf else abs({{0}}) + abs({{1}}))"
)

BITS = {
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "~{0}",
    "bitwise_left_shift": "{0} << {1}", "bitwise_right_shift": "{0} >> {1}",
}  # fmt: skip
DUNDER = {f"__{n}__": f"bitwise_{n}" for n in ("and", "or", "xor")} | {
    f"__{n[0]}shift__": f"bitwise_{n}_shift" for n in ("left", "right")
}
ON_BOOLS = {
    "bitwise_and": "{0} and {1}", "bitwise_or": "{0} or {1}", "bitwise_xor": "{0} != {1}", "bitwise_not": "not {0}",
}  # fmt: skip


def _unary(template: str, kind: str, call: Call) -> Tensor:
    if kind == "arithmetic" and call.dtype == "bool" and template != "{0}":
        raise Unsupported(f"{call.name} of bools")
    integer = kind == "arithmetic" and not DTYPES[call.dtype].is_float and call.name in ("ceil", "floor", "trunc")
    return elementwise(call, "{0}" if integer else template, ["self"], kind)


def _binary(template: str, kind: str, call: Call) -> Tensor:
    compute = computed(call, ["self", "other"], kind)
    if compute == "bool":
        logic = {"maximum": "{0} or {1}", "minimum": "{0} and {1}"}.get(call.name)
        if logic is None:
            raise Unsupported(f"{call.name} of bools")
        template = logic
    return elementwise(call, template, ["self", "other"], kind)


TRUNCATED = "({0} - fmod({0}, {1})) // {1}"  # a multiple, of which all roundings are one; -x of the least integer is itself


def _functions(names: str, kind: str, operands: str = "{0}", **properties: Any) -> None:
    """Operations that are a function of the language by their own name."""
    for name in names.split():
        expresses(name, **properties)(partial(_binary if "{1}" in operands else _unary, f"{name}({operands})", kind))


# Of operations of the kind "float", integers and bools become the default float type.
_functions("exp expm1 log log1p sqrt rsqrt sin cos tanh erf sigmoid", "float", smooth=True)
_functions("silu", "float", smooth=True, whole=ONE)
_functions("exp2 log2 tan asin acos atan asinh acosh atanh sinh cosh erfc erfinv lgamma digamma", "float")
_functions("abs relu", "arithmetic", smooth=True)
_functions("ceil floor sign trunc", "arithmetic")
_functions("atan2 copysign", "float", "{0}, {1}")
_functions("fmod", "arithmetic", "{0}, {1}")
expresses("reciprocal", smooth=True)(partial(_unary, "1 / {0}", "float"))
expresses("log10")(partial(_unary, "log2({0}) * 0.30102999566398120", "float"))
expresses("neg", smooth=True, linear=True)(partial(_unary, "-{0}", "arithmetic"))
expresses("positive")(partial(_unary, "{0}", "arithmetic"))
expresses("maximum", smooth=True)(partial(_binary, "max({0}, {1})", "arithmetic"))
expresses("minimum", smooth=True)(partial(_binary, "min({0}, {1})", "arithmetic"))
expresses("remainder")(partial(_binary, "{0} % {1}", "arithmetic"))
expresses("hypot")(partial(_binary, HYPOT, "arithmetic"))
for _name, _text in (("fmax", "max"), ("fmin", "min")):
    _text = f"({{0}} if {{1}} != {{1}} else ({{1}} if {{0}} != {{0}} else {_text}({{0}}, {{1}})))"
    expresses(_name)(partial(_binary, _text, "arithmetic"))


@expresses("angle")
def angle(call: Call) -> Tensor:
    """Of real numbers: that of a negative one is half a turn."""
    half = f"f64({pi})" if computed(call, ["self"], "float") == "f64" else str(pi)
    return elementwise(call, f"{{0}} if {{0}} != {{0}} else ({half} if {{0}} < 0 else 0)", ["self"], "float")


@expresses("add sub", smooth=True, linear=True)
@expresses("rsub", smooth=True)
def add(call: Call) -> Tensor:
    compute = computed(call, ["self", "other"], "arithmetic")
    if compute == "bool":
        if call.name != "add" or call["alpha"] not in (1, True):
            raise Unsupported(f"{call.name} of bools")
        return elementwise(call, "{0} or {1}", ["self", "other"])
    sign, alpha = ("+" if call.name == "add" else "-"), call["alpha"]
    factor = "" if alpha == 1 else f"{literal(alpha, compute)} * "
    template = f"{{1}} - {factor}{{0}}" if call.name == "rsub" else f"{{0}} {sign} {factor}{{1}}"
    return elementwise(call, template, ["self", "other"])


@expresses("mul", smooth=True, linear=True)
def mul(call: Call) -> Tensor:
    both = computed(call, ["self", "other"], "arithmetic") == "bool"
    made = elementwise(call, "{0} and {1}" if both else "{0} * {1}", ["self", "other"])
    return multiple(made, call["self"], call["other"])


def multiple(made: Tensor, x: Tensor, factor: Value) -> Tensor:
    """A product with a Python number keeps what it is a multiple of."""
    known = isinstance(factor, int | float) and not isinstance(factor, bool) and factor and abs(factor) < inf
    same_type = DTYPES[made.dtype].is_float and x.torch_dtype == made.torch_dtype
    return replace(made, origin=x.times(float(factor))) if known and same_type else made


@expresses("div", smooth=True)
@expresses("true_divide floor_divide")
def div(call: Call) -> Tensor:
    mode = "floor" if call.name == "floor_divide" else call.get("rounding_mode")
    if mode is None:
        made = elementwise(call, "{0} / {1}", ["self", "other"], "float")
        return (
            multiple(made, call["self"], 1 / call["other"])
            if isinstance(call["other"], float | int) and call["other"]
            else made
        )
    compute = computed(call, ["self", "other"], "arithmetic")
    if compute == "bool":
        raise Unsupported(f"{call.name} of bools")
    if mode == "floor":
        return elementwise(call, "{0} // {1}", ["self", "other"])
    if DTYPES[compute].is_float:
        return elementwise(call, "trunc({0} / {1})", ["self", "other"])
    unsigned = DTYPES[compute].kind == "uint"
    return elementwise(call, "{0} // {1}" if unsigned else TRUNCATED, ["self", "other"])


@expresses("pow", smooth=True)
def power(call: Call) -> Tensor:
    base, exponent = call["self"], call["exponent"]
    compute = computed(call, ["self", "exponent"], "power")
    if compute == "bool":
        raise Unsupported("pow of bools")
    if not isinstance(exponent, Tensor) and isinstance(base, Tensor):
        whole = float(exponent).is_integer()
        short = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 1.0: "{0}", 0.0: "{0} * 0 + 1"}.get(float(exponent))
        if DTYPES[compute].is_float:
            short = {0.5: "sqrt({0})", -0.5: "rsqrt({0})", -1.0: "1 / {0}", 0.0: None}.get(float(exponent), short)
        if short is not None:
            return elementwise(call, short, ["self"], compute=compute)
        if whole and DTYPES[compute].is_float and abs(exponent) < 2**31:  # a literal without a fraction is exact
            return elementwise(call, f"{{0}} ** {literal(float(exponent))}", ["self"], compute=compute)
    return elementwise(call, "{0} ** {1}", ["self", "exponent"], compute=compute)


def _test(name: str, call: Call) -> Tensor:
    compute = computed(call, ["self", "other"], "bool")
    if compute == "bool" and name not in ("eq", "ne"):
        compute = "i32"
    return elementwise(call, TESTS[name], ["self", "other"], compute=compute)


for _name in TESTS:
    expresses(_name)(partial(_test, _name))


@expresses("isnan isinf isfinite signbit")
def classify(call: Call) -> Tensor:
    x = call["self"]
    if not DTYPES[x.dtype].is_float:
        constant = {"isnan": "false", "isinf": "false", "isfinite": "true"}.get(call.name)
        if constant is None and x.dtype == "bool":
            constant = "false"
        return call.emit(call.shape, "bool", lambda i: constant or f"{x.at(*i)} < 0")
    template = {
        "isnan": "{0} != {0}", "isinf": "abs({0}) == inf", "isfinite": "abs({0}) < inf",
        "signbit": "{0} < 0 or ({0} == 0 and 1 / {0} < 0)",
    }[call.name]  # fmt: skip
    return elementwise(call, template, ["self"], compute="f64" if x.dtype == "f64" else "f32")


@expresses("logical_and logical_or logical_xor logical_not")
def logic(call: Call) -> Tensor:
    template = {
        "logical_and": "{0} and {1}", "logical_or": "{0} or {1}", "logical_xor": "{0} != {1}", "logical_not": "not {0}",
    }[call.name]  # fmt: skip
    return elementwise(call, template, ["self", "other"][: 1 + ("other" in call)], compute="bool")


@expresses(f"{' '.join(BITS)} __and__ __or__ __xor__ __lshift__ __rshift__")
def bits(call: Call) -> Tensor:
    names = ["self"] if call.name == "bitwise_not" else [n for n in call.named if n in ("self", "other")]
    compute = computed(call, names, "arithmetic")
    name = DUNDER.get(call.name, call.name)
    if compute == "bool":
        if name not in ON_BOOLS:
            raise Unsupported(f"{name} of bools")
        return elementwise(call, ON_BOOLS[name], names)
    return elementwise(call, BITS[name], names)


@expresses("where", smooth=True)
def where(call: Call) -> Tensor:
    condition, shape = call["condition"], call.shape
    if "self" not in call or call["self"] is None:
        raise Unsupported("where: a result whose shape depends on data")
    compute = computed(call, ["self", "other"], "arithmetic")
    x, y = call["self"], call["other"]

    def expression(i: list) -> str:
        taken, other = (operand(v, compute, lambda t: t.along(i, shape)) for v in (x, y))
        asked = condition.along(i, shape)
        return f"{taken} if {asked if condition.dtype == 'bool' else f'bool({asked})'} else {other}"

    return call.emit(shape, call.dtype, expression)


@expresses("clamp", smooth=True)
@expresses("hardtanh")
def clamp(call: Call) -> Tensor:
    low, high = ("min_val", "max_val") if call.name == "hardtanh" else ("min", "max")
    names = ["self", *(n for n in (low, high) if call[n] is not None)]
    if call.dtype == "bool":
        raise Unsupported("clamp of bools")
    template = "{0}"
    for position, name in enumerate(names[1:], 1):
        template = f"{'max' if name == low else 'min'}({template}, {{{position}}})"
    if len(names) == 3 and not isinstance(call[low], Tensor) and not isinstance(call[high], Tensor):
        template = "clamp({0}, {1}, {2})"
    return elementwise(call, template, names)


@expresses("leaky_relu", smooth=True)
def leaky_relu(call: Call) -> Tensor:
    return elementwise(call, f"{{0}} if {{0}} > 0 else {{0}} * {literal(float(call['negative_slope']))}", ["self"])


@expresses("elu")
def elu(call: Call) -> Tensor:
    alpha, scale, inner = (float(call[n]) for n in ("alpha", "scale", "input_scale"))
    above = "{0}" if scale == 1 else f"{{0}} * {literal(scale)}"
    below = "expm1({0})" if inner == 1 else f"expm1({{0}} * {literal(inner)})"
    return elementwise(call, f"{above} if {{0}} > 0 else {literal(alpha * scale)} * {below}", ["self"])


@expresses("gelu", smooth=True)
def gelu(call: Call) -> Tensor:
    return elementwise(call, "gelu_tanh({0})" if call["approximate"] == "tanh" else "gelu({0})", ["self"])


@expresses("softplus", whole=ONE)
def softplus(call: Call) -> Tensor:
    beta, threshold = float(call["beta"]), float(call["threshold"])
    if beta == 1 and threshold >= 20:  # beyond, log1p(exp(-x)) is below a rounding of x
        return elementwise(call, "softplus({0})", ["self"])
    scaled = f"({{0}} * {literal(beta)})"
    return elementwise(
        call, f"{{0}} if {scaled} > {literal(threshold)} else softplus({scaled}) / {literal(beta)}", ["self"]
    )


@expresses("round")
def rounded(call: Call) -> Tensor:
    if not DTYPES[call.dtype].is_float:
        return elementwise(call, "{0}", ["self"])
    decimals = call.get("decimals", 0)
    factor = literal(10.0 ** abs(decimals))
    template = f"round({{0}} * {factor}) / {factor}" if decimals > 0 else f"round({{0}} / {factor}) * {factor}"
    return elementwise(call, template if decimals else "round({0})", ["self"])


@expresses("_to_copy convert_element_type", casts=True)
@expresses("to detach_copy alias_copy lift_fresh_copy lift copy")
@expresses("clone alias", shows="order")
@expresses("detach", shows="order", whole="a view, as the `alias` that PyTorch makes of it")
def copies(call: Call) -> Value:
    """Casts and copies. A copy is the thing itself: equations do not change what they read. What is made narrower is rounded, but
    where a kernel is to keep it on chip and the next operation is arithmetic, whose result is rounded. Nor is it rounded where
    the cast is part of an operation, and the operation's result may stay unrounded."""
    x = call[next(iter(call.named))]
    if call.name == "copy":
        x = call["src"].expanded(call.shape)
    dtype = call.dtype
    if not isinstance(x, Tensor):
        return constant(call.shape, dtype, x)
    if dtype == x.torch_dtype:
        return x
    if x.nominal and x.dtype == dtype:
        return replace(x, nominal="")
    if dtype in ("f16", "bf16") and x.dtype == "f32":
        kept = call.node.meta.get(UNROUNDED) and read_wide(call.node)
        if kept or (stays_wide(call.node) and rounds_operation(call.node)):
            return replace(x, nominal=dtype)
    return cast(call.graph, x, dtype)


@expresses("fma")
def fused(call: Call) -> Tensor:
    return elementwise(call, "{0} * {1} + {2}", [*call.named][:3])

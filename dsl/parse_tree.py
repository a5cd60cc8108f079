"""From Lark's tree to the AST, without recursion; and the syntax errors that the grammar does not find."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias

from lark import Token, Tree

from tilec.core.diagnostics import Diagnostic, Source, Span
from tilec.core.dtypes import DTYPES, OTHER_NAMES, DType
from tilec.core.varying import Varying
from tilec.dsl import ast
from tilec.dsl.rewritten import left_hint
from tilec.dsl.shortform import main_op

MAX_DEPTH = 100
MAX_RANK = 16
MAX_SIZE_WORDS = 64
_MAX_REPORTS = 200

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "mean", "argmin", "argmax", "logsumexp")
SCANS = ("cumsum", "cumprod", "cummax", "cummin")
_RIGHT_WORD = {"&&": "and", "||": "or", "!": "not"}
CONSTANTS = {"inf": math.inf, "nan": math.nan}
_BINDING = {
    kind: level
    for level, kinds in enumerate(
        ("OR WRONG_OR", "AND WRONG_AND", "COMPARISON", "BAR", "CARET", "AMPERSAND", "SHIFT", "PLUS MINUS",
         "STAR SLASH DOUBLE_SLASH PERCENT")
    )
    for kind in kinds.split()
}  # fmt: skip
"""How closely operators bind, by the kinds of their tokens."""
_PASSED = {*_BINDING, "NAME", "NUMBER", "STRING", "TRUE", "FALSE", "NOT", "WRONG_NOT", "TILDE", "POWER"}
"""The kinds of the tokens that methods get: others only tell rules apart."""


Children: TypeAlias = "list[Any]"
"""What the methods for the parts of a rule have returned, and its words."""


def ends_of(token: Token) -> tuple[int, int]:
    """Where a word begins and ends in the source: the lexer, which makes all of them, says so."""
    assert token.start_pos is not None and token.end_pos is not None
    return token.start_pos, token.end_pos


class TreeBuilder:
    """One method per rule of the grammar, which gets its span, and its children already built."""

    def __init__(self, source: Source, problems: list[Diagnostic]):
        self.source, self.problems = source, problems
        self.depths: dict[int, tuple[ast.Expr, float]] = {}

    def transform(self, tree: Tree) -> ast.Program:
        """The program of the whole tree."""
        pending, nodes = [tree], list[Tree]()
        while pending:
            nodes.append(node := pending.pop())
            if node.data == "operations":
                _nest(node)
            pending += [child for child in node.children if isinstance(child, Tree)]
        built: dict[int, tuple[Any, int | None, int]] = {}
        for node in reversed(nodes):
            children: Children = []
            start: int | None = None
            end = 0
            for child in node.children:
                begin: int | None
                if isinstance(child, Token):
                    begin, last = ends_of(child)
                    if child.type in _PASSED:
                        children.append(child)
                else:
                    value, begin, last = built.pop(id(child))
                    children.append(value)
                if begin is not None:
                    start, end = begin if start is None else start, last
            span = Span(self.source, start or 0, end)
            built[id(node)] = getattr(self, node.data)(span, children), start, end
        return built[id(tree)][0]

    # ---- helpers ----

    def _span(self, token: Token) -> Span:
        return Span(self.source, *ends_of(token))

    def _report(self, message: str, span: Span, hint: str | None = None) -> None:
        if len(self.problems) < _MAX_REPORTS:
            self.problems.append(Diagnostic(message, span, hint=hint))

    def _deep(self, node: ast.Expr) -> ast.Expr:
        """The node, or a stand-in once the expression is nested so deep that recursion over it would fail."""
        depth = 1 + max((self._depth(child) for child in ast.children(node)), default=0.0)
        if depth > MAX_DEPTH:
            if depth < math.inf:
                hint = "give a part of it a name of its own: `t[i] = …`"
                message = f"the expression is more than {MAX_DEPTH} operations deep (a chain such as `a + b + c` is as "
                self._report(message + "deep as it is long)", node.span, hint)
            node, depth = ast.Number(0, span=node.span), math.inf
        self.depths[id(node)] = (node, depth)
        return node

    def _depth(self, node: ast.Expr) -> float:
        return self.depths.get(id(node), (node, 1))[1]

    def _size(self, expr: ast.Expr, what: str) -> ast.Size:
        """An expression as a size."""
        if sum(1 for _ in islice(ast.traverse(expr), MAX_SIZE_WORDS + 1)) > MAX_SIZE_WORDS:
            self._report(f"{what} has more than {MAX_SIZE_WORDS} words", expr.span)
            return ast.SizeNumber(1, expr.span)
        return self._size_of(expr, what)

    def _size_of(self, expr: ast.Expr, what: str) -> ast.Size:
        match expr:
            case ast.Number(value=int(value), span=span):
                return ast.SizeNumber(value, span)
            case ast.Name(name=name, span=span):
                return ast.SizeName(name, span)
            case ast.Binary(op="+" | "-" | "*" | "//" as op, left=left, right=right, span=span):
                return ast.SizeBinary(op, self._size_of(left, what), self._size_of(right, what), span)
            case ast.Unary(op="-", operand=ast.Number(value=int(value)), span=span):
                return ast.SizeNumber(-value, span)
        hint = "a triangle is written with `if`" if what == "a bound" else None
        if isinstance(expr, ast.Binary) and expr.op == "/":
            hint = "write `//` for a whole number"
        self._report(f"{what} is made of names, whole numbers and `+ - * //` only", expr.span, hint)
        return ast.SizeNumber(1, expr.span)

    def _dtype(self, token: Token, names: Mapping[str, DType] = DTYPES) -> DType | None:
        if (dtype := names.get(str(token))) is None:
            known = OTHER_NAMES.get(str(token))
            hint = f"write `{known}`" if known in names else "the types are: " + " ".join(names)
            self._report(f"unknown type `{token}`", self._span(token), hint)
        return dtype

    # ---- expressions ----

    def number(self, span: Span, children: Children) -> ast.Number:
        (token,) = children
        if (whole := whole_number(token)) is not None:
            if whole >= 1 << 64:
                self._report(f"`{token[:24]}{'…' * (len(token) > 24)}` does not fit 64 bits", span)
                return ast.Number(0, span=span)
            return ast.Number(whole, span=span)
        if math.isinf(value := float(token)):
            self._report(f"`{token[:24]}` does not fit f64", span, "write `inf` for infinity")
        return ast.Number(value, span=span)

    def true(self, span: Span, children: Children) -> ast.Boolean:
        return ast.Boolean(True, span=span)

    def false(self, span: Span, children: Children) -> ast.Boolean:
        return ast.Boolean(False, span=span)

    def name(self, span: Span, children: Children) -> ast.Expr:
        (token,) = children
        if token in CONSTANTS:
            return ast.Number(CONSTANTS[token], span=span)
        return ast.Name(str(token), span=span)

    def group(self, span: Span, children: Children) -> ast.Expr:
        return children[0]

    def binary(self, span: Span, children: Children) -> ast.Expr:
        left, op, right = children
        return self._deep(ast.Binary(self._word(op), left, right, span=span))

    def unary(self, span: Span, children: Children) -> ast.Expr:
        op, operand = children
        return self._deep(ast.Unary(self._word(op), operand, span=span))

    def _word(self, op: Token) -> Any:
        """The operator, as the language writes it."""
        if op in _RIGHT_WORD:
            hint = f"write `{_RIGHT_WORD[op]}`"
            self._report(f"`{op}` is not an operator of the language", self._span(op), hint)
        return _RIGHT_WORD.get(op, str(op))

    def compare(self, span: Span, children: Children) -> ast.Expr:
        left, op, right = children
        if isinstance(left, ast.Compare) and left.span.start == span.start:
            hint = "write `a < b and b < c`"
            self._report("comparisons do not chain", span, hint)
        return self._deep(ast.Compare(self._word(op), left, right, span=span))

    def conditional(self, span: Span, children: Children) -> ast.Expr:
        then, condition, otherwise = children
        return self._deep(ast.Conditional(condition, then, otherwise, span=span))

    def access(self, span: Span, children: Children) -> ast.Expr:
        name, *subscripts = children
        for item in subscripts:
            if isinstance(item, ast.Range):
                self._report("`in` belongs in the brackets of a reduction, not in a subscript", item.span)
        subscripts = [ast.Name(i.index, span=i.span) if isinstance(i, ast.Range) else i for i in subscripts]
        if len(subscripts) > MAX_RANK:
            self._report(f"more than {MAX_RANK} subscripts", span)
        return self._deep(ast.Access(str(name), tuple(subscripts), span=span))

    def brackets(self, span: Span, children: Children) -> tuple[Span, Children] | None:
        return (span, children) if children else None

    def arguments(self, span: Span, children: Children) -> tuple[ast.Expr, ...]:
        return tuple(children)

    def accumulator(self, span: Span, children: Children) -> Token | None:
        return children[0] if children else None

    multiplicand = accumulator

    def application(self, span: Span, children: Children) -> ast.Expr:
        """`name[…](…)`: a cast, a reduction, a scan, a `pad` or a call, by its name."""
        token, brackets, arguments, accumulator, multiplicand = children
        name = str(token)
        ranges = tuple(self._range_item(item) for item in brackets[1]) if brackets else ()
        in_type = self._dtype(accumulator) if accumulator else None
        using = {"tf32": ast.TF32, "bf16": DTYPES["bf16"], "f22": ast.F22}
        multiply = self._dtype(multiplicand, using) if multiplicand else None
        if len(ranges) > MAX_RANK:
            self._report(f"more than {MAX_RANK} indices", span)
        extra = next((word for word in (accumulator, multiplicand) if word), None)
        if extra and name not in REDUCTIONS and name not in SCANS:
            self._report(f"`{name}` is not a reduction, and takes neither `in` nor `using`", self._span(extra))
        if (name in REDUCTIONS or name in SCANS) and ranges:
            return self._deep(self._reduction(name, ranges, arguments, in_type, multiply, span))
        if name in DTYPES or name == "pad":
            if brackets:
                self._report(f"`{name}` takes no indices", brackets[0], f"write `{name}(…)`")
            return self._deep(self._cast_or_pad(name, arguments, span))
        if (name in REDUCTIONS and name not in ("max", "min")) or name in SCANS:
            self._report(f"`{name}` needs the index it runs over", self._span(token), f"write `{name}[k](…)`")
        return self._deep(ast.Call(str(token), ranges, arguments, span=span))

    def _reduction(
        self, name: Any, ranges: tuple[ast.Range, ...], arguments: tuple[ast.Expr, ...], in_type: DType | None,
        multiply: DType | None, span: Span,
    ) -> ast.Expr:  # fmt: skip
        if len(arguments) != 1:
            self._report(f"`{name}` takes one expression, not {len(arguments)}", span)
        body = arguments[0] if arguments else ast.Number(0, span=span)
        for k, range_ in enumerate(ranges):
            if any(range_.index == other.index for other in ranges[:k]):
                self._report(f"index `{range_.index}` is given twice", range_.span)
        if len(ranges) > 1 and (name.startswith("arg") or name in SCANS):
            self._report(f"`{name}` takes one index", ranges[1].span)
        if name in SCANS:
            return ast.Scan(name, ranges[0], body, in_type, span=span)
        return ast.Reduce(name, ranges, body, in_type, multiply, span=span)

    def _cast_or_pad(self, name: str, arguments: tuple[ast.Expr, ...], span: Span) -> ast.Expr:
        if name == "pad":
            if len(arguments) == 2 and isinstance(arguments[0], ast.Access):
                return ast.Pad(arguments[0], arguments[1], span=span)
            self._report("`pad` takes an access and a value", span, "write `pad(x[i - 1], 0)`")
        elif len(arguments) != 1:
            self._report(f"the cast `{name}` takes one value", span)
        value = arguments[0] if arguments else ast.Number(0, span=span)
        return value if name == "pad" else ast.Cast(value, DTYPES[name], span)

    def _range_item(self, item: ast.Expr | ast.Range) -> ast.Range:
        match item:
            case ast.Range():
                return item
            case ast.Name(name=name, span=span):
                return ast.Range(name, None, None, span)
        self._report("the brackets before `(` list index names", item.span, "write `sum[k](…)` or `sum[k in 0:4](…)`")
        return ast.Range("_", None, None, item.span)

    def range(self, span: Span, children: Children) -> ast.Range:
        index, low, high = children
        return ast.Range(str(index), self._size(low, "a bound"), self._size(high, "a bound"), span)

    # ---- statements ----

    def subscripts(self, span: Span, children: Children) -> tuple[str, ...]:
        """The left side's indices, each with its span."""
        indices: list[tuple[str, Span]] = []
        for item in children:
            if not isinstance(item, ast.Name):
                name = re.search(r"\w*\s*\Z", self.source.text[max(0, span.start - 80) : span.start])
                hint = left_hint(name[0].strip() if name else "", item)
                self._report("the left side lists index names", item.span, hint)
            elif any(item.name == name for name, _ in indices):
                hint = "a diagonal is written with `if` on the right"
                self._report(f"index `{item.name}` is used twice on the left side", item.span, hint)
            else:
                indices.append((item.name, item.span))
        if len(children) > MAX_RANK:
            self._report(f"more than {MAX_RANK} subscripts", span)
        return tuple(name for name, _ in indices)

    def declared(self, span: Span, children: Children) -> DType | None:
        return self._dtype(children[0]) if children else None

    def where(self, span: Span, children: Children) -> tuple[ast.Range, ...]:
        for k, range_ in enumerate(children):
            if any(range_.index == other.index for other in children[:k]):
                self._report(f"`where` gives index `{range_.index}` twice", range_.span)
        return tuple(children)

    def equation(self, span: Span, children: Children) -> ast.Equation:
        name, indices, dtype, value, ranges = children
        return ast.Equation(self._defined(name), indices, value, dtype, ranges, span)

    def _defined(self, token: Token) -> str:
        if token in CONSTANTS:
            self._report(f"`{token}` is a number, and cannot be a name", self._span(token), "choose another name")
        return str(token)

    def op_call(self, span: Span, children: Children) -> ast.OpCall:
        *names, value = children
        arguments: list[str] = []
        if not isinstance(value, ast.Call):
            self._report("only a call of an op defines several names", value.span, "write `a, b = other_op(x)`")
            return ast.OpCall(tuple(map(self._defined, names)), "", (), span)
        for argument in value.arguments:
            if isinstance(argument, ast.Name):
                arguments.append(argument.name)
            else:
                self._report("an op is called with whole tensors", argument.span, "give the value a name first")
        return ast.OpCall(tuple(map(self._defined, names)), value.function, tuple(arguments), span)

    def expect(self, span: Span, children: Children) -> ast.Expect:
        return ast.Expect(children[0], span)

    # ---- declarations ----

    def sizes(self, span: Span, children: Children) -> tuple[ast.Size, ...]:
        for item in children[MAX_RANK:]:
            self._report(f"more than {MAX_RANK} dimensions", item.span)
            break
        return tuple(item if isinstance(item, ast.Size) else self._size(item, "a size") for item in children[:MAX_RANK])

    def sized(self, span: Span, children: Children) -> ast.Size:
        """`M: 8..8192 by 8`, without its range where that is wrong."""
        size, low, high, *step = children
        if not isinstance(size, ast.Name):
            self._report("a range belongs to the name of a size", size.span, "write it where the name stands alone: `M: 1..8192`")
            return self._size(size, "a size")
        found = ast.SizeName(size.name, size.span)
        if step and str(step[0]) != "by":
            self._report(f"unexpected `{step[0]}` behind a range", self._span(step[0]), "multiples are written `8..8192 by 8`")
            return found
        ends = [e.value for e in (low, high, *step[1:]) if isinstance(e, ast.Number) and isinstance(e.value, int)]
        if len(ends) < 2 + len(step[1:]):
            self._report("the range of a size is made of whole numbers", Span(span.source, low.span.start, span.end))
            return found
        numbers, at = Varying(*ends), Span(span.source, low.span.start, span.end)
        if (wrong := numbers.mistake(size.name)) is not None:
            self._report(wrong[0], at, wrong[1])
            return found
        return ast.SizeName(size.name, size.span, ast.SizeRange(numbers, at))

    def type(self, span: Span, children: Children) -> tuple[DType | None, tuple[ast.Size, ...]]:
        token, sizes = children
        return self._dtype(token), sizes

    def parameter(self, span: Span, children: Children) -> ast.Tensor:
        name, (dtype, shape) = children
        return ast.Tensor(self._defined(name), dtype, shape, span)

    def parameters(self, span: Span, children: Children) -> tuple[ast.Tensor, ...]:
        return tuple(children)

    def names(self, span: Span, children: Children) -> tuple[str, ...]:
        for k, token in enumerate(children):
            if token in children[:k]:
                self._report(f"`{token}` is listed twice", self._span(token))
        return tuple(map(self._defined, children))

    indices = names

    def local(self, span: Span, children: Children) -> ast.Local:
        name, value = children
        return ast.Local(self._defined(name), value, span)

    def def_(self, span: Span, children: Children) -> ast.Def:
        name, indices, parameters, *locals_, result = children
        return ast.Def(str(name), indices, parameters, tuple(locals_), result, span)

    def op(self, span: Span, children: Children) -> ast.Op:
        name, inputs, outputs, *body = children
        return ast.Op(str(name), inputs, outputs, tuple(body), span)

    def import_(self, span: Span, children: Children) -> ast.Import:
        return ast.Import(str(children[0])[1:-1], span)

    def start(self, span: Span, children: Children) -> ast.Program:
        span = Span(self.source, 0, len(self.source.text))
        groups: dict[type, list] = {ast.Import: [], ast.Def: [], ast.Op: []}
        statements: list[ast.Statement] = []
        for child in children:
            groups.get(type(child), statements).append(child)
        ops = groups[ast.Op]
        if ops and statements:
            message = "a file with ops cannot have a statement outside of them"
            self._report(message, statements[0].span, "move it into an `op`")
        elif statements:
            ops = [main_op(statements, span)]
        return ast.Program(tuple(groups[ast.Import]), tuple(groups[ast.Def]), tuple(ops), span)


def whole_number(text: str) -> int | None:
    """The value of `12`, `1_000`, `0x10`, `0b11` or `0o17`, 2^64 for more digits than 64 bits have; None for other text."""
    digits = text.replace("_", "")
    base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2].lower(), 10)
    if base == 10 and not digits.isdigit():
        return None
    return int(digits if base == 10 else digits[2:], base) if len(digits) <= 70 else 1 << 64


def _nest(operations: Tree) -> None:
    """Operations, which the parser takes from left to right, in the order of their operators: those that bind closer come first."""
    rest, first = list[Any](), operations
    while first.data == "operations":
        first, op, operand = first.children
        rest.append((op, operand))
    operands, operators = [first], list[Any]()

    def combine() -> None:
        right, left, op = operands.pop(), operands.pop(), operators.pop()
        operands.append(Tree("compare" if op.type == "COMPARISON" else "binary", [left, op, right]))

    for op, operand in reversed(rest):
        while operators and _BINDING[operators[-1].type] >= _BINDING[op.type]:
            combine()
        operators.append(op)
        operands.append(operand)
    while operators:
        combine()
    operations.data, operations.children = operands[0].data, operands[0].children

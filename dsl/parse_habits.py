"""Messages for what other languages write: `2x[i]`, `(f32) x`, `sum[i] x[i]`, `where(c, a, b)`, `f32(N)`, `i in range(N)`, …

Each message has the place of the word, and the text as it is written here. What the rest of the message needs is read on.
"""

from __future__ import annotations

from tilec.core.diagnostics import Diagnostic
from tilec.core.dtypes import DTYPES, OTHER_NAMES
from tilec.dsl.parse_words import CLOSERS, NEARBY_WORDS, OPENERS, GiveUp, Insert, Recovery, Replace, Words, token_near

_ENDS = {"NAME", "NUMBER", "TRUE", "FALSE", "RPAR", "RSQB"}  # of an operand
_STARTS = {"NAME", "NUMBER", "TRUE", "FALSE", "LPAR"}
_TYPES = {*DTYPES, *OTHER_NAMES}
_BEFORE_EQUALS = {"COLON", "EQUAL", "COMMA", "LSQB", "SEMICOLON"}
Found = tuple[Diagnostic, Recovery | None] | None  # None: to the next statement


def habit(words: Words, at: int, expected: set[str]) -> Found:
    """The message for a word that does not fit, if it, or words before it, are those of another language."""
    return (
        _side_by_side(words, at, expected)
        or _statement_without_equals(words, at, expected)
        or _choice(words, at, expected)
        or _sizes_in_parentheses(words, at, expected)
        or _range(words, at, expected)
        or _function(words, at, expected)
        or _results(words, at, expected)
        or _definition(words, at, expected)
    )


# ---- operands without an operator ------------------------------------------------------------------------------------


def _side_by_side(words: Words, at: int, expected: set[str]) -> Found:
    """An operand where an operator is expected."""
    token, before = words.tokens[at], words.tokens[at - 1] if at else None
    if before is None or before.type not in _ENDS or token.type not in _STARTS or words.comment(at) is not None:
        return None
    if words.starts_statement(at) or not expected & {"STAR", "RPAR", "RSQB"}:
        return None
    found = _known_pair(words, at)
    if found is None and not expected & {"RPAR", "RSQB"} and (token.type != "NAME" or token.line == before.line):
        found = _no_operator(words, at)  # in brackets, a comma is missing
    if found is None:
        return None
    return found, Insert(token_near("STAR", "*", token)) if "STAR" in expected else None


def _statement_without_equals(words: Words, at: int, expected: set[str]) -> Found:
    """`y = sum[i] x[i]`: the second operand looks like the beginning of a statement, which the next word shows not to be one."""
    if "EQUAL" not in expected or not expected <= _BEFORE_EQUALS or at == 0:
        return None
    first = _operand_before(words, at)
    if first == 0 or words.tokens[first - 1].type not in _ENDS or words.comment(at) is not None:
        return None
    known = _known_pair(words, first)
    if known is None and words.first_of_line(first):
        return None
    start = first - 1
    while start > max(0, first - NEARBY_WORDS) and not words.starts_statement(start):
        start -= 1
    found = known or _no_operator(words, first)
    resume = at
    while words.tokens[resume].type not in ("RBRACE", "OP", "DEF", "IMPORT", "$END") and not (
        words.starts_statement(resume) and (words.first_of_line(resume) or resume > at)
    ):
        resume += 1
    return found, GiveUp(resume, words.tokens[start].start_pos or 0)


def _operand_before(words: Words, at: int) -> int:
    """The first word of the operand `x` or `x[…]` that ends before a word."""
    k = at - 1
    if words.tokens[k].type == "RSQB":
        k = words.partner(k) - 1
    return max(k, 0)


def _known_pair(words: Words, at: int) -> Diagnostic | None:
    """Two operands next to each other, of which the first tells what was meant."""
    token, before = words.tokens[at], words.tokens[at - 1]
    operand = words.operand_at(at)
    adjacent = before.end_pos == token.start_pos
    if before.type == "NUMBER" and token.type == "NUMBER" and adjacent:
        return Diagnostic(f"`{before.value}{token.value}` is not a number", words.span(at - 1, at))
    if before.type == "NUMBER" and token.type == "NAME" and adjacent:
        both = before.value + token.value
        prefixed = before.value[:2].lower() in ("0x", "0b", "0o")
        prefixed |= before.value == "0" and token.value[0] in "xXbBoO"
        if prefixed or token.value[0] == "_":
            hint = "numbers are written `12`, `1_000`, `0x1F`, `0b101`, `1.5`, `1e-5`"
            return Diagnostic(f"`{both}` is not a number", words.span(at - 1, at), hint=hint)
        if token.value in ("f", "F", "L", "l", "u", "U", "h", "d") and words.tokens[at + 1].type not in ("LSQB", "LPAR"):
            return Diagnostic(f"`{both}`: a number has no suffix", words.span(at - 1, at), hint=f"write `{before.value}`")
        hint = f"write `{before.value} * {operand}`"
        return Diagnostic(f"`{before.value}{operand}`: a product needs `*`", words.span(at - 1, at), hint=hint)
    if before.type == "RPAR" and words.tokens[at - 2].value in _TYPES and words.tokens[at - 3].type == "LPAR":
        named = words.tokens[at - 2].value
        written = named if named in DTYPES else OTHER_NAMES[named]
        operand = operand[1:-1] if token.type == "LPAR" else operand
        return Diagnostic("a cast is written like a call", words.span(at - 3, at - 1), hint=f"write `{written}({operand})`")
    if before.type == "RSQB":
        opener = words.partner(at - 1)
        name = words.tokens[opener - 1].value
        if name in words.functions:
            head = words.text(opener - 1, at - 1)
            return Diagnostic(f"`{head}` needs parentheses", words.span(at), hint=f"write `{head}({operand})`")
    called = before.type == "NAME" and token.type != "LPAR" and words.tokens[at - 2].type != "COLON"
    if called and (before.value in words.functions or before.value in DTYPES):
        message = f"the argument of `{before.value}` needs parentheses"
        return Diagnostic(message, words.span(at), hint=f"write `{before.value}({operand})`")
    return None


def _no_operator(words: Words, at: int) -> Diagnostic:
    first, second = words.operand_ending(at - 1), words.operand_at(at)
    return Diagnostic(f"no operator between `{first}` and `{second}`", words.span(at), hint=f"a product is `{first} * {second}`")


# ---- choices, sizes, ranges ------------------------------------------------------------------------------------------


def _choice(words: Words, at: int, expected: set[str]) -> Found:
    """`where(c, a, b)` as a function, `if c then a else b`."""
    token = words.tokens[at]
    if token.type == "IF" and "NUMBER" in expected and at and words.tokens[at - 1].type != "SEMICOLON":
        parts = words.arguments(at + 1) if words.tokens[at + 1].type == "LPAR" else []
        hint = f"write `{parts[1]} if {parts[0]} else {parts[2]}`" if len(parts) == 3 else "write `a if condition else b`"
        return Diagnostic("the condition of a choice stands in its middle", words.span(at), hint=hint), None
    if token.type != "WHERE" or "NUMBER" not in expected or words.tokens[at + 1].type != "LPAR":
        return None
    parts = words.arguments(at + 1)
    hint = "a choice is `a if condition else b`"
    if len(parts) == 3:
        hint = f"write `{parts[1]} if {parts[0]} else {parts[2]}`"
    diagnostic = Diagnostic("`where` gives ranges, and is no function", words.span(at), hint=hint)
    return diagnostic, Replace(token_near("NAME", "where", token))


_FOREIGN_BRACKETS = {"(": ")", "<": ">", "{": "}"}


def _sizes_in_parentheses(words: Words, at: int, expected: set[str]) -> Found:
    """`x: f32(N)`, `x: f32<N>`."""
    token = words.tokens[at]
    if at < 2 or token.value not in _FOREIGN_BRACKETS or "LSQB" not in expected or words.tokens[at - 2].type != "COLON":
        return None
    closer = _FOREIGN_BRACKETS[token.value]
    depth = 0
    for k in range(at, min(at + NEARBY_WORDS, len(words.tokens) - 1)):
        if words.tokens[k].type == "RSQB" and words.partner(k) < at:  # `f32(N]`
            break
        depth += {token.value: 1, closer: -1}.get(words.tokens[k].value, 0)
        if depth == 0:
            break
        if words.tokens[k].value == "{" and k > at:
            return None
    else:
        return None
    inner = words.text(at + 1, k - 1) if k > at + 1 else ""
    if not inner:
        hint = f"write `{words.tokens[at - 1].value}` for a scalar"
        return Diagnostic("a type has sizes in brackets, or none", words.span(at, k), hint=hint), None
    words.tokens[k] = token_near("RSQB", "]", words.tokens[k])
    hint = f"write `{words.tokens[at - 1].value}[{inner}]`"
    return Diagnostic("sizes stand in brackets", words.span(at, k), hint=hint), Replace(token_near("LSQB", "[", token))


def _range(words: Words, at: int, expected: set[str]) -> Found:
    """`i in range(N)`, `i in N`, `i in [0, N)`, `where i < N`, `sum[i = 0:N](…)`."""
    tokens, before = words.tokens, words.tokens[at - 1] if at else None
    if before is None:
        return None
    if "IN" in expected and tokens[at].value in ("=", ":") and before.type == "NAME":
        end = _end_of_item(words, at)
        bounds = words.text(at + 1, end) if end > at else "0:N"
        hint = f"write `{before.value} in {bounds if ':' in bounds else '0:' + bounds}`"
        return Diagnostic("a range is written with `in`", words.span(at), hint=hint), Replace(token_near("IN", "in", tokens[at]))
    if expected == {"IN"} or (before.type == "WHERE" and tokens[at].type == "NUMBER"):
        index = before.value if before.type == "NAME" else "i"
        return Diagnostic("`where` gives ranges of indices", words.span(at), hint=f"write `where {index} in 0:N`"), None
    if before.type == "IN" and tokens[at].type == "LSQB" and at > 1:
        bounds = words.text(at + 1, _end_of_item(words, at + 1)).replace(",", ":").replace(" ", "")
        return Diagnostic("a range is `low:high`", words.span(at), hint=f"write `{tokens[at - 2].value} in {bounds}`"), None
    if "COLON" not in expected or "EQUAL" in expected or tokens[at].type == "COLON":
        return None
    k = at - 1
    while k > max(0, at - NEARBY_WORDS) and tokens[k].type not in ("IN", "EQUAL", "COMMA", "WHERE", *CLOSERS):
        k = words.partner(k) - 1 if tokens[k].type in OPENERS else k - 1
    if k <= 0 or tokens[k].type != "IN" or k + 1 >= at:
        return None
    first = words.text(k + 1, at - 1)
    bounds = f"0:{first}" if first != "0" else "0:N"
    if tokens[at].value in ("to", "until", ",") and tokens[at + 1].type in _ENDS:
        bounds = f"{first}:{words.operand_at(at + 1)}"
    if tokens[k + 1].value in ("range", "arange") and tokens[k + 2].type == "LPAR":
        parts = words.arguments(k + 2)
        bounds = {1: f"0:{parts[0]}" if parts else "", 2: ":".join(parts)}.get(len(parts), "0:N")
    hint = f"write `{tokens[k - 1].value} in {bounds}`"
    return Diagnostic("a range is `low:high`", words.span(k + 1, at - 1), hint=hint), None


def _end_of_item(words: Words, at: int) -> int:
    """The last word before the next closing bracket, or the end of the line."""
    k = at
    while words.tokens[k + 1].type not in (*OPENERS, "$END", "LBRACE") and words.tokens[k + 1].line == words.tokens[at].line:
        if (k := k + 1) - at >= NEARBY_WORDS:
            break
    return k


# ---- functions and ops -----------------------------------------------------------------------------------------------


def _function(words: Words, at: int, expected: set[str]) -> Found:
    """`def f(x) { x }`, `def f(x) = x`, `def f(x): return x`."""
    tokens = words.tokens
    begin = at
    while begin > max(0, at - NEARBY_WORDS) and tokens[begin].type not in ("DEF", "OP"):
        begin -= 1
    if tokens[begin].type != "DEF":
        return None
    head = next((k for k in range(begin, min(at + 1, len(tokens))) if tokens[k].type in ("LBRACE", "EQUAL", "COLON")), at)
    if (expected == {"LBRACE"} and tokens[at].type in ("EQUAL", "COLON")) or tokens[at].value == "->":
        end = at
        while end < at + NEARBY_WORDS and tokens[end + 1].line == tokens[at].line and tokens[end + 1].type != "$END":
            end += 1
        begins = at + 1 + (tokens[at + 1].value == ">")
        body = words.text(begins, end) if end >= begins else "…"
        body = body if body.startswith("return") else f"return {body}"
        hint = f"write `{words.text(begin, at - 1)} {{ {body} }}`" if tokens[at].value != "->" else "a function has no types"
        return Diagnostic("the body of a function stands in braces", words.span(at), hint=hint), None
    if tokens[at].type == "COLON" and head == at and "COMMA" in expected:
        hint = "leave the type out: a function takes values of every type"
        return Diagnostic("the parameters of a function have no types", words.span(at), hint=hint), None
    if tokens[head].type != "LBRACE" or not (expected == {"EQUAL"} or "RETURN" in expected):
        return None
    close = words.partner(head)
    if close <= head or any(tokens[k].type == "RETURN" for k in range(head, close)):
        return None
    start = at if "RETURN" in expected else at - 1
    if start >= close:
        start = close
        hint = "write `return …` before the `}`"
    else:
        hint = f"write `return {words.text(start, close - 1)}`"
    end = close + 1
    return Diagnostic("a function ends with `return`", words.span(start), hint=hint), GiveUp(end, tokens[begin].start_pos or 0)


def _results(words: Words, at: int, expected: set[str]) -> Found:
    """The header of an op, and a type with sizes for a name of the body."""
    token, before = words.tokens[at], words.tokens[at - 1] if at else None
    if before is None or at < 3:
        return None
    if before.value == "->" and token.type == "NAME":
        end = at
        while words.tokens[end + 1].type not in ("LBRACE", "$END") and words.tokens[end + 1].line == token.line:
            if (end := end + 1) - at >= NEARBY_WORDS:
                break
        text = words.text(at, end)
        return Diagnostic(_NAMED, words.span(at, end), hint=f"write `-> ({text if ':' in text else 'y: ' + text})`"), None
    if token.type == "LBRACE" and before.type == "RPAR" and words.tokens[words.partner(at - 1) - 2].type == "OP":
        return Diagnostic("an op names its results", words.span(at), hint="write `-> (y: f32[N])` before the `{`"), None
    if token.type == "LSQB" and before.type == "RSQB" and words.tokens[words.partner(at - 1) - 2].type == "COLON":
        sizes = ", ".join(words.text(k + 1, words.partner(k) - 1) for k in (words.partner(at - 1), at) if words.partner(k) > k + 1)
        hint = f"write `{words.tokens[words.partner(at - 1) - 1].value}[{sizes}]`"
        return Diagnostic("all sizes stand in one pair of brackets", words.span(at, words.partner(at)), hint=hint), None
    if expected == {"COLON"} and _in_header(words, at):
        return Diagnostic("a parameter is `name: type[sizes]`", words.span(at), hint="write `x: f32[N]`"), None
    if token.type == "LSQB" and expected == {"EQUAL"} and words.tokens[at - 2].type == "COLON":
        hint = f"write `: {before.value} = …`"
        return Diagnostic("the indices of the left side give the shape", words.span(at, words.partner(at)), hint=hint), None
    return None


def _in_header(words: Words, at: int) -> bool:
    """Whether a word stands among the parameters of an op."""
    k = at - 1
    while k > max(0, at - NEARBY_WORDS) and words.tokens[k].type not in ("OP", "LBRACE", "EQUAL", "DEF"):
        k -= 1
    return words.tokens[k].type == "OP"


_NAMED = "the results of an op have names, in parentheses"


def _definition(words: Words, at: int, expected: set[str]) -> Found:
    """`x[i][j]`, `y(i) = …`, `y[i] := …`, `return` in an op."""
    token, before = words.tokens[at], words.tokens[at - 1] if at else None
    if token.type == "RETURN":
        hint = "the results of an op are defined by their names: `y[i] = …`"
        return Diagnostic("`return` belongs into a function", words.span(at), hint=hint), None
    if before is None:
        return None
    if token.type == "LSQB" and before.type == "RSQB" and (opener := words.partner(at - 1)) < at - 2:
        close = words.partner(at)
        inner = f"{words.text(opener + 1, at - 2)}, {words.text(at + 1, close - 1)}" if close > at + 1 else "i, j"
        hint = f"write `{words.tokens[opener - 1].value}[{inner}]`"
        return Diagnostic("subscripts stand in one pair of brackets", words.span(at, close), hint=hint), None
    if token.type == "LPAR" and before.type == "NAME" and "NUMBER" not in expected and (
        words.first_of_line(at - 1) or words.tokens[at - 2].type in ("LBRACE", "SEMICOLON")
    ):  # fmt: skip
        hint = f"elements stand in brackets, `{before.value}[i] = …`; a function is `def {before.value}(x) {{ return … }}`"
        return Diagnostic("a definition does not begin so", words.span(at - 1, at), hint=hint), None
    arrow = token.value == "<" and "EQUAL" in expected and words.tokens[at + 1].value == "-"
    if arrow or (token.type == "EQUAL" and before.value == ":"):
        first, last = (at, at + 1) if arrow else (at - 1, at)
        shown = words.text(first, last)
        return Diagnostic(f"`{shown}` is not a word of the language", words.span(first, last), hint="write `=`"), None
    if token.type in ("EQUAL", "COLON") and expected == {"LBRACE"}:
        return Diagnostic("the body of an op stands in braces", words.span(at), hint="write `{ … }`"), None
    return None

"""Messages for syntax errors, and the recovery of the parser.

The parser is LALR, so that it knows every word that would fit at the place of a wrong word. There are three recoveries:
insert the missing word (a comma, a bracket), replace the wrong word by another (`==` for `=`), or skip the statement and
continue at the next one. The rest of the file is then parsed, so that one run reports all mistakes.
"""

from __future__ import annotations

from typing import Any

from lark import Token, Tree
from lark.parsers.lalr_analysis import Shift
from lark.parsers.lalr_interactive_parser import InteractiveParser

from tilec.core.diagnostics import Diagnostic, Note
from tilec.dsl.parse_habits import habit
from tilec.dsl.parse_tree import ends_of
from tilec.dsl.parse_words import FOREIGN, LOOPS, GiveUp, Insert, Recovery, Replace, Words, token_near

_DECLARATIONS = {"OP", "DEF", "IMPORT", "$END"}
_OPERANDS = {"NAME", "NUMBER", "TRUE", "FALSE", "LPAR", "NOT", "MINUS", "TILDE"}
_ENDS = {"RBRACE", "RPAR", "RSQB", "COMMA", "SEMICOLON", "WHERE", "EXPECT", *_DECLARATIONS}  # of an expression
_CONDITIONAL = "`if` and `else` are parts of an expression: `y[i] = a if condition else b`"
_ARITHMETIC = ("+", "-", "*", "/")
_SPOKEN = {
    "NAME": "a name", "NUMBER": "a number", "STRING": "a file name in quotes", "$END": "the end of the file",
    "COMMA": "`,`", "COLON": "`:`", "EQUAL": "`=`", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
    "LBRACE": "`{`", "RBRACE": "`}`", "SEMICOLON": "`;`", "ELSE": "`else`", "IN": "`in`", "RETURN": "`return`",
}  # fmt: skip


def recover(words: Words, at: int, parser: InteractiveParser) -> tuple[Diagnostic, Recovery]:
    """The message for the word at `at`, which the parser refused, and how to carry on."""
    expected = parser.accepts()
    return (
        _foreign(words, at, parser)
        or _habit(words, at, expected, parser)
        or _branch(words, at, parser)
        or _equals(words, at, expected)
        or _missing_bracket(words, at, expected)
        or _missing_comma(words, at, expected)
        or _plain(words, at, expected, parser)
    )


Found = tuple[Diagnostic, Recovery] | None


def _foreign(words: Words, at: int, parser: InteractiveParser) -> Found:
    """Words of other languages: loops, declarations."""
    for k in (at - 1, at):
        text = words.tokens[k].value if k >= 0 and words.tokens[k].type in ("NAME", "IF", "RETURN") else None
        if text in LOOPS and words.tokens[k - 1].type != "DEF":
            message = f"`{text}`: there are no loops in the language"
            hint = "an equation runs over all values of its indices: `y[i] = 2 * x[i]`; a sum is `sum[k](…)`"
            return Diagnostic(message, words.span(k), hint=hint), _skip_blocks(words, at, parser)
        if text in FOREIGN:
            give_up = _give_up(words, at, parser)
            return Diagnostic(f"`{text}` is not a word of the language", words.span(k), hint=FOREIGN[text]), give_up
    return None


def _habit(words: Words, at: int, expected: set[str], parser: InteractiveParser) -> Found:
    if (found := habit(words, at, expected)) is None:
        return None
    diagnostic, recovery = found
    if isinstance(recovery, GiveUp):
        start, _ = _unwind(parser, words, at)
        recovery = GiveUp(recovery.resume, min(start, recovery.start))
    return diagnostic, recovery or _give_up(words, at, parser)


def _branch(words: Words, at: int, parser: InteractiveParser) -> Found:
    """`if` as a statement, with its blocks."""
    begins = at == 0 or words.first_of_line(at) or words.tokens[at - 1].type in ("LBRACE", "RBRACE", "SEMICOLON")
    if words.tokens[at].type != "IF" or not begins:
        return None
    diagnostic = Diagnostic("`if` cannot start a statement", words.span(at), hint=_CONDITIONAL)
    return diagnostic, _skip_blocks(words, at, parser)


def _skip_blocks(words: Words, at: int, parser: InteractiveParser) -> GiveUp:
    """Past the whole loop or `if`, with its blocks, which would only repeat the mistake."""
    k, line = at, words.tokens[at].line
    assert line is not None, "the lexer says so"
    while words.tokens[k].type not in ("LBRACE", *_DECLARATIONS) and (words.tokens[k].line or 0) <= line:
        k += 1
    if words.tokens[k].type != "LBRACE":
        return _give_up(words, at, parser)
    k = _after_block(words, k)
    while words.tokens[k].type == "ELSE":
        while words.tokens[k].type not in ("LBRACE", "RBRACE", *_DECLARATIONS):
            k += 1
        k = _after_block(words, k)
    start, _ = _unwind(parser, words, at)
    return GiveUp(k, start)


def _after_block(words: Words, k: int) -> int:
    """The word behind the `}` of the block that begins at word k."""
    depth = 0
    while words.tokens[k].type not in _DECLARATIONS:
        depth += {"LBRACE": 1, "RBRACE": -1}.get(words.tokens[k].type, 0)
        k += depth >= 0
        if depth <= 0:
            break
    return k


def _equals(words: Words, at: int, expected: set[str]) -> Found:
    if words.tokens[at].type != "EQUAL" or "COMPARISON" not in expected:
        return None
    diagnostic = Diagnostic("`=` inside an expression", words.span(at), hint="write `==` to compare")
    return diagnostic, Replace(token_near("COMPARISON", "==", words.tokens[at]))


def _missing_bracket(words: Words, at: int, expected: set[str]) -> Found:
    """A bracket that is never opened, never closed, or closed by one of another kind."""
    token = words.tokens[at]
    leaves = token.type in _DECLARATIONS or token.type == "RBRACE" or words.starts_statement(at)
    for closer, shown in (("RPAR", ")"), ("RSQB", "]"), ("RBRACE", "}")):
        if closer not in expected or (opener := words.opener(at, closer)) is None:
            continue
        opening = words.tokens[opener].value
        if closer != "RBRACE" and token.type in ("RPAR", "RSQB"):
            note = Note(f"`{opening}` opened here", words.span(opener))
            diagnostic = Diagnostic(f"`{opening}` is closed by `{token.value}`", words.span(at), (note,))
            return diagnostic, Replace(token_near(closer, shown, token))
        if leaves and (closer != "RBRACE" or token.type in _DECLARATIONS):
            diagnostic = Diagnostic(f"`{opening}` is never closed", words.span(opener), hint=f"add `{shown}`")
            return diagnostic, Insert(token_near(closer, shown, token))
    if "LBRACE" in expected and token.type in ("NAME", "RETURN", "EXPECT", "RBRACE"):
        diagnostic = Diagnostic("the body must be in braces: `{ … }`", words.span(at), hint="add `{` before it")
        return diagnostic, Insert(token_near("LBRACE", "{", token))
    return None


def _missing_comma(words: Words, at: int, expected: set[str]) -> Found:
    token = words.tokens[at]
    if "COMMA" not in expected or token.type not in _OPERANDS or words.starts_statement(at):
        return None
    if not expected & {"RPAR", "RSQB"}:
        return None
    return Diagnostic("missing `,`", words.span(at)), Insert(token_near("COMMA", ",", token))


def _plain(words: Words, at: int, expected: set[str], parser: InteractiveParser) -> tuple[Diagnostic, Recovery]:
    """Without a fitting repair: a message as close as the words around allow, then the next statement."""
    if expected == {"ELSE"} or ("ELSE" in expected and (words.tokens[at].type in _ENDS or words.starts_statement(at))):
        position = next((k for k in range(at - 1, -1, -1) if words.tokens[k].type == "IF"), at)
        hint = "an expression always has a value: `a if condition else b`"
        diagnostic = Diagnostic("`if` without `else`", words.span(position), hint=hint)
    else:
        message, advice = _name_it(words, at, expected) or _operator(words, at, expected)
        diagnostic = Diagnostic(message, words.span(at), hint=advice or words.comment(at))
    return diagnostic, _give_up(words, at, parser)


def _name_it(words: Words, at: int, expected: set[str]) -> tuple[str, str | None] | None:
    """Words in places where people are known to put them."""
    token, before = words.tokens[at], words.tokens[at - 1] if at else None
    match token.type:
        case "$END":
            return "the file ends in the middle of a statement", None
        case "RBRACE" if "RBRACE" not in expected and words.opener(at, "RBRACE") is None:
            return "`}` without `{`", None
        case "RBRACE" if "RETURN" in expected:
            return "a function ends with `return expression`", None
        case "NAME" if before is not None and before.type == "NUMBER" and before.end_pos == token.start_pos:
            return f"`{before.value}{token.value}` is not a name", "a name begins with a letter or `_`"
        case "SEMICOLON":
            return "`;` in the middle of a statement", "`;` may only separate statements"
        case "ELSE":
            return "`else` without `if`", _CONDITIONAL
    return None


def _operator(words: Words, at: int, expected: set[str]) -> tuple[str, str | None]:
    """Operators that the language does not have; or just the word, and the words that would have fitted."""
    value = words.tokens[at].value
    if "DOTS" in expected:
        return f"unexpected {_speak(words.tokens[at])}: expected `..`", "the range of a size is written `M: 1..8192`"
    if value in _ARITHMETIC and words.tokens[at + 1].value == "=":
        return f"`{value}=` is not an operator", "a name is defined once: `name[i] = …`"
    if value in _ARITHMETIC and at and words.tokens[at - 1].value == value:
        return f"`{value}{value}` is not an operator", None
    if value == "+" and "NUMBER" in expected:
        return "there is no unary `+`", "leave it out"
    if value == ":" and at and words.tokens[at - 1].type in ("LSQB", "COMMA"):
        return "there are no slices", "an index names a whole dimension: `y[i] = sum[j](x[i, j])`"
    return f"unexpected {_speak(words.tokens[at])}" + _wanted(expected), None


def _speak(token: Token) -> str:
    return "the end of the file" if token.type == "$END" else f"`{token.value[:40]}`"


def _wanted(expected: set[str]) -> str:
    """`: expected …` where few words would do; nothing where a list would not help."""
    if {"NUMBER", "NAME"} <= expected:
        return ": expected an expression"
    known = [_SPOKEN[kind] for kind in sorted(expected) if kind in _SPOKEN]
    return f": expected {' or '.join(known)}" if 0 < len(known) <= 3 and len(known) == len(expected) else ""


def _unwind(parser: InteractiveParser, words: Words, at: int) -> tuple[int, bool]:
    """Pops the parser to the innermost list of statements or declarations.

    Returns the beginning of the rest, and whether that is a header or function.
    """
    start, _ = ends_of(words.tokens[at])
    state = parser.parser_state
    table = state.parse_conf.parse_table.states
    left_declaration = False
    while not any(table[state.state_stack[-1]].get(word, (None,))[0] is Shift for word in ("EXPECT", "OP")):
        state.state_stack.pop()
        gone = state.value_stack.pop()
        left_declaration |= isinstance(gone, Token) and gone.type in ("OP", "DEF")
        start = min(start, _begin(gone, start))
    return start, left_declaration


def _begin(part: Token | Tree, otherwise: int) -> int:
    """Where the first word of a part stands that was read; `otherwise` for one without words."""
    pending: list[Any] = [part]
    while pending:
        part = pending.pop()
        if isinstance(part, Token):
            return ends_of(part)[0]
        pending += part.children[::-1]
    return otherwise


def _give_up(words: Words, at: int, parser: InteractiveParser) -> GiveUp:
    """To the next statement, or past the whole declaration if its header (or a function's body) is what went wrong."""
    start, left_declaration = _unwind(parser, words, at)
    k = at
    while words.tokens[k].type not in _DECLARATIONS:
        if not left_declaration and (words.tokens[k].type == "RBRACE" or (k > at and words.starts_statement(k))):
            return GiveUp(k if words.tokens[k].type != "RBRACE" or "RBRACE" in parser.accepts() else k + 1, start)
        if not left_declaration and k == at and words.starts_statement(k) and words.first_of_line(k):
            return GiveUp(k, start)
        k += 1
    return GiveUp(k, start)

"""A Python function as a program: its docstring is the text, and its annotations may be the types.

The body is not run. A traced body would compute with Python's rules and leave no text with names and lines for `explain` and for
messages; a docstring is the language itself. Positions in messages are those of the Python file.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.core.diagnostics import CallError, Source
from tilec.driver.frontend import Program

Function = Callable[..., object]


@dataclass(frozen=True)
class _Location:
    """Lines of a file, counted from 1: of `def`, and of the docstring's first character, which has a column from 0."""

    file: str
    head: int
    first: int
    column: int


def source_of(function: Function, folders: Sequence[str] = ()) -> Source:
    """The program of a function. Where the annotation of the result names it, as in `-> "y: f32[M]"`, the op's head is made of
    the annotations, and the docstring has the statements. Else the docstring is a whole program. Raises CallError."""
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or not name.isidentifier():
        raise CallError(
            f"tilec.op takes a Python function, not {function!r}", hint="for a text, write `tilec.compile(text)`"
        )
    text, location = _docstring(function)
    head = _head(function)
    if head is not None:
        text = text.rstrip() + "\n}"
    if location is None:
        return Source(f"<{name}>", f"{head or ''}\n{text}", tuple(folders))
    if head is None:
        lines = "\n" * (location.first - 1) + " " * location.column
    elif location.head < location.first:
        lines = "\n" * (location.head - 1) + head + "\n" * (location.first - location.head) + " " * location.column
    else:
        lines = "\n" * (location.head - 1) + head + " "
    return Source(location.file, lines + text, tuple(folders))


def check_parameters(function: Function, program: Program, op: str) -> None:
    """Raises CallError unless the op's inputs are the function's parameters, in their order."""
    inputs = [name for name, _ in program.ops[op].inputs]
    parameters = list(inspect.signature(function).parameters)
    if inputs != parameters:
        shown = [", ".join(names) or "none" for names in (parameters, inputs)]
        message = f"the parameters of {function.__name__} are {shown[0]}; the inputs of its program are {shown[1]}"
        raise CallError(message, hint="give both the same names in the same order")


def chosen_op(function: Function, program: Program) -> str:
    """The op with the function's name; else the only one. Raises CallError."""
    return program.op(function.__name__ if function.__name__ in program.ops else None).name


def _docstring(function: Function) -> tuple[str, _Location | None]:
    """The text, and where it stands; None where no source can be had, or where the text is written with escapes."""
    text = function.__doc__
    if not text or not text.strip():
        raise CallError(f"{function.__name__} has no docstring", hint="write the program as its docstring")
    try:
        lines, start = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or ""
        written = "".join(lines)
        tree = ast.parse(textwrap.dedent(written)).body[0]
    except (OSError, TypeError, SyntaxError):
        return textwrap.dedent(text), None
    if not isinstance(tree, ast.FunctionDef):  # a lambda, or lines that have changed
        return textwrap.dedent(text), None
    _refuse_statements(function, tree.body[1:])
    node = tree.body[0]
    assert isinstance(node, ast.Expr)
    indent = len(lines[0]) - len(lines[0].lstrip())
    literal = _literal(lines, node.value, indent)
    if literal is None or inspect.cleandoc(literal[0]) != inspect.cleandoc(text):
        return textwrap.dedent(text), None
    return literal[0], _Location(file, start + tree.lineno - 1, start + node.value.lineno - 1, literal[1])


def _literal(lines: list[str], node: ast.expr, indent: int) -> tuple[str, int] | None:
    """What stands between the quotes of a literal, as it is written, and the column of its first character."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    rows = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]
    rows[-1] = rows[-1][: indent + node.end_col_offset]
    raw = b"".join(rows).decode()[indent + node.col_offset :]
    prefix = len(raw) - len(raw.lstrip("rRuU"))
    quotes = 3 if raw[prefix : prefix + 3] in ('"""', "'''") else 1
    return raw[prefix + quotes : -quotes], indent + node.col_offset + prefix + quotes


def _refuse_statements(function: Function, body: list[ast.stmt]) -> None:
    for statement in body:
        constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not constant and not isinstance(statement, ast.Pass):
            message = f"{function.__name__} has statements beside its docstring, which would never run"
            raise CallError(message, hint="the docstring is the program: remove them, or leave `...`")


def _head(function: Function) -> str | None:
    """`op name(parameters) -> (results) {` by the annotations; None where they have no result."""
    annotations = function.__annotations__
    result = _annotation(annotations.get("return"))
    if ":" not in result:
        return None
    inputs = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty or parameter.kind not in (
            parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD,
        ):  # fmt: skip
            message = f"the parameter '{parameter}' of {function.__name__} cannot be an input of a program"
            raise CallError(message, hint="inputs have no default, and no `*`")
        if not (written := _annotation(annotations.get(parameter.name))):
            message = f"the parameter '{parameter.name}' of {function.__name__} has no type"
            raise CallError(message, hint=f'write {parameter.name}: "f32[N]", as the result has one')
        inputs.append(f"{parameter.name}: {written}")
    return f"op {function.__name__}({', '.join(inputs)}) -> ({result}) {{"


def _annotation(value: object) -> str:
    """The text of an annotation: a string, the first string of `Annotated`, or what `from __future__ import annotations` made of
    these; "" for any other."""
    for text in getattr(value, "__metadata__", (value,)):
        if isinstance(text, str):
            return _unquoted(text)
    return ""


def _unquoted(text: str) -> str:
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text.strip()
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] == "Annotated":
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        node = next((p for p in parts[1:] if isinstance(p, ast.Constant)), node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.strip()
    return text.strip()

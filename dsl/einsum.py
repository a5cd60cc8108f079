"""Einsum's spellings, such as `ij,jk->ik`, and the programs that they stand for.

The spellings are those of NumPy and opt_einsum: letters for indices, `...` for the dimensions that have no letter, and lists of
indices behind each operand. The order in which operands are multiplied is what `np.einsum_path` finds for their sizes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from string import ascii_letters
from types import EllipsisType
from typing import TypeAlias

from tilec.core.diagnostics import CallError
from tilec.core.dtypes import DType, join

Index: TypeAlias = "Hashable | EllipsisType"
"""A letter, or what a list of indices holds. `...` stands for the dimensions that have no index."""

NAME = "einsum"
RESULT = "out"
MOST_OPTIMAL = 5
"""Operands of which all orders are tried; NumPy's greedy order of more."""


@dataclass(frozen=True)
class Spelling:
    """The indices of each operand, and of the result: letters, and at most one `...` of each."""

    operands: tuple[tuple[Index, ...], ...]
    result: tuple[Index, ...]

    def __str__(self) -> str:
        written = [["..." if i is ... else str(i) for i in indices] for indices in (*self.operands, self.result)]
        *operands, result = ["".join(indices) for indices in written]
        return f"{','.join(operands)}->{result}"


def is_spelling(text: object) -> bool:
    """Whether a text is meant as a spelling: it has a comma or an arrow, and nothing that every program has. A path ends in
    `.tile`."""
    if not isinstance(text, str) or text.strip().endswith(".tile"):
        return False
    return ("," in text or "->" in text) and not set(text) & set('=(){}[]\n"')


def spelling(text: str) -> Spelling:
    """Reads `ij,jk->ik`. Without an arrow, the result has the indices that stand once, in the order of the alphabet, behind
    those of `...`. Raises CallError."""
    left, arrow, right = text.replace(" ", "").partition("->")
    operands = tuple(_letters(part, text) for part in left.split(","))
    return _checked(operands, _letters(right, text) if arrow else None, text)


def by_lists(arguments: Sequence[object]) -> tuple[Spelling, tuple[object, ...]]:
    """Reads `a, [0, 1], b, [1, 2], [0, 2]`: each operand with the list of its indices, at last perhaps the result's. Returns the
    spelling and the operands. Raises CallError."""
    pairs, last = divmod(len(arguments), 2)
    given = (*arguments[1 : 2 * pairs : 2], *(arguments[-1:] if last else ()))
    lists = [found for found in given if isinstance(found, list | tuple)]
    if not pairs or len(lists) < len(given):
        message = "einsum takes a string of indices and its operands, or each operand with a list of its indices"
        raise CallError(message, hint='einsum("ij,jk->ik", a, b), or einsum(a, [0, 1], b, [1, 2], [0, 2])')
    indices = [tuple(found) for found in lists]
    shown = ", ".join(str(found) for found in lists)
    return _checked(tuple(indices[:pairs]), indices[-1] if last else None, shown), tuple(arguments[: 2 * pairs : 2])


def _letters(part: str, text: str) -> tuple[Index, ...]:
    before, dots, after = part.partition("...")
    for letter in (*before, *after):
        if not letter.isalpha():
            message = f"'{letter}' in '{text}' is no index"
            raise CallError(
                message, hint="indices are letters; `...` stands for dimensions without one, `,` is between operands"
            )
    return (*before, *([...] if dots else []), *after)


def _checked(operands: tuple[tuple[Index, ...], ...], result: tuple[Index, ...] | None, text: str) -> Spelling:
    every = [i for indices in operands for i in indices]
    if result is None:
        once = [i for i in every if i is not ... and every.count(i) == 1]
        result = (*([...] if ... in every else []), *sorted(once, key=lambda i: (str(type(i)), i)))
    for index in result:
        if index not in every:
            raise CallError(f"the result's index {_shown(index)} is in no operand of '{text}'")
        if result.count(index) > 1:
            raise CallError(f"the result of '{text}' has the index {_shown(index)} twice", hint="write it once")
    if any(indices.count(...) > 1 for indices in operands):
        raise CallError(
            f"an operand of '{text}' has `...` twice", hint="`...` stands for all dimensions without an index"
        )
    named = [i for i in dict.fromkeys(every) if i is not ...]
    _limited(len(named), text)
    if all(isinstance(i, str) and re.fullmatch("[A-Za-z]", i) for i in named):
        return Spelling(operands, result)
    letters: dict[Index, Index] = {...: ..., **dict(zip(named, ascii_letters))}
    return Spelling(tuple(tuple(letters[i] for i in o) for o in operands), tuple(letters[i] for i in result))


def _limited(count: int, text: str) -> None:
    """Raises CallError for more indices than `np.einsum_path` has letters for."""
    if count > len(ascii_letters):
        raise CallError(f"'{text}' has {count} indices, more than {len(ascii_letters)}")


def _shown(index: Index) -> str:
    return "`...`" if index is ... else f"'{index}'"


# ---- as a program ----------------------------------------------------------------------------------------------------


def operand_names(count: int) -> tuple[str, ...]:
    """Names of a program's inputs. No letter alone is one of them: indices are letters."""
    return tuple(f"x{n}" for n in range(1, count + 1))


@dataclass(frozen=True)
class Fitted:
    """A spelling for operands of some shapes. All indices have names of the language, also those that `...` stands for."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    extents: Mapping[str, int]


def fit(of: Spelling, shapes: Sequence[Sequence[int]]) -> Fitted:
    """Raises CallError for shapes that do not fit."""
    free = _free(of, shapes)
    operands = [_spread(indices, len(shape), free) for indices, shape in zip(of.operands, shapes)]
    result = _spread(of.result, len(free) + len([i for i in of.result if i is not ...]), free)
    extents = _extents(operands, shapes)
    _limited(len(extents), str(of))
    plain = all(isinstance(i, str) and (i in free or i.islower()) for i in extents)
    names = {i: str(i) if plain or i in free else f"i{n}" for n, i in enumerate(extents)}
    named = [tuple(names[i] for i in indices) for indices in (*operands, result)]
    return Fitted(tuple(named[:-1]), named[-1], {names[i]: n for i, n in extents.items()})


def program(of: Spelling, dtypes: Sequence[DType], shapes: Sequence[Sequence[int]]) -> str:
    """The text of a program for operands of these types and shapes. A dimension of size 1 meets any size, as in NumPy. The
    result has the operands' type, the wider one where they differ. Raises CallError for shapes that do not fit."""
    fitted = fit(of, shapes)
    extents, out = fitted.extents, result_type(dtypes)
    lone = [[size != extents[i] for i, size in zip(*both)] for both in zip(fitted.operands, shapes)]
    names = operand_names(len(shapes))
    sized = [["1" if one else i.upper() for i, one in zip(*both)] for both in zip(fitted.operands, lone)]
    head = ", ".join(f"{name}: {dtype}{_brackets(sizes)}" for name, dtype, sizes in zip(names, dtypes, sized))
    lines = [f"op {NAME}({head}) -> ({RESULT}: {out}{_brackets(i.upper() for i in fitted.result)}) {{"]
    terms: list[tuple[tuple[str, ...], str]] = []
    for name, indices, ones in zip(names, fitted.operands, lone):
        read = name + _brackets("0" if one else i for i, one in zip(indices, ones))
        terms.append((tuple(i for i, one in zip(indices, ones) if not one), read))
    steps = list(_path([indices for indices, _ in terms], fitted.result, extents))
    for number, step in enumerate(steps, 1):
        taken = [terms[n] for n in sorted(step)]
        terms = [t for n, t in enumerate(terms) if n not in step]
        last = number == len(steps)
        found = dict.fromkeys(i for indices, _ in taken for i in indices)
        later = {*fitted.result, *(i for indices, _ in terms for i in indices)}
        kept = fitted.result if last else tuple(i for i in found if i in later)
        left = (RESULT if last else f"t{number}") + _brackets(kept)
        lines.append(f"    {left} = {_product([text for _, text in taken], [i for i in found if i not in kept], out)}")
        terms.append((kept, left))
    return "\n".join([*lines, "}", ""])


def result_type(dtypes: Sequence[DType]) -> DType:
    """The operands' type, or the wider one."""
    return dtypes[0] if len(set(dtypes)) == 1 else reduce(join, dtypes)


def _free(of: Spelling, shapes: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Indices of the dimensions that `...` stands for. They end together."""
    if len(shapes) != len(of.operands):
        what = "operand" if len(of.operands) == 1 else "operands"
        raise CallError(f"'{of}' is for {len(of.operands)} {what}, the call has {len(shapes)}")
    most = 0
    for number, (indices, shape) in enumerate(zip(of.operands, shapes), 1):
        named = len([i for i in indices if i is not ...])
        if len(shape) < named or (len(shape) > named and ... not in indices):
            dims = "1 dimension" if len(shape) == 1 else f"{len(shape)} dimensions"
            wanted = f"{'at least ' if ... in indices else ''}{named}"
            raise CallError(f"operand {number} of '{of}' has {dims} instead of {wanted}")
        most = max(most, len(shape) - named)
    if most and ... not in of.result:
        hint = "write `...` in the result, too, or letters for what is summed"
        raise CallError(f"the result of '{of}' lacks the dimensions that `...` stands for", hint=hint)
    return tuple(f"d{n}" for n in range(most))


def _spread(indices: Sequence[Index], rank: int, free: tuple[str, ...]) -> tuple[Index, ...]:
    """Indices with one for each dimension that `...` stands for."""
    if ... not in indices:
        return tuple(indices)
    at, count = indices.index(...), rank - (len(indices) - 1)
    return (*indices[:at], *free[len(free) - count :], *indices[at + 1 :])


def _extents(operands: Sequence[Sequence[Index]], shapes: Sequence[Sequence[int]]) -> dict[Index, int]:
    found: dict[Index, int] = {}
    where: dict[Index, int] = {}
    for number, (indices, shape) in enumerate(zip(operands, shapes), 1):
        for index, size in zip(indices, shape):
            if found.setdefault(index, size) == 1:
                found[index] = size
            elif size not in (1, found[index]):
                what = f"index '{index}'" if len(str(index)) == 1 else "a dimension of `...`"
                raise CallError(f"{what} is {found[index]} in operand {where[index]} and {size} in operand {number}")
            if found[index] == size:
                where.setdefault(index, number)
    return found


def _path(
    operands: list[tuple[str, ...]], result: tuple[str, ...], extents: Mapping[str, int]
) -> Iterator[tuple[int, ...]]:  # fmt: skip
    """Numbers of the operands that are multiplied next; the product comes last of those that are left."""
    if len(operands) < 3:
        yield tuple(range(len(operands)))
        return
    import numpy as np  # while a call's program is made: programs that are no spellings need none of it

    letters = dict(zip(extents, ascii_letters))
    kept = [i for i in result if any(i in indices for indices in operands)]
    text = ",".join("".join(letters[i] for i in indices) for indices in operands)
    shaped = [np.broadcast_to(np.float32(0), [extents[i] for i in indices]) for indices in operands]
    best = "optimal" if len(operands) <= MOST_OPTIMAL else "greedy"
    path, _ = np.einsum_path(f"{text}->{''.join(letters[i] for i in kept)}", *shaped, optimize=best)
    yield from path[1:]


def _brackets(inside: Iterable[str]) -> str:
    joined = ", ".join(inside)
    return f"[{joined}]" if joined else ""


def _product(factors: Sequence[str], summed: Sequence[str], dtype: DType) -> str:
    """A sum of products; of truth values, whether there is an element where all are true."""
    boolean = dtype.kind == "bool"
    text = (" and " if boolean else " * ").join(factors)
    if not summed:
        return text
    return f"{'any' if boolean else 'sum'}[{', '.join(summed)}]({text})"

"""The identifiers of a printed kernel.

    x, i, j              names of the program: a tensor that is a parameter, an index
    x_1, m_2             a thread's part of a tensor of the program: loaded elements, a state, a tile in registers
    tmp_1, part_2        temporaries, whose letters are no name of the program
    stage, lane          the same, where a pass has named them: the first of a name has no number

Loops that stand beside each other may share a variable. No other name is given twice.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count

from tilec.core import locations, mlir
from tilec.core.mlir import ir

LONGEST = 32
_RESERVED = {*keyword.kwlist, *dir(builtins), "args", "cuda", "errors", "inf", "nan", "scratch", "shared"}


class Names:
    """The names of one kernel. `program` are those of the source, `indices` those of them that are indices, `imported`
    those that the printed module has besides its `kernels`. `defined`: what the module defines so far, by name."""

    def __init__(
        self, program: Collection[str], indices: Collection[str], imported: Collection[str] = (),
        kernels: Collection[str] = (), defined: dict[str, str] | None = None,
    ):  # fmt: skip
        self.kernels, self.defined = kernels, {} if defined is None else defined
        self.program, self.indices = _identifiers(frozenset(program)), set(map(identifier, indices))
        self.taken = _RESERVED | set(imported)
        self.given: set[str] = set()
        self.open: set[str] = set()  # variables of the loops around
        self.loops: set[str] = set()  # and of all loops so far
        self.kinds: dict[str, str] = {}  # of variables that both branches of an `if` may have
        self.released: dict[str, str] = {}  # those that one of them has had
        self.numbers: dict[str, int] = {}  # by letters: a name has each below

    def import_name(self, name: str) -> str:
        """What an import is called: its own name, if no kernel of the module has that."""
        return f"device_{name}" if name in self.kernels else name

    def definition(self, name: str, value: str) -> str:
        """What a definition of the module is called: with a number where another one, which differs, has the name."""
        name = self.import_name(name)
        names = (f"{name}_{n}" if n > 1 else name for n in count(1))
        return next(n for n in names if self.defined.setdefault(n, value) == value)

    def source(self, name: str) -> str:
        """A tensor's own name; with a number where that means something else in Python or in the kernel."""
        own = identifier(name)
        return self._take(own if own not in self.taken else self._numbered(own))

    def held(self, name: str) -> str:
        """The name of a thread's part of a tensor of the program."""
        return self._take(self._numbered(identifier(name)))

    def temporary(self, letters: str = "tmp") -> str:
        """A name with a number, for values that have no name in the program."""
        return self._take(self._numbered(self._foreign(letters)))

    def variable(self, letters: str, kind: str | None = None) -> str:
        """An index, `.j`, or a name that a pass has given: without a number if nothing else has it. The branches of an `if`
        may have one name each for a variable of the same `kind`."""
        letters = self._foreign(letters)
        other = {name for name, known in self.released.items() if known != kind}
        free = not any(letters in names for names in (self.taken, self.loops, other))
        name = self._take(letters if free else self._numbered(letters, 2, self.loops | other))
        if kind is not None:
            self.kinds[name] = kind
        return name

    @contextmanager
    def branch(self) -> Iterator[None]:
        """One of the branches of an `if`."""
        before = set(self.taken)
        yield
        self.released |= {name: self.kinds[name] for name in self.taken - before if name in self.kinds}
        self.taken -= self.released.keys() - before

    @contextmanager
    def loop(self, letters: str) -> Iterator[str]:
        """A loop's variable, which no loop inside has."""
        letters = self._foreign(letters)
        found = letters if letters not in self.taken and letters not in self.open else self._numbered(letters, 2, self.open)
        self.open.add(found)
        self.loops.add(found)
        yield found
        self.open.discard(found)

    def _foreign(self, letters: str) -> str:
        """The letters, changed if they are a name of the program: but for `.j`, if that is an index."""
        own = letters.startswith(".") and identifier(letters) in self.indices
        letters = identifier(letters)
        while letters in self.program and not own:
            letters = f"tmp_{letters}"
        return letters

    def _numbered(self, letters: str, first: int = 1, unless: Collection[str] | None = None) -> str:
        others = self.released.keys() | self.loops if unless is None else set(unless)
        known, first = (self.taken, self.program, others), first if unless is not None else self.numbers.get(letters, first)
        number = next(k for k in count(first) if not any(f"{letters}_{k}" in names for names in known))
        if unless is None:  # of these, none is free again
            self.numbers[letters] = number
        return f"{letters}_{number}"

    def _take(self, name: str) -> str:
        self.taken.add(name)
        self.given.add(name)
        return name


@lru_cache(1)  # the printers of all kernels of a program ask for the same
def _identifiers(names: frozenset[str]) -> frozenset[str]:
    return frozenset(map(identifier, names))


def identifier(name: str) -> str:
    """The letters of a name, which may be any text."""
    plain = re.sub(r"[^A-Za-z0-9]", "_", name.encode("ascii", "ignore").decode()).strip("_")[:LONGEST] or "tmp"
    return plain if plain[0].isalpha() else f"v{plain}"


def program_names(module: ir.Operation) -> set[str]:
    """The source's names of tensors, statements and indices, as far as the module has them."""
    found: set[str] = set()
    for function in mlir.functions(module):
        found |= {*filter(None, locations.indices(function))}
        for key in ("arg_attrs", "res_attrs"):
            for entry in ir.ArrayAttr(function.attributes[key]) if key in function.attributes else ():
                if "tilec.name" in (names := ir.DictAttr(entry)):
                    found.add(ir.StringAttr(names["tilec.name"]).value)
        for location in {op.location for op in mlir.traverse(function)}:
            found.update((locations.statement(location) or "").split(","))
    return found - {""}

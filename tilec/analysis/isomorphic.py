"""A cache by structure: what was found for one kernel holds for isomorphic ones, such as the layers of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.structure import NAMES, structure_of

T = TypeVar("T", covariant=True)
P = ParamSpec("P")
_NAMES = (*NAMES, "tilec.approximate")  # approximate forms are asked for beside the structure


class _Node(Protocol):
    facts: dict[Hashable, Any]
    own_facts: dict[Hashable, Any]


N = TypeVar("N", bound=_Node)


@dataclass(frozen=True)
class Found(Generic[T]):
    """A result, and the names of the operations that it was found for, in the order of those that were asked for."""

    result: T
    names: tuple[str, ...]

    def reason(self, text: str, names: Sequence[str]) -> str:
        """A text of the result, which may speak of its own operations, for operations of other names."""
        if self.names == tuple(names) or not any(re.search(rf"\b{re.escape(n)}\b", text) for n in self.names):
            return text
        return f"as for {self.names[0]} with {self.names[-1]}: {text}"


@dataclass
class StructuralCache:
    """What was found for sets of operations, by their structure (`Graph.memoise`). One for a target; graphs of one program may
    share it."""

    _numbers: dict[Hashable, int] = field(default_factory=dict)  # of structures
    _facts: dict[int, dict[Hashable, Any]] = field(default_factory=dict)
    _found: dict[Hashable, Found[Any]] = field(default_factory=dict)

    def memoise(self, key: Hashable, names: tuple[str, ...], find: Callable[[], T]) -> Found[T]:
        """The result of `find`, which is the same wherever `key` is; `names` are those of the operations here."""
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Found(find(), names)
        return found

    def structure(self, op: ir.Operation, approximate: Mapping[ir.Operation, str]) -> tuple[int, tuple[ir.Value, ...]]:
        """The number of an operation's structure, and the values from outside that it uses."""
        structure, values = structure_of(op, names=_NAMES)
        forms = tuple(approximate.get(o, "") for o in mlir.traverse(op)) if approximate else ()
        return self.number((structure, forms, tuple(map(_kind, values)))), values

    def facts(self, structure: int) -> dict[Hashable, Any]:
        """What is known of all operations of a structure; nothing in it is of one of them, such as a value."""
        return self._facts.setdefault(structure, {})

    def number(self, structure: Hashable) -> int:
        return self._numbers.setdefault(structure, len(self._numbers))


def _kind(value: ir.Value) -> Hashable:
    """Of a value that an operation reads: a constant's number, else the name of what makes it, but for other operations of the
    graph."""
    owner = mlir.definition(value)
    if owner is None or mlir.is_generic(owner):
        return None
    return owner.name, owner.attributes["value"] if owner.name == "arith.constant" else None


def of_structure(function: Callable[Concatenate[N, P], T]) -> Callable[Concatenate[N, P], T]:
    """A function of a node that depends on its structure alone is called once for all nodes of that structure."""
    return _memoised(function, lambda node: node.facts)


def of_operation(function: Callable[Concatenate[N, P], T]) -> Callable[Concatenate[N, P], T]:
    """A function of a node that depends on its operation alone, of which the result may have values, is called once for a node."""
    return _memoised(function, lambda node: node.own_facts)


def _memoised(
    function: Callable[Concatenate[N, P], T], facts_of: Callable[[N], dict[Hashable, Any]]
) -> Callable[Concatenate[N, P], T]:
    @wraps(function)
    def known(node: N, *more: P.args, **named: P.kwargs) -> T:
        key, facts = (function, more, tuple(named.items())), facts_of(node)
        if key not in facts:
            facts[key] = function(node, *more, **named)
        return facts[key]

    return known

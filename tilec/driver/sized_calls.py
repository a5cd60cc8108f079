"""Fast calls of an op whose sizes vary, on the CPU, for sizes that no call had before.

What a class decides is in tables, which machine code reads (`runtime/native/tables.py`). A call's sizes are read from the shapes of
its arrays, and tell the class. Its tables are then copied with the amounts of these sizes in them: nothing is proved, planned or
allocated anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilec.core.amounts import function
from tilec.core.varying import Varying
from tilec.driver import fast_call
from tilec.driver.classes import Class, Classes
from tilec.driver.cpu_executable import CpuExecutable
from tilec.driver.executable import Executable
from tilec.runtime.cpu import call as cpu_call
from tilec.runtime.cpu.launch import CpuProgram, builtin
from tilec.runtime.native.template import Template
from tilec.runtime.sized import with_offsets

if TYPE_CHECKING:
    from tilec.driver.frontend import Program

Kind = tuple[object, ...]  # of a call's arrays: see `_kind`


@dataclass(frozen=True)
class AtSizes:
    """What a class was compiled to, at some sizes: an executable as soon as one looks at it."""

    whole: Executable
    sizes: Mapping[str, int]

    def executable(self) -> Executable:
        return self.whole.at(self.sizes)


class ClassCalls:
    """Fast calls of a class, with arrays of one kind."""

    def __init__(self, whole: CpuExecutable, kind: type, wrap: fast_call.Wrap):
        of, compiled = whole.recipe.of, whole.compiled
        assert of is not None
        self.whole, self._kind = whole, kind
        inputs, outputs = ([(dtype, shape) for _, dtype, shape in tensors] for tensors in (compiled.inputs, compiled.outputs))
        self._varying, self._ranks = [name for name, _ in of.ranges], [len(shape) for _, shape in outputs]
        emitted, offsets = with_offsets(whole.emitted, of.typical)
        self._tables = tables = Template()
        program = CpuProgram(emitted, whole.loops, len(inputs), len(outputs), whole.workspaces, tables)
        self._new = tables.words([0] * len(outputs))
        runner = cpu_call.Runner(program, program.table, "tilec_execute", program.words)
        self._call = cpu_call.call_table(tables, runner, kind, inputs, outputs, self._new, wrap, fast_call.NO)
        self._amounts = function([*(n for _, shape in outputs for n in shape), *tables.sized.values()], self._varying, offsets)
        self._make = [cpu_call.new_array(kind, dtype) for dtype, _ in outputs]

    def at(self, sizes: Mapping[str, int]) -> fast_call.Call:
        """The call at some sizes of the class."""
        amounts = self._amounts(*(sizes[name] for name in self._varying))
        new, begin = [], 0
        for make, rank in zip(self._make, self._ranks):
            new.append(make(amounts[begin : begin + rank]))
            begin += rank
        words = self._tables.filled(amounts[begin:])
        words.put(self._new, [id(each) for each in new])
        return builtin("tilec_call", words.address(self._call), (words, new, self._tables))


class SizedCalls:
    """The classes of an op that were called, by what the arrays were."""

    def __init__(self, program: Program, op: str, given: Mapping[str, int], varies: Mapping[str, Varying]):
        from tilec.dsl.given_sizes import size_solver

        self._varies = varies
        self._names, self._solve = size_solver(program.tree, op, given)
        self._vary: dict[Kind, Collection[str]] = {}  # which sizes do at the same time
        self._classes: dict[tuple[Kind, tuple[int, ...]], tuple[Classes, dict[Class, ClassCalls]]] = {}  # by those that do not

    def learn(
        self, arrays: Sequence[object], executable: Executable, vary: Collection[str],
        classes_of: Callable[[Mapping[str, int]], Classes], wrap: fast_call.Wrap,
    ) -> None:  # fmt: skip
        """Has `find` know a class, from a call that had a fast path. `vary`: the sizes that do in it; `classes_of`: all classes
        where these vary and others have numbers."""
        whole, kind, sizes = executable.whole, _kind(arrays), self._sizes(arrays)
        if isinstance(whole, CpuExecutable) and sizes is not None:
            self._vary[kind] = vary
            if (key := self._key(kind, sizes)) not in self._classes:
                self._classes[key] = classes_of(sizes), {}
            classes, calls = self._classes[key]
            if (of := classes.of(sizes)) not in calls:
                calls[of] = ClassCalls(whole, type(arrays[0]), wrap)

    def find(self, arrays: Sequence[object]) -> tuple[fast_call.Call, AtSizes] | None:
        """The call for arrays of a class that is known, and what it runs."""
        if (kind := _kind(arrays)) not in self._vary or (sizes := self._sizes(arrays)) is None:
            return None
        if not all(v.has(sizes[name]) for name, v in self._varies.items()):
            return None
        if (known := self._classes.get(self._key(kind, sizes))) is None or (found := known[1].get(known[0].of(sizes))) is None:
            return None
        return found.at(sizes), AtSizes(found.whole, sizes)

    def _key(self, kind: Kind, sizes: Mapping[str, int]) -> tuple[Kind, tuple[int, ...]]:
        return kind, tuple(n for name, n in sizes.items() if name not in self._vary[kind])

    def _sizes(self, arrays: Sequence[object]) -> dict[str, int] | None:
        """The sizes that arrays have; None where they do not fit, or do not tell all."""
        try:
            found = self._solve(*(a.shape for a in arrays)) if self._solve is not None else None  # type: ignore[attr-defined]
        except (AttributeError, TypeError, ValueError):
            return None
        return None if found is None else dict(zip(self._names, found))


def _kind(arrays: Sequence[object]) -> Kind:
    """All of some arrays but their shapes."""
    return type(arrays[0]) if arrays else None, *((getattr(a, "dtype", None), getattr(a, "device", None)) for a in arrays)

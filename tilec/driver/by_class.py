"""The executables of an op whose sizes vary: one for each class of sizes, and of that one for each call's sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import TYPE_CHECKING

from tilec.core.diagnostics import CallError
from tilec.core.target import Target
from tilec.core.varying import Varies, Varying
from tilec.driver.ahead import Ahead
from tilec.driver.background import Background, Report
from tilec.driver.classes import Class, Classes, finest
from tilec.driver.executable import Executable
from tilec.driver.frontend import Program, ask_compiler
from tilec.driver.recipe import Recipe, Signature
from tilec.runtime.program import Amount

if TYPE_CHECKING:
    from tilec.driver.fast_call import Call, Wrap
    from tilec.driver.sized_calls import AtSizes, SizedCalls

MOST = 1024
"""Executables that are kept for a call's sizes, the latest ones: some kilobytes each. Machine code is a class's."""
MOST_COMBINED = 3  # sizes of which all combinations are tried
Given = Sequence[tuple[object, tuple[Amount, ...]]] | None


@dataclass(frozen=True)
class Served:
    """A class of sizes that was compiled. `sizes`: which, in words. `kernels`: of how many it consists. `refused`: for each set of
    sizes that could not vary together, why. `cost`: what it takes that sizes are invariant, in words. `background`: of sizes that
    were met often, what became of their own compilation."""

    sizes: str
    target: str
    kernels: int
    refused: tuple[tuple[str, str], ...]
    cost: str = ""
    background: str = ""

    def __str__(self) -> str:
        kernels = f"{self.kernels} kernel{'s' * (self.kernels != 1)}"
        refused = (f"    {names} cannot vary here: {why}" for names, why in self.refused)
        notes = (f"    {note}" for note in (self.cost, self.background) if note)
        return "\n".join([f"{self.sizes}: {kernels}", *notes, *refused])


class ByClass:
    """`make` is given the inputs, the numbers of sizes and the class of a recipe; `build` compiles it."""

    def __init__(
        self, program: Program, op: str, given: Mapping[str, int], varies: Mapping[str, Varying],
        make: Callable[[Signature | None, Mapping[str, int], Target, Class | None], Recipe], build: Callable[[Recipe], Executable],
        specialise_after: int = 0,
    ):  # fmt: skip
        """`specialise_after`: see `compile`; 0 for never."""
        self._program, self._op, self._given, self._varies = program, op, given, varies
        self._make, self._build = make, build
        self._classes: dict[tuple[Class, str, object], tuple[Executable, Served]] = {}
        self._at: OrderedDict[tuple[object, ...], Executable] = OrderedDict()
        self._invariant = [name for name, v in varies.items() if v.invariant]
        self._calls: SizedCalls | None = None
        self._often = Background(specialise_after, make, build) if specialise_after else None
        self._compiled_ahead = Ahead()
        self._unable: dict[tuple[Class, str, object], str] = {}  # classes that a pass refused, and why
        self._ranges: dict[tuple[object, ...], Classes] = {}

    def served(self) -> list[Served]:
        """The classes that were compiled so far, and the sizes that were compiled by themselves."""
        return [*(served for _, served in self._classes.values()), *map(self._exact, self._often.reports if self._often else ())]

    def _exact(self, report: Report) -> Served:
        sizes = ", ".join(f"{name} = {n}" for name, n in sorted(report.sizes.items()) if name in self._varies)
        kernels = len(report.exact.emitted.kernels) if report.exact is not None else 0
        return Served(sizes, report.target, kernels, (), background=report.text)

    def compiled(self) -> list[Executable]:
        """What these were compiled to."""
        return [executable for executable, _ in self._classes.values()]

    def executable(self, inputs: Signature | None, target: Target, more: Mapping[str, int] | None = None) -> Executable:
        """For a call's arguments, or for sizes alone. Raises CallError where they do not fit the op, or leave a range."""
        inputs, sizes = self._described(inputs, more)
        key = (*sizes.items(), target.name, *(dtype.name for dtype, _ in inputs))
        if (found := self._at.get(key)) is None:
            whole = self._whole(inputs, sizes, target)
            found = self._at[key] = whole.at(sizes)
        self._at.move_to_end(key)
        while len(self._at) > MOST:
            self._at.popitem(last=False)
        if self._often is not None and found.whole is not None:
            counter = self._often.counter(found.whole, sizes)
            if counter.exact is not None:
                return counter.exact
            counter.met()
        return found

    def fast(self, arrays: Sequence[object]) -> tuple[Call, AtSizes] | None:
        """A call by machine code, for arrays of sizes that are new, of a class that was called before."""
        found = None if self._calls is None else self._calls.find(arrays)
        if found is None or self._often is None:
            return found
        call, at = found
        counter = self._often.counter(at.whole, at.sizes)
        return (counter.counted(call), at) if counter.exact is None else None

    def counted(self, call: Call, executable: Executable) -> Call:
        """The call of an executable, which counts those of its sizes if any are to be compiled by themselves."""
        if self._often is None or executable.whole is None or executable.sizes is None:
            return call
        return self._often.counter(executable.whole, executable.sizes).counted(call)

    def learn(self, arrays: Sequence[object], executable: Executable, wrap: Wrap) -> None:
        """Has `fast` know the class of a call by machine code."""
        if executable.whole is None or executable.target.kind != "cpu" or (of := executable.recipe.of) is None:
            return
        if self._calls is None:
            from tilec.driver.sized_calls import SizedCalls

            self._calls = SizedCalls(self._program, self._op, self._given, self._varies)
        names = [name for name in self._varies if name in {name for name, _ in (*of.ranges, *of.fixed)}]
        given = [(dtype, shape) for _, dtype, shape in executable.compiled.inputs]
        self._calls.learn(arrays, executable, names, lambda sizes: self._classes_of(names, given, sizes, executable.target), wrap)

    def ahead(self, target: Target, several: Mapping[str, Sequence[int]]) -> Iterator[Callable[[], Executable]]:
        """For each class of all combinations of some numbers, what compiles it. Raises CallError for numbers that leave a range."""
        numbers = {name: self._representatives(name, row) for name, row in several.items()}
        for chosen in product(*numbers.values()):
            yield partial(self._ahead, target, dict(zip(numbers, chosen)))

    def _ahead(self, target: Target, more: Mapping[str, int]) -> Executable:
        return self._whole(*self._described(None, more), target)

    def _representatives(self, name: str, numbers: Sequence[int]) -> Sequence[int]:
        """Those of the numbers that may be of different classes, and all that are in none."""
        if (v := self._varies.get(name)) is None:
            return numbers
        return list({finest(n) if v.has(n) else n: n for n in reversed(numbers)}.values())[::-1]

    def _described(self, inputs: Signature | None, more: Mapping[str, int] | None) -> tuple[Signature, dict[str, int]]:
        """The types and shapes of a call, as declared where none are given, and its sizes."""
        from tilec.dsl.given_sizes import declared_inputs, sizes_at

        tree = self._program.tree
        sizes = sizes_at(tree, self._op, inputs, {**self._given, **(more or {})}, self._varies)
        return declared_inputs(tree, self._op, sizes) if inputs is None else inputs, sizes

    def _whole(self, inputs: Signature, sizes: Mapping[str, int], target: Target) -> Executable:
        """What serves all of the class of some sizes. Which class it is depends on these sizes alone, not on earlier calls."""
        refused: list[tuple[str, str]] = []
        for names in self._choices():
            classes = self._classes_of(names, inputs, sizes, target)
            of, fixed, key = self._named(classes, inputs, sizes, target)
            if (known := self._classes.get(key)) is not None:
                return known[0]
            if (why := self._unable.get(key)) is None:
                if of.ranges and not refused:
                    self._start_neighbours(classes, inputs, sizes, target)
                try:
                    found = self._compiled_ahead.take(key) or self._compile(of, fixed, inputs, target)
                except Varies as error:
                    why = self._unable[key] = str(error)
            if why is not None:
                refused.append((", ".join(names), why))
                continue
            rest = {name: n for name, n in fixed.items() if name in self._varies and name not in dict(of.fixed)}
            text = ", ".join([*(f"{name} = {n}" for name, n in sorted(rest.items())), *([str(of)] if names else [])])
            self._classes[key] = found, Served(text, target.name, len(found.emitted.kernels), tuple(refused), found.compiled.cost)
            return found
        if not self._invariant:
            raise AssertionError("without sizes that vary, an op compiles")
        named, (_, why) = ", ".join(f"`{name}`" for name in self._invariant), refused[-1]
        hint = "leave it out of `invariant`: its numbers are then compiled one by one"
        raise CallError(f"{named} cannot be invariant on {target.name}: {why}", hint=hint)

    def _named(
        self, classes: Classes, inputs: Signature, sizes: Mapping[str, int], target: Target
    ) -> tuple[Class, dict[str, int], tuple[Class, str, object]]:  # fmt: skip
        """The class of some sizes, the sizes of which it has one number each, and a key of what is compiled for it."""
        of = classes.of(sizes)
        fixed = {name: n for name, n in sizes.items() if name not in dict(of.ranges)}
        return of, fixed, (of, target.name, (*sorted(fixed.items()), *(dtype.name for dtype, _ in inputs)))

    def _compile(self, of: Class, fixed: Mapping[str, int], inputs: Signature, target: Target) -> Executable:
        """Raises Varies where the sizes cannot vary."""
        from tilec.dsl.given_sizes import open_inputs

        given = open_inputs(self._program.tree, self._op, inputs, fixed, dict(of.ranges))
        return self._build(self._make(given, fixed, target, of if of.ranges else None))

    def _start_neighbours(self, classes: Classes, inputs: Signature, sizes: Mapping[str, int], target: Target) -> None:
        """Has the classes beside that of some sizes be compiled ahead, where that pays."""
        if self._compiled_ahead.pays(target):
            for neighbour in classes.neighbours(sizes):
                of, fixed, key = self._named(classes, inputs, neighbour, target)
                if key not in self._classes:
                    self._compiled_ahead.begin(key, partial(self._compile, of, fixed, inputs, target))

    def _classes_of(
        self, names: Sequence[str], inputs: Signature | None, sizes: Mapping[str, int], target: Target
    ) -> Classes:  # fmt: skip
        """The classes where some sizes vary, and the others are numbers."""
        from tilec.driver.find_classes import find_classes

        fixed = {name: n for name, n in sizes.items() if name not in names}
        key = target.name, *names, *sorted(fixed.items()), *(dtype.name for dtype, _ in inputs or ())
        if (found := self._ranges.get(key)) is None:
            varies = {name: self._varies[name] for name in names}
            found = self._ranges[key] = find_classes(
                self._program.tree, self._op, inputs, fixed, varies, target, self._program.digest,
                partial(ask_compiler, self._program.source),
            )
        return found

    def _choices(self) -> Iterator[tuple[str, ...]]:
        """Sizes that may vary together: all, then fewer, down to none. Of many, all but one, then none. Invariant sizes always
        vary."""
        others = [name for name in self._varies if name not in self._invariant]
        many = len(others)
        for count in range(many, -1, -1) if many <= MOST_COMBINED else (many, many - 1, 0):
            for chosen in combinations(others, count):
                yield tuple(name for name in self._varies if name in (*self._invariant, *chosen))

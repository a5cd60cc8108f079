"""map, for the CPU: operations of a block become loops that compilers vectorise.

    generic [parallel, reduction] ins(x) outs(s) { add }   ->   for i { s0 = s[i]; s[i] = for j iter(s0) { s0 + x[i, j] } }

The loops nest in the planned order (`tilec.loops`). A reduction in the innermost loop carries its state in registers; a
reduction further out adds to memory. Operands are loaded in the outermost loop that determines their subscripts. Checks
are made there, too, since they would prevent SIMD code in the innermost loop. Several steps of a reduction just outside
the innermost loop are computed together (`_several`), so that memory is read and written once for them. Additions and
products that combine a reduction's state (their first operand) are marked `reassoc`. All others are computed as written. So are
these where a size is invariant, as LLVM would choose another order for the last rows of a block: long sums have lanes of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any

from tilec.analysis.float_ranges import range_of
from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.lane_invariance import NONE, LaneInvariance, find_lane_invariance, multiple
from tilec.core import locations, mlir
from tilec.core.extents import known_loops, sizes_of
from tilec.core.mlir import arith, ir, math, memref, scf
from tilec.kernels import planned_kernels
from tilec.passes.cpu.fill import map_copy, map_fill
from tilec.passes.cpu.lanes import Lanes, count_for
from tilec.passes.cpu.narrow_positions import narrow_positions
from tilec.passes.cpu.partial_sums import PartialSums
from tilec.passes.cpu.transpose import map_transpose, whole
from tilec.passes.emit import Body
from tilec.passes.loops import below, sum_of, when

TRIGONOMETRIC = ("math.sin", "math.cos", "math.tan")
STEPS = 4  # of a reduction that adds to memory, made at once
VECTOR = 16  # elements, of whose multiples LLVM makes several vectors at a time
CHEAP = ("math.absf", "math.absi", "math.sqrt", "math.fma", "math.floor", "math.ceil", "math.trunc", "math.roundeven")
SHORT = 8  # operations of a body beside which the load and store of its accumulator cost much
CODY_WAITE_LIMIT = {"f32": 2.0**17, "f64": 2.0**30}  # of the fast paths in runtime/cpu/math_trig.py


def map_cpu(module: ir.Operation) -> None:
    planned = {function: kernel.tiles for function, kernel in planned_kernels(module)}
    for function in mlir.functions(module):
        if "tilec.kernel" in function.attributes:
            for op in [o for o in mlir.traverse(function) if mlir.is_generic(o)]:
                narrow_positions(op)
            for op in list(mlir.traverse(function)):
                match op.name:
                    case "linalg.generic":
                        _generic(op, planned.get(function, {}))
                    case "linalg.fill":
                        map_fill(op)
                    case "memref.copy":
                        map_copy(op)
                    case "linalg.transpose":
                        map_transpose(op)


def _generic(op: ir.Operation, tiles: dict[int, int]) -> None:
    names = (mlir.get_string(op, "tilec.name") or "t").split(",")
    for name, out in zip(names, mlir.outputs_of(op)):
        owner = mlir.definition(out)
        if owner is not None and owner.name == "memref.subview":  # the used part of a tile at the edge of the grid
            owner = mlir.definition(owner.operands[0])
        if owner is not None and owner.name == "memref.alloc":
            owner.attributes["tilec.name"] = mlir.string(name)  # its name in the printed kernel
    with ir.InsertionPoint(op), ir.Location.name(",".join(names), op.location):
        _Nest(op, tiles).build()
    op.erase()


class _Nest:
    """The loops of an operation. `tiles`: of its kernel's blocks, by dimension."""

    def __init__(self, op: ir.Operation, tiles: dict[int, int]):
        self.op, self.block = op, mlir.body_of(op)
        self.maps = [mlir.map_dims(m) for m in mlir.maps_of(op)]
        self.operands = list(op.operands)
        self.sized = [*zip(self.operands, self.maps)]
        self.count = len(mlir.inputs_of(op))
        self.order = mlir.get_integers(op, "tilec.loops") or list(range(len(mlir.iterators_of(op))))
        iterators = mlir.iterators_of(op)
        tail = len(self.order)
        while tail and iterators[self.order[tail - 1]] == "reduction":
            tail -= 1
        self.outer, self.inner = self.order[:tail], self.order[tail:]
        used = {v for inner in mlir.traverse(op) for v in inner.operands}
        self.arguments = list(self.block.arguments)
        self.read = [a in used for a in self.arguments]
        # outputs that the innermost reductions do not subscript live in registers through them
        outs = range(self.count, len(self.operands))
        self.carried = [n for n in outs if self.inner and not set(self.maps[n]) & set(self.inner)]
        self.several = self._several()  # the reduction of which several steps are made at once
        if self.several is not None:
            self.carried = [n for n in outs if self.several not in self.maps[n]]
        known, dims = locations.loop_names(op), mlir.get_integers(op, "tilec.dims") or []
        self.names = {d: known.get(k) for d, k in enumerate(dims)}
        self.tiles = {d: tiles[k] for d, k in enumerate(dims) if k in tiles}
        self.variables: dict[int, ir.Value] = {}
        self.elements: dict[int, ir.Value] = {}
        self.checks = {o.operation: self._dims(o.operands[0]) for o in self.block.operations if _is_check(o.operation)}
        self.checked: set[ir.Operation] = set()
        arguments = {o.results[0].type for o in self.block.operations if o.operation.name in TRIGONOMETRIC}
        self.trigonometric = bool(arguments)
        self.argument = (
            arguments.pop() if len(arguments) == 1 else None
        )  # their type; of two types none has a fast path
        self.far = {o.operation for o in self.block.operations if self._may_be_far(o.operation)}
        self.accumulates = any(self.read[n] and n not in self.carried for n in outs)
        self.small_arguments = False
        self.ordered = any(v.invariant for v in sizes_of(op).values())
        plain = not self.trigonometric and len(self.carried) == len(self.operands) - self.count
        self.lanes = Lanes.of(op, self.ordered) if plain and self.inner else None
        self.partial = None if self.lanes and not self.ordered else PartialSums.of(op, self.outer, self.inner)
        self.lane_count = 0
        self.invariance = NONE

    def _may_be_far(self, op: ir.Operation) -> bool:
        """Whether it is a trigonometric function whose argument may be beyond the fast path."""
        known = self.argument is not None and op.name in TRIGONOMETRIC
        return known and max(map(abs, range_of(op.operands[0]))) > CODY_WAITE_LIMIT[str(self.argument)]

    def build(self) -> None:
        if self.lanes is not None:
            known = mlir.constant_value(self.extent(self.inner[-1]))
            self.lane_count = count_for(None if known is None else int(known))
            self.lane_memory = self.lanes.memory(self.lane_count) if self.lane_count else []
        if self.partial is not None and self.partial.depth < len(self.outer):
            self.partial_memory = self.partial.memory(self.op, {d: self._most(d) for d in self.partial.dims})
        self._enter(0)

    def extent(self, d: int) -> ir.Value:
        """The trip count of a dimension, from any operand that it subscripts."""
        for value, dims in self.sized:
            if d in dims:
                size = ir.ShapedType(value.type).shape[dims.index(d)]
                if size == mlir.DYNAMIC:
                    return memref.DimOp(value, mlir.index(dims.index(d))).result
                return mlir.index(size)
        raise AssertionError("a dimension without an operand")

    def _most(self, d: int) -> int | ir.Value:
        """The largest trip count of a dimension in any block."""
        extent = self.extent(d)
        known = mlir.constant_value(extent)
        return int(known) if known is not None else self.tiles.get(d, extent)

    def _load_ready(self) -> None:
        """Loads the inputs whose subscripts are all known now and were not before, and makes the checks of these."""
        for n in range(self.count):
            if self.read[n] and n not in self.elements and all(d in self.variables for d in self.maps[n]):
                self.elements[n] = self._load(n)
        for check, dims in self.checks.items():
            if check not in self.checked and dims is not None and dims <= self.variables.keys():
                self.checked.add(check)
                Body(self.block, self.elements.get, self.variables.get).copy(check)

    def _dims(self, value: ir.Value) -> frozenset[int] | None:
        """The dimensions that a value of the body depends on; None where it cannot be had before the body's turn: it
        depends on a state or on memory, or a loop may have no iteration."""
        if value in self.arguments:
            n = self.arguments.index(value)
            return frozenset(self.maps[n]) if n < self.count else None
        owner = mlir.definition(value)
        if owner is None or owner.block != self.block:  # a block's argument, or made outside
            return frozenset()
        if owner.name == "linalg.index":
            return frozenset([mlir.index_dim(owner)])
        if owner.regions or owner.name == "memref.load" or 0 in mlir.extents_of(self.op):
            return None
        found = [self._dims(v) for v in owner.operands]
        known = [dims for dims in found if dims is not None]
        return frozenset().union(*known) if len(known) == len(found) else None

    def _load(self, n: int) -> ir.Value:
        return memref.LoadOp(self.operands[n], [self.variables[d] for d in self.maps[n]]).result

    def _store(self, value: ir.Value, n: int) -> None:
        memref.StoreOp(value, self.operands[n], [self.variables[d] for d in self.maps[n]])

    def _loop(
        self, d: int, states: list[ir.Value], step: int = 1, start: ir.Value | None = None, end: ir.Value | None = None
    ) -> scf.ForOp:
        first, last = mlir.index(0) if start is None else start, self.extent(d) if end is None else end
        loop = scf.ForOp(first, last, mlir.index(step), states)
        flags = bool(self.small_arguments and self.far)
        names = [None] * (len(states) - flags) + ["largest"] * flags
        locations.named(loop, self.names.get(d) or ("element" if flags else None), *names)
        self.variables[d] = loop.induction_variable
        return loop

    def _leave(self, d: int) -> None:
        """Forgets a dimension's loop, which has ended, and the values loaded in it."""
        del self.variables[d]
        self.elements = {n: value for n, value in self.elements.items() if d not in self.maps[n]}
        self.checked = {check for check in self.checked if d not in (self.checks[check] or ())}

    def _several(self) -> int | None:
        """The dimension of a reduction just outside the innermost loop, if its steps are short and always the same."""
        operations = [o.operation for o in self.block.operations]
        if self.inner or len(self.outer) < 2 or len(operations) > SHORT or any(o.regions for o in operations):
            return None
        d, kind = self.outer[-2], mlir.iterators_of(self.op)[self.outer[-2]]
        return d if kind == "reduction" and not any(o.name in TRIGONOMETRIC for o in operations) else None

    def _at_once(self, depth: int) -> None:
        """The two innermost loops, the outer one a reduction: several of its steps in each step of the inner one.

        for i { for j { s[j] += x[i, j] } }   ->   for i by 4 { for j { s[j] = s[j] + x[i, j] + ... + x[i + 3, j] } }
        """
        extent = self.extent(self.outer[depth])
        known = mlir.constant_value(extent)
        end = whole(extent if known is None else int(known), STEPS)
        for start, stop, count in ((0, end, STEPS), (end, extent, 1)):
            first, last = (mlir.index(v) for v in (start, stop))
            if mlir.constant_value(first) is None or mlir.constant_value(first) != mlir.constant_value(last):
                build = partial(self._steps, depth, count)
                self._in_rounds(depth, last, build) if count > 1 else build(first, last)

    def _steps(self, depth: int, count: int, first: ir.Value, last: ir.Value) -> None:
        assert self.several is not None
        loop = scf.ForOp(first, last, mlir.index(count), [])
        locations.named(loop, self.names.get(self.several))
        with ir.InsertionPoint(loop.body):
            inner = self._loop(self.outer[depth + 1], [])
            with ir.InsertionPoint(inner.body):
                states = [self._load(n) for n in self.carried]
                for number in range(count):
                    self.variables[self.several] = sum_of([(loop.induction_variable, 1)], number)
                    self._load_ready()
                    states = self._body(states)
                    self._leave(self.several)
                for value, n in zip(states, self.carried):
                    self._store(value, n)
                scf.YieldOp([])
            self._leave(self.outer[depth + 1])
            scf.YieldOp([])

    def _enter(self, depth: int) -> None:
        """The loops over `outer`, then the reductions."""
        self._load_ready()
        if depth < len(self.outer):
            if self.outer[depth] == self.several:
                self._at_once(depth)
            elif not self.inner and depth == len(self.outer) - 1:
                self._fast_path_first(lambda states: self._last_loop(depth, states), [])
            else:
                self._in_rounds(depth, self.extent(self.outer[depth]), partial(self._around, depth))
            return
        states = [self._load(n) for n in self.carried]
        results = (
            self._fast_path_first(lambda states: self._reduce(0, states), states) if self.inner else self._body(states)
        )
        for value, n in zip(results, self.carried):
            self._store(value, n)

    def _around(self, depth: int, start: ir.Value, end: ir.Value) -> None:
        loop = self._loop(self.outer[depth], [], start=start, end=end)
        with ir.InsertionPoint(loop.body):
            self._enter(depth + 1)
            scf.YieldOp([])
        self._leave(self.outer[depth])

    def _in_rounds(self, depth: int, end: ir.Value, build: Callable[[ir.Value, ir.Value], None]) -> None:
        """The steps up to `end` of the loop at a depth, of which `build` makes some; in rounds where sums have these."""
        sums = self.partial
        if sums is None or depth != sums.depth:
            build(mlir.index(0), end)
            return
        memory = dict(zip(sums.outs, self.partial_memory))

        def part(n: int) -> tuple[ir.Value, list[ir.Value]]:
            return memory[n], [self.variables[d] for d in sums.dims]

        def clear() -> None:
            for n in memory:
                memref.StoreOp(mlir.constant(0.0, ir.ShapedType(memory[n].type).element_type), *part(n))

        def add() -> None:
            for n in memory:
                self._store(arith.addf(self._load(n), memref.LoadOp(*part(n)).result), n)

        with self._rounds(sums, self.outer[depth], end) as (_, first, last):
            self._over(sums.dims, clear)
            operands, maps = self.operands, self.maps
            self.operands = [memory.get(n, v) for n, v in enumerate(operands)]
            self.maps = [list(sums.dims) if n in memory else own for n, own in enumerate(maps)]
            build(first, last)
            self.operands, self.maps = operands, maps
            self._over(sums.dims, add)
            scf.YieldOp([])

    @contextmanager
    def _rounds(
        self, sums: PartialSums, d: int, end: ir.Value, states: Sequence[ir.Value] = ()
    ) -> Iterator[tuple[scf.ForOp, ir.Value, ir.Value]]:
        """The loop over the rounds of a dimension's loop, and where each begins and ends."""
        name = self.names.get(d) or "element"
        rounds = locations.named(scf.ForOp(mlir.index(0), end, mlir.index(sums.step), list(states)), f"{name}_round")
        with ir.InsertionPoint(rounds.body):
            yield rounds, rounds.induction_variable, sums.end(rounds.induction_variable, end)

    def _over(self, dims: Sequence[int], body: Callable[[], None]) -> None:
        """Loops over dimensions of which all variables are forgotten then."""
        if not dims:
            body()
            return
        loop = self._loop(dims[0], [])
        with ir.InsertionPoint(loop.body):
            self._over(dims[1:], body)
            scf.YieldOp([])
        self._leave(dims[0])

    def _last_loop(self, depth: int, states: list[ir.Value]) -> list[ir.Value]:
        """The innermost loop of an operation without reductions; its only state is the flag of `_fast_path_first`."""
        d = self.outer[depth]
        self.invariance = self._lane_invariance(d)
        if self.invariance.size > 1 or not self._varies(d):
            states = self._elements_of(d, states)
        else:
            end = mlir.index(whole(self.extent(d), VECTOR))
            states = self._elements_of(d, states, mlir.index(0), end)
            if states or not self._is_dear():
                states = self._elements_of(d, states, end, self.extent(d))
            else:
                self._masked_rest(d, end)
        self.invariance = NONE
        return states

    def _varies(self, d: int) -> bool:
        """Whether a loop's trip count is no number, in a program whose sizes vary. LLVM makes one vector at a time of such a loop,
        and several of one whose count is a multiple of a vector's elements: the rest has a loop of its own."""
        return bool(sizes_of(self.op)) and not isinstance(known_loops(self.op)[d], int)

    def _is_dear(self) -> bool:
        """Whether an element takes so long that one masked vector is faster than a loop over the rest."""
        return any(o.operation.name.startswith("math.") and o.operation.name not in CHEAP for o in self.block.operations)

    def _masked_rest(self, d: int, start: ir.Value) -> None:
        """The elements from `start` on, fewer than a vector has, of a loop without states."""
        extent = self.extent(d)
        with when(below(start, extent)):
            loop = scf.ForOp(mlir.index(0), mlir.index(VECTOR), mlir.index(1), [])
            locations.named(loop, f"{self.names.get(d) or 'element'}_lane")
            with ir.InsertionPoint(loop.body):
                index = self.variables[d] = sum_of([(start, 1), (loop.induction_variable, 1)])
                with when(below(index, extent)):
                    self._load_ready()
                    self._body([])
                self._leave(d)
                scf.YieldOp([])

    def _elements_of(
        self, d: int, states: list[ir.Value], start: ir.Value | None = None, end: ir.Value | None = None
    ) -> list[ir.Value]:
        """The loop over the elements along the innermost dimension."""
        loop = self._loop(d, states, self.invariance.size, start, end)
        index = self.variables[d]
        with ir.InsertionPoint(loop.body):
            states = list(loop.inner_iter_args)
            shared: dict[Any, Any] = {}
            for number in range(self.invariance.size):
                self.variables[d] = sum_of([(index, 1)], number)
                self._load_ready()
                states = self._body(states, number, shared)
                self._leave(d)
            scf.YieldOp(states)
        return list(loop.results)

    def _lane_invariance(self, d: int) -> LaneInvariance:
        """Iterations of the innermost loop that share a part of the body."""

        terms = BodyTerms(self.op)
        return find_lane_invariance(terms, terms.dims[d], multiple(self.extent(d)))

    def _fast_path_first(self, build: Callable[..., list[ir.Value]], states: list[ir.Value]) -> list[ir.Value]:
        """Trigonometric functions have a fast path for arguments that are not huge: run the innermost loops with it,
        look whether any argument was, and run them again with the full form if so.

            for j { y[j] = cos(x[j]) }   ->   far = for j { y[j] = cos_approx(x[j]); max(far, bits(|x[j]|)) }
                                              if far > bits(limit) { for j { y[j] = cos(x[j]) } }

        Bits of floats without a sign compare as the floats do, with NaN above all: in SIMD code that is two instructions.
        Arguments that cannot be huge, such as a sine, are not looked at.
        """
        if self.argument is None or (self.far and (self.accumulates or self.ordered)):
            return build(states)
        if not self.far:
            self.small_arguments = True
            return build(states)
        self.small_arguments = True
        word = ir.IntegerType.get_signless(self.argument.width)
        *results, largest = build([*states, mlir.constant(0, word)])
        self.small_arguments = False
        limit = arith.bitcast(word, mlir.constant(CODY_WAITE_LIMIT[str(self.argument)], self.argument))
        far = arith.cmpi(arith.CmpIPredicate.sgt, largest, limit)
        slow = scf.IfOp(far, [s.type for s in states], has_else=bool(states))
        with ir.InsertionPoint(slow.then_block):
            scf.YieldOp(build(states))
        if states:
            with ir.InsertionPoint(slow.else_block):
                scf.YieldOp(results)
        return list(slow.results)

    def _reduce(self, depth: int, states: list[ir.Value]) -> list[ir.Value]:
        self._load_ready()
        if depth == len(self.inner):
            return self._body(states)
        d, sums = self.inner[depth], self.partial
        if sums is None or sums.depth != len(self.outer) + depth:
            return self._reduce_part(depth, states)
        with self._rounds(sums, d, self.extent(d), states) as (rounds, first, last):
            before, among = list(rounds.inner_iter_args), [n in sums.outs for n in self.carried]
            cleared = [mlir.constant(0.0, v.type) if part else v for v, part in zip_longest(before, among)]
            after = self._reduce_part(depth, cleared, first, last)
            scf.YieldOp([arith.addf(a, b) if part else b for a, b, part in zip_longest(before, after, among)])
        return list(rounds.results)

    def _reduce_part(
        self, depth: int, states: list[ir.Value], start: ir.Value | None = None, end: ir.Value | None = None
    ) -> list[ir.Value]:
        if self.lane_count and depth == len(self.inner) - 1:
            start, states = self._in_lanes(self.inner[depth], states, start, end)
        return self._reduce_along(depth, states, start, end)

    def _reduce_along(
        self, depth: int, states: list[ir.Value], start: ir.Value | None = None, end: ir.Value | None = None
    ) -> list[ir.Value]:
        d = self.inner[depth]
        if start is None and end is None and depth == len(self.inner) - 1 and self._varies(d):
            start = mlir.index(whole(self.extent(d), VECTOR))
            states = self._reduce_along(depth, states, mlir.index(0), start)
        loop = self._loop(d, states, start=start, end=end)
        with ir.InsertionPoint(loop.body):
            scf.YieldOp(self._reduce(depth + 1, list(loop.inner_iter_args)))
        self._leave(self.inner[depth])
        return list(loop.results)

    def _in_lanes(
        self, d: int, states: list[ir.Value], start: ir.Value | None, end: ir.Value | None
    ) -> tuple[ir.Value, list[ir.Value]]:
        """As many elements as whole rounds of the lanes have; where they end, and the states there. A part that starts behind the
        first element starts at a multiple of the lanes."""
        extent, count, memory = self.extent(d) if end is None else end, self.lane_count, self.lane_memory
        known = mlir.constant_value(extent)
        end = mlir.index(whole(extent if known is None else int(known), count))
        assert self.lanes is not None
        self.lanes.begin(memory, states, count)
        rounds = scf.ForOp(mlir.index(0) if start is None else start, end, mlir.index(count), [])
        name = self.names.get(d) or "element"
        locations.named(rounds, f"{name}_round")
        with ir.InsertionPoint(rounds.body):
            loop = locations.named(scf.ForOp(mlir.index(0), mlir.index(count), mlir.index(1), []), f"{name}_lane")
            with ir.InsertionPoint(loop.body):
                lane = loop.induction_variable
                self.variables[d] = sum_of([(rounds.induction_variable, 1), (lane, 1)])
                self._load_ready()
                now = [memref.LoadOp(m, [lane]).result for m in memory]
                for m, value in zip(memory, self._body(now)):
                    memref.StoreOp(value, m, [lane])
                scf.YieldOp([])
            self._leave(d)
            scf.YieldOp([])
        return end, self.lanes.end(memory, states, count)

    def _body(self, states: list[ir.Value], number: int = 0, shared: dict | None = None) -> list[ir.Value]:
        """One element, of several that are computed together that with this number."""
        mapping, flags = self._compute(states, number, shared)
        results = [mapping.get(v, v) for v in list(self.block.operations)[-1].operands]
        for n, value in enumerate(results, self.count):
            if n not in self.carried:
                self._store(value, n)
        return [results[n - self.count] for n in self.carried] + flags

    def _compute(
        self, states: list[ir.Value], number: int = 0, shared: dict | None = None
    ) -> tuple[dict[ir.Value, ir.Value], list[ir.Value]]:
        """The body's values for this element, and flags of arguments beyond the fast path."""
        mapping: dict[ir.Value, ir.Value] = {}
        for n, argument in enumerate(self.arguments):
            if n in self.carried:
                mapping[argument] = states[self.carried.index(n)]
            elif self.read[n]:
                mapping[argument] = self.elements[n] if n in self.elements else self._load(n)
        for inner in self.block.operations:
            if inner.operation.name == "linalg.index":
                mapping[inner.results[0]] = self.variables[mlir.index_dim(inner)]
        done = {"linalg.index", "linalg.yield"}
        others = [o for o in self.block.operations if o.operation.name not in done and o.operation not in self.checked]
        outs = set(self.arguments[self.count :])
        flags, largest = states[len(self.carried) :], None
        for inner in others:
            combines = inner.operation.name in ("arith.addf", "arith.mulf") and any(v in outs for v in inner.operands)
            combines = combines and self._is_only_reduced(inner.operation.results[0])
            copy = self.invariance.clone(inner.operation, number, mapping, {} if shared is None else shared)
            if copy is None:
                continue
            if combines:
                if inner.operation.operands[1] in outs:  # the state stands first
                    copy.operands[0], copy.operands[1] = copy.operands[1], copy.operands[0]
                if not self.ordered:
                    copy.attributes["fastmath"] = ir.Attribute.parse("#arith.fastmath<reassoc>")
            if self.small_arguments and inner.operation.name in TRIGONOMETRIC:
                copy.attributes["fastmath"] = ir.Attribute.parse("#arith.fastmath<afn>")
                if inner.operation in self.far:
                    bits = arith.bitcast(flags[0].type, math.absf(copy.operands[0]))
                    largest = bits if largest is None else arith.maxsi(largest, bits)
        if largest is not None:  # once: LLVM vectorises a loop that carries one maximum, not a chain of them
            flags = [arith.maxsi(flags[0], largest)]
        return mapping, flags

    def _is_only_reduced(self, value: ir.Value) -> bool:
        """Whether nothing sees a sum before it is whole. Of a scan by equal steps LLVM would make products of the step, 0 of
        which are NaN where the step is infinite."""
        end = list(self.block.operations)[-1].operation
        reduced = {d for d, kind in enumerate(mlir.iterators_of(self.op)) if kind == "reduction"}
        return all(
            use.owner.operation == end and not reduced & set(self.maps[self.count + use.operand_number])
            for use in value.uses
        )


def _is_check(op: ir.Operation) -> bool:
    return op.name == "cf.assert"

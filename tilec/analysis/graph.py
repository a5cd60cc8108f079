"""The planner's view of a program: its operations, their reads and results, and the work of each.

The graph is built from the `linalg.generic` operations of one function. It never becomes IR again: a decision names an
operation by its `tilec.name`, which is unique in a function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeVar

from tilec.analysis import products
from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.isomorphic import Found, StructuralCache
from tilec.analysis.operation_costs import FREE, SPECIAL, cost_of, instructions_of, issued, shared_operations
from tilec.analysis.products import factors_of
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.structure import structure_of

T = TypeVar("T")


@dataclass(frozen=True)
class Read:
    """An operand read at bare indices: dimension `dims[p]` of the operation subscripts dimension p of `value`."""

    value: ir.Value
    dims: tuple[int, ...]


@dataclass(eq=False)
class Node:
    """One operation. `extracts` are tensors that its body reads at computed subscripts, and `sources` computed ones that it reads
    in another shape: both must be in memory."""

    name: str
    op: ir.Operation
    extents: tuple[int, ...]
    reduced: frozenset[int]
    reads: list[Read]
    extracts: list[ir.Value]
    sources: list[ir.Value]
    results: list[Read]
    flops: float
    special: float
    scan: int | None
    line: tuple[str, int] | None
    structure: int  # see `tilec/analysis/isomorphic.py`
    outside: tuple[ir.Value, ...]  # the values from outside that the operation uses, each once
    facts: dict[Hashable, Any] = field(default_factory=dict, repr=False)  # of all operations of its structure
    own_facts: dict[Hashable, Any] = field(default_factory=dict, repr=False)  # of its operation, such as what values it has
    size: int = 0  # operations that its loops hold, those that are inlined among them: what compiling it takes
    instructions: float = 0  # of a GPU, for each element
    part: bool = False  # makes the parts of a split reduction
    inlined: bool = False
    contraction: Contraction | None = None
    vector_product: Contraction | None = None  # one of a single row or column, which is a contraction in a chain alone

    @cached_property
    def terms(self) -> BodyTerms:
        """Of the values of its body."""
        return BodyTerms(self.op)

    @property
    def iterations(self) -> int:
        return prod(self.extents)

    @property
    def elementwise(self) -> bool:
        return not self.reduced

    @property
    def has_checks(self) -> bool:
        """Whether its own kernel carries out run-time checks, beside what it computes."""
        return any(o.name == "cf.assert" for o in mlir.traverse(self.op))

    @property
    def values(self) -> list[ir.Value]:
        """The tensors that it reads, in any way."""
        return [r.value for r in self.reads] + self.extracts + self.sources

    @property
    def gathered(self) -> list[ir.Value]:
        """Those of `extracts` that no read shows in another shape: the others are the same memory."""
        shown = {source for r in self.reads for source in mlir.sources_of(r.value) if source != r.value}
        return [v for v in self.extracts if v not in shown]

    @property
    def operations(self) -> float:
        """Scalar operations in all, special functions counted by their expansions."""
        return self.iterations * (self.flops + 15 * self.special)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Contraction:
    """A sum of products of two factors: which dimensions only the left, only the right, both or neither keep.

    `left` and `right` are the factors as values in the body; `m`, `n`, `batch` are parallel dimensions, `k` reduced ones.
    """

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    batch: tuple[int, ...]
    left: ir.Value
    right: ir.Value

    @property
    def integer(self) -> bool:
        return isinstance(self.left.type, ir.IntegerType)


@dataclass
class Graph:
    """The operations of one function in order, and which of its values are results. `may_pack`: whether kernels are weighed with
    factors that are stored for them first. `inserted`: its values that are parts of others, which kernels store there."""

    nodes: list[Node]
    producer: dict[ir.Value, Node]
    returned: list[ir.Value]
    inputs: list[ir.Value]
    names: dict[ir.Value, str] = field(default_factory=dict)
    approximate: Mapping[ir.Operation, str] = field(default_factory=dict)
    cache: StructuralCache = field(default_factory=StructuralCache)
    may_pack: bool = True
    inserted: Set[ir.Value] = frozenset()

    def __post_init__(self) -> None:
        self.position = {n: k for k, n in enumerate(self.nodes)}
        self._returned = set(self.returned)
        self._readers: dict[ir.Value, set[Node]] = {}
        for node in self.nodes:
            for value in node.values:
                self._readers.setdefault(value, set()).add(node)
        self._producers: dict[Node, tuple[Node, ...]] = {}
        self._consumers: dict[Node, tuple[Node, ...]] = {}
        self._awaited: dict[Node, tuple[Node, ...]] = {}
        self._inlined: dict[Node, tuple[Node, ...]] = {}
        self._values: dict[Node, tuple[list[int], list[int]]] = {}
        self._numbers: dict[ir.Value, int] = {}
        self._made: list[tuple[Hashable, list[int]]] = []

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self.position.__getitem__)

    def consumers(self, node: Node) -> tuple[Node, ...]:
        """Those that read a result of `node`, in order; inlined operations read through their readers."""
        if (found := self._consumers.get(node)) is None:
            readers = {n for r in node.results for n in self._readers.get(r.value, ())}
            found = self._consumers[node] = tuple(self.in_order(readers))
        return found

    def producers(self, node: Node) -> tuple[Node, ...]:
        """Those that make what `node` reads."""
        if (found := self._producers.get(node)) is None:
            makers = (self.producer[v] for v in node.values if v in self.producer)
            found = self._producers[node] = tuple(dict.fromkeys(makers))
        return found

    def awaited(self, node: Node) -> tuple[Node, ...]:
        """Those that make what `node` reads, and of which all blocks must be complete before: parts of a reduction, unless `node`
        makes the same ones of another, and what is read at computed subscripts."""
        if (found := self._awaited.get(node)) is None:
            computed = {self.producer.get(value) for value in (*node.extracts, *node.sources)}
            found = self._awaited[node] = tuple([p for p in self.producers(node) if (p.part and not node.part) or p in computed])
        return found

    def is_result(self, value: ir.Value) -> bool:
        """Whether a value is a result of the program."""
        return value in self._returned

    def is_returned(self, node: Node) -> bool:
        return any(r.value in self._returned for r in node.results)

    def maker_in(self, nodes: Collection[Node], value: ir.Value) -> tuple[ir.Operation, int] | None:
        """The operation that makes a value, and which of its results that is, if it is of the nodes or inlined."""
        node = self.producer.get(value)
        if node is None or not (node.inlined or node in nodes):
            return None
        return node.op, next(k for k, r in enumerate(node.results) if r.value == value)

    def leaves(self, value: ir.Value, nodes: Set[Node]) -> bool:
        """Whether a value is returned, or read by a node that is not among `nodes`."""
        return value in self._returned or not self._readers.get(value, set()) <= nodes

    def memoise(self, what: Hashable, nodes: Sequence[Node], find: Callable[[], T]) -> Found[T]:
        """The result of `find`, which depends on `what`, the nodes with what is computed inside them, their order, the
        types of what they read, and which of their results leave them. It must not depend on names, or on the rest of
        the graph."""
        return self.cache.memoise((what, self.key(nodes)), tuple(n.name for n in nodes), find)

    def key(self, nodes: Sequence[Node]) -> Hashable:
        """Equal for isomorphic nodes."""
        inside, numbers, rows = set(nodes), dict[int, int](), list[Hashable]()

        def number_of(value: int) -> int:
            if (number := numbers.get(value)) is None:
                made, values = self._made[value]
                rows.append((made, tuple([number_of(v) for v in values])))
                number = numbers[value] = len(numbers)
            return number

        for node in self._with_inlined(nodes):
            outside, results = self._values_of(node)
            read = tuple([number_of(v) for v in outside])
            leaving = tuple([(self.is_result(r.value), self.leaves(r.value, inside)) for r in node.results])
            contraction = node.contraction is not None, node.vector_product is not None
            rows.append((node.structure, read, leaving, contraction, node.inlined, node.part, node in inside))
            for v in results:
                numbers[v] = len(numbers)
        return tuple(rows)

    def _values_of(self, node: Node) -> tuple[list[int], list[int]]:
        """The values that an operation uses from outside, and its results, as numbers: `key` asks for them often."""
        if (found := self._values.get(node)) is None:
            own = [self._number(v) for v in node.outside], [self._number(r.value) for r in node.results]
            found = self._values[node] = own
        return found

    def _number(self, value: ir.Value) -> int:
        """Of a value in this graph. `_made` has what makes each; and what this reads, if it is no node, such as a tensor in another
        shape."""
        if (found := self._numbers.get(value)) is None:
            owner, maker = mlir.definition(value), self.producer.get(value)
            values: Sequence[ir.Value] = ()
            made: Hashable = maker and mlir.get_integer(maker.op, "tilec.stored"), maker is not None
            if maker is None and owner is not None:
                structure, values = structure_of(owner)
                made = self.cache.number(structure)
            read = [self._number(v) for v in values]
            found = self._numbers[value] = len(self._made)
            self._made.append((made, read))
        return found

    def _with_inlined(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes, and before each the operations that it computes anew."""
        return list(dict.fromkeys(n for node in nodes for n in self._inlined_in(node)))

    def _inlined_in(self, node: Node) -> tuple[Node, ...]:
        """The operations that a node computes anew, and itself."""
        if (found := self._inlined.get(node)) is None:
            own, pending = {node}, [node]
            while pending:
                for value in (s for v in pending.pop().outside for s in mlir.sources_of(v)):
                    maker = self.producer.get(value)
                    if maker is not None and maker.inlined and maker not in own:
                        own.add(maker)
                        pending.append(maker)
            found = self._inlined[node] = tuple(self.in_order(own))
        return found

    def inline(self, node: Node, consumers: Sequence[Node]) -> None:
        """Has `consumers`, which are all that read an elementwise `node`, compute it where they read it."""
        for consumer in consumers:
            _inline_into(node, consumer)
        node.inlined = True
        self._inlined.clear()
        self._readers.pop(node.results[0].value, None)
        for value in dict.fromkeys(node.values):
            self._readers[value].remove(node)
            self._readers[value].update(consumers)
        for changed in (node, *self.producers(node)):
            self._consumers.pop(changed, None)
        for changed in consumers:
            self._producers.pop(changed, None)
            self._awaited.pop(changed, None)


def reads_per_element(value: ir.Value, node: Node) -> int:
    """The number of subscripts at which a node reads a value for each element: two for `a[i, j] + a[j, i]`."""
    return sum(r.value == value for r in node.reads)


def _inline_into(node: Node, consumer: Node) -> None:
    (result,) = node.results
    reads = []
    for read in consumer.reads:
        if read.value != result.value:
            reads.append(read)
            continue
        dim_of = dict(zip(result.dims, read.dims))
        reads += [Read(r.value, tuple(dim_of[d] for d in r.dims)) for r in node.reads]
    times = max(1, reads_per_element(result.value, consumer))
    consumer.reads = list(dict.fromkeys(reads))
    consumer.extracts = consumer.extracts + node.extracts
    consumer.sources = consumer.sources + node.sources
    consumer.size += times * node.size
    consumer.flops += times * node.flops
    consumer.special += times * node.special
    # values that many elements share are computed once: compilers move them out of the innermost loop
    consumer.instructions += times * node.instructions * min(1.0, node.iterations / max(1, consumer.iterations))


def build_graph(
    function: ir.Operation, approximate: Mapping[ir.Operation, str] | None = None, cache: StructuralCache | None = None
) -> Graph:  # fmt: skip
    """`approximate` are operations that take fewer instructions than others of their name, see `tilec/analysis/precision.py`.
    `cache`: what is known from another graph of the program."""
    block, cache = function.regions[0].blocks[0], cache or StructuralCache()
    nodes, returned, inserted = [], [], set[ir.Value]()
    for view in block.operations:
        op = view.operation
        if mlir.is_generic(op):
            nodes.append(_node(op, approximate or {}, cache))
        elif op.name == "tensor.insert_slice":
            inserted.add(op.operands[0])
        elif op.name == "func.return":
            returned = list(dict.fromkeys(v for value in op.operands for v in (value, *mlir.sources_of(value))))
    producer = {r.value: n for n in nodes for r in n.results}
    return Graph(nodes, producer, returned, list(block.arguments), approximate=approximate or {}, cache=cache, inserted=inserted)


def _node(op: ir.Operation, approximate: Mapping[ir.Operation, str], cache: StructuralCache) -> Node:
    structure, outside = cache.structure(op, approximate)
    facts = cache.facts(structure)
    if "node" not in facts:
        facts["node"] = _pattern(op, approximate, outside)
    pattern: _Pattern = facts["node"]
    inputs = mlir.inputs_of(op)
    read = [*(inputs[n] for n, _ in pattern.reads), *(outside[n] for n in pattern.extracts)]
    sources = [(v, source) for v in read for source in mlir.sources_of(v)]
    node = Node(
        name=mlir.get_string(op, "tilec.name") or "op",
        op=op,
        reads=[Read(inputs[n], dims) for n, dims in pattern.reads],
        extracts=[outside[n] for n in pattern.extracts],
        sources=[source for v, source in sources if source != v and mlir.definition(source)],
        results=[Read(v, dims) for v, dims in zip(op.results, pattern.results)],
        line=mlir.source_line(op),
        structure=structure,
        outside=outside,
        facts=facts,
        **pattern.numbers,
    )
    if "contraction" not in facts:
        facts["contraction"] = _contraction(node)
    found = facts["contraction"]
    if found is not None and (factors := factors_of(op)) is not None:
        found = replace(found, left=factors[0], right=factors[1])
    single = found is not None and any(prod(node.extents[d] for d in side) == 1 for side in (found.m, found.n))
    node.contraction, node.vector_product = (None, found) if single else (found, None)
    return node


@dataclass(frozen=True)
class _Pattern:
    """The nodes of one structure: which inputs and values from outside they read, dimensions of the results, and further fields."""

    reads: list[tuple[int, tuple[int, ...]]]
    extracts: list[int]
    results: list[tuple[int, ...]]
    numbers: dict[str, Any]


def _pattern(op: ir.Operation, approximate: Mapping[ir.Operation, str], outside: tuple[ir.Value, ...]) -> _Pattern:
    inputs, dims = mlir.inputs_of(op), [tuple(mlir.map_dims(m)) for m in mlir.maps_of(op)]
    arguments, body = list(mlir.body_of(op).arguments), [o.operation for o in mlir.body_of(op).operations]
    used = {v for inner in mlir.traverse(op) for v in inner.operands}
    shared, offset = shared_operations(op), {v: n for n, v in enumerate(outside)}
    numbers = {
        "extents": tuple(mlir.extents_of(op)),
        "reduced": frozenset(d for d, kind in enumerate(mlir.iterators_of(op)) if kind == "reduction"),
        "flops": sum(cost_of(inner) / shared.get(inner, 1) for inner in body),
        "special": sum(inner.name in SPECIAL for inner in body),
        "instructions": sum(instructions_of(inner, approximate) / shared.get(inner, 1) for inner in issued(op)),
        "size": sum(inner.name not in FREE for inner in mlir.traverse(op)),
        "scan": mlir.get_integer(op, "tilec.scan"),
        "part": "tilec.part" in op.attributes,
    }
    return _Pattern(
        [(n, dims[n]) for n, v in enumerate(inputs) if arguments[n] in used and not mlir.is_empty(v)],
        [offset[inner.operands[0]] for inner in body if inner.name == "tensor.extract"],
        dims[len(inputs) :],
        numbers,
    )


def _contraction(node: Node) -> Contraction | None:
    """Recognises `sum(f * g)` where f and g each keep dimensions that the other does not: data that tiles can reuse. A vector's
    elements meet each of a matrix once: nothing to reuse (`Node.vector_product`)."""
    if mlir.get_string(node.op, "tilec.reduce") != "sum" or node.scan is not None or len(node.results) != 1:
        return None
    if (factors := factors_of(node.op)) is None:
        return None
    left, right = factors
    if isinstance(left.type, ir.IntegerType) and str(left.type) != "i32":
        return None
    dims = [dims_of(v, node) for v in (left, right)]
    parallel = set(range(len(node.extents))) - node.reduced
    k = node.reduced
    if not k or any(not {d} <= dims[0] & dims[1] for d in k if node.extents[d] != 1):
        return None  # a window of one element leaves no trace in the subscripts
    m, n = (dims[0] - dims[1]) & parallel, (dims[1] - dims[0]) & parallel
    batch = parallel - m - n
    return Contraction(tuple(sorted(m)), tuple(sorted(n)), tuple(sorted(k)), tuple(sorted(batch)), left, right)


def element_bytes(type_: mlir.Element | ir.Type) -> int:
    """Of an element type, or of the elements of a shaped type."""
    element = ir.ShapedType(type_).element_type if isinstance(type_, ir.ShapedType) else type_
    return max(1, element.width // 8) if isinstance(element, ir.IntegerType | ir.FloatType) else 8  # an index


def dims_of(value: ir.Value, node: Node) -> frozenset[int]:
    """The iteration dimensions that a value of an operation's body depends on."""
    return products.dims_of(mlir.body_of(node.op), value, [mlir.map_dims(m) for m in mlir.maps_of(node.op)])

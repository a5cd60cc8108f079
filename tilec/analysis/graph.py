"""The planner's view of a program: its operations, their reads and results, and the work of each.

The graph is built from the `linalg.generic` operations of one function. It never becomes IR again: a decision names an
operation by its `tilec.name`, which is unique in a function.
"""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from math import prod

from tilec.analysis import products
from tilec.analysis.lane_invariance import find_lane_invariance
from tilec.analysis.precision import SAVED
from tilec.analysis.products import factors_of
from tilec.core import mlir
from tilec.core.functions import FUNCTIONS, POWER
from tilec.core.mlir import ir

# Floating-point operations (or issue slots) of one operation; others cost 1.
VECTOR = 8  # elements of the widest access
_COST = {
    "arith.divf": 8,
    "arith.remf": 20,
    "math.sqrt": 8,
    "math.rsqrt": 8,
    "math.powf": 60,
    "math.tanh": 25,
    "math.erf": 25,
}
_FREE = {
    "linalg.index",
    "linalg.yield",
    "arith.constant",
    "arith.index_cast",
    "affine.apply",
    "arith.extf",
    "arith.truncf",
}
_GPU_COST = {row.mlir: row.cost for row in (*FUNCTIONS.values(), POWER) if row.mlir.startswith("math.")} | {
    "arith.divf": 8, "arith.remf": 20, "arith.extf": 1, "arith.truncf": 0.5, "arith.minimumf": 2, "arith.maximumf": 2,
}  # fmt: skip
_SPECIAL = {
    "math.exp",
    "math.exp2",
    "math.expm1",
    "math.log",
    "math.log2",
    "math.log1p",
    "math.sin",
    "math.cos",
    "math.tan",
}


@dataclass(frozen=True)
class Read:
    """An operand read at bare indices: dimension `dims[p]` of the operation subscripts dimension p of `value`."""

    value: ir.Value
    dims: tuple[int, ...]


@dataclass(eq=False)
class Node:
    """One operation. `extracts` are tensors that its body reads at computed subscripts."""

    name: str
    op: ir.Operation
    extents: tuple[int, ...]
    reduced: frozenset[int]
    reads: list[Read]
    extracts: list[ir.Value]
    results: list[Read]
    flops: float
    special: float
    scan: int | None
    line: tuple[str, int] | None
    size: int = 0  # operations that its loops hold, those that are inlined among them: what compiling it takes
    instructions: float = 0  # of a GPU, for each element
    part: bool = False  # makes the parts of a split reduction
    inlined: bool = False
    contraction: Contraction | None = None
    vector_product: Contraction | None = None  # one of a single row or column, which is a contraction in a chain alone

    @property
    def iterations(self) -> int:
        return prod(self.extents)

    @property
    def elementwise(self) -> bool:
        return not self.reduced

    @property
    def values(self) -> list[ir.Value]:
        """The tensors that it reads, in either way."""
        return [r.value for r in self.reads] + self.extracts

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
    """The operations of one function in order, and which of its values are results."""

    nodes: list[Node]
    producer: dict[ir.Value, Node]
    returned: list[ir.Value]
    inputs: list[ir.Value]
    names: dict[ir.Value, str] = field(default_factory=dict)
    approximate: Mapping[ir.Operation, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.position = {n: k for k, n in enumerate(self.nodes)}
        self._returned = set(self.returned)
        self._readers: dict[ir.Value, set[Node]] = {}
        for node in self.nodes:
            for value in node.values:
                self._readers.setdefault(value, set()).add(node)

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self.position.__getitem__)

    def consumers(self, node: Node) -> list[Node]:
        """Those that read a result of `node`, in order; inlined operations read through their readers."""
        return self.in_order({n for r in node.results for n in self._readers.get(r.value, ())})

    def producers(self, node: Node) -> list[Node]:
        return list(dict.fromkeys(self.producer[v] for v in node.values if v in self.producer))

    def is_returned(self, node: Node) -> bool:
        return any(r.value in self._returned for r in node.results)

    def leaves(self, value: ir.Value, nodes: Set[Node]) -> bool:
        """Whether a value is returned, or read by a node that is not among `nodes`."""
        return value in self._returned or not self._readers.get(value, set()) <= nodes

    def inline(self, node: Node, consumers: list[Node]) -> None:
        """Has `consumers`, which are all that read an elementwise `node`, compute it where they read it."""
        for consumer in consumers:
            _inline_into(node, consumer)
        node.inlined = True
        self._readers.pop(node.results[0].value, None)
        for value in dict.fromkeys(node.values):
            self._readers[value].remove(node)
            self._readers[value].update(consumers)


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
    consumer.size += times * node.size
    consumer.flops += times * node.flops
    consumer.special += times * node.special
    # values that many elements share are computed once: compilers move them out of the innermost loop
    consumer.instructions += times * node.instructions * min(1.0, node.iterations / max(1, consumer.iterations))


def build_graph(function: ir.Operation, approximate: Mapping[ir.Operation, str] | None = None) -> Graph:
    """`approximate` are operations that take fewer instructions than others of their name, see `tilec/analysis/precision.py`."""
    block = function.regions[0].blocks[0]
    nodes, returned = [], []
    for view in block.operations:
        op = view.operation
        if mlir.is_generic(op):
            nodes.append(_node(op, approximate or {}))
        elif op.name == "func.return":
            returned = list(op.operands)
    producer = {r.value: n for n in nodes for r in n.results}
    return Graph(nodes, producer, returned, list(block.arguments), approximate=approximate or {})


def _node(op: ir.Operation, approximate: Mapping[ir.Operation, str]) -> Node:
    inputs, maps = mlir.inputs_of(op), mlir.maps_of(op)
    iterators = mlir.iterators_of(op)
    body = list(mlir.body_of(op).operations)
    reads = [Read(v, tuple(mlir.map_dims(m))) for v, m in zip(inputs, maps) if not _is_empty(v)]
    used = {v for inner in mlir.traverse(op) for v in inner.operands}
    live = [
        r for r, a in zip(_padded(inputs, maps), mlir.body_of(op).arguments) if a in used and not _is_empty(r.value)
    ]
    reshaped = [
        v for v in (mlir.source_of(r.value) for r in live if mlir.source_of(r.value) != r.value) if mlir.definition(v)
    ]
    together = _together(op)
    node = Node(
        name=mlir.get_string(op, "tilec.name") or "op",
        op=op,
        extents=tuple(mlir.extents_of(op)),
        reduced=frozenset(d for d, kind in enumerate(iterators) if kind == "reduction"),
        reads=live or reads[:0],
        # tensors that are read in another shape, or at computed subscripts, must be in memory
        extracts=[inner.operation.operands[0] for inner in body if inner.operation.name == "tensor.extract"] + reshaped,
        results=[Read(v, tuple(mlir.map_dims(m))) for v, m in zip(op.results, maps[len(inputs) :])],
        flops=sum(_cost(inner.operation) / together.get(inner.operation, 1) for inner in body),
        special=sum(inner.operation.name in _SPECIAL for inner in body),
        instructions=sum(
            (_instructions(inner) - SAVED.get(approximate.get(inner), 0)) / together.get(inner, 1)
            for inner in _issued(op)
        ),
        size=sum(inner.name not in _FREE for inner in mlir.traverse(op)),
        scan=mlir.get_integer(op, "tilec.scan"),
        line=mlir.source_line(op),
        part="tilec.part" in op.attributes,
    )
    found = _contraction(node)
    single = found is not None and any(prod(node.extents[d] for d in side) == 1 for side in (found.m, found.n))
    node.contraction, node.vector_product = (None, found) if single else (found, None)
    return node


def _together(op: ir.Operation) -> dict[ir.Operation, int]:
    """Over how many elements side by side an operation of the body is shared, where it is: see
    `tilec/analysis/lane_invariance.py`."""
    last, block = len(mlir.iterators_of(op)) - 1, mlir.body_of(op)
    maps = dict(zip(block.arguments, mlir.maps_of(op)))

    def is_last(value: ir.Value) -> bool:
        owner = mlir.definition(value)
        return (
            owner is not None and owner.name == "linalg.index" and ir.IntegerAttr(owner.attributes["dim"]).value == last
        )

    extent = mlir.extents_of(op)[last] if last >= 0 else 0
    found = find_lane_invariance(block, is_last, lambda a: last in mlir.map_dims(maps[a]), max(1, extent & -extent))
    return dict.fromkeys(found.once, found.size) if found.once else _same_in_vectors(op, maps)


def _same_in_vectors(op: ir.Operation, maps: dict[ir.Value, ir.AffineMap]) -> dict[ir.Operation, int]:
    """Operations that are the same for all elements of a vector, where vectors lie along the last subscript of all accesses at
    computed subscripts: the subscripts themselves, and the conditions of padding."""
    body = mlir.body_of(op)
    lasts = [mlir.definition(list(o.operands)[-1]) for o in body.operations if o.operation.name == "tensor.extract"]
    lanes = {products.index_dim(o) if o is not None and o.name == "linalg.index" else None for o in lasts}
    if len(lanes) != 1 or None in lanes:
        return {}
    (lane,) = lanes
    operand_dims = [mlir.map_dims(m) for m in maps.values()]
    extent = mlir.extents_of(op)[lane]
    shared = [o.operation for o in body.operations if len(o.results) == 1]
    found = [o for o in shared if lane not in products.dims_of(body, o.results[0], operand_dims)]
    return dict.fromkeys(found, max(1, min(VECTOR, extent & -extent)))


def _padded(inputs: list[ir.Value], maps: list[ir.AffineMap]) -> list[Read]:
    return [Read(v, tuple(mlir.map_dims(m))) for v, m in zip(inputs, maps)]


def _is_empty(value: ir.Value) -> bool:
    owner = mlir.definition(value)
    return owner is not None and owner.name == "tensor.empty"


def _issued(op: ir.Operation) -> list[ir.Operation]:
    """The operations of a body that a GPU's threads carry out. A reduction that keeps a place is met by each thread in ascending
    order (`passes/cuda/threaded/argreduce.py`): the comparisons that break ties between places are dropped."""
    block = mlir.body_of(op)
    (*inner, end) = [o.operation for o in block.operations]
    states = list(block.arguments)[len(mlir.inputs_of(op)) :] if "reduction" in mlir.iterators_of(op) else []
    false = {o.results[0] for o in inner if o.name == "arith.cmpi" and not {*states}.isdisjoint(o.operands)}
    for o in inner if false else ():
        if o.name == "arith.andi" and not false.isdisjoint(o.operands):
            false.add(o.results[0])
    needed = {*end.operands}
    for o in reversed(inner):
        if not needed.isdisjoint(o.results) or not len(o.results):
            needed |= {v for v in mlir.operands_of(o) if v not in false}
    return [o for o in inner if (o.results and o.results[0] in needed - false) or not len(o.results)]


def _cost(op: ir.Operation) -> float:
    if op.name in _FREE or op.name in _SPECIAL:
        return 0
    return _COST.get(op.name, 1)


def instructions_of(op: ir.Operation, approximate: Mapping[ir.Operation, str]) -> float:
    """Those of one operation on a GPU, in its approximate form if it has one."""
    return _instructions(op) - SAVED.get(approximate.get(op, ""), 0)


def _instructions(op: ir.Operation) -> float:
    return _GPU_COST.get(op.name, 0 if op.name in _FREE else 1)


# ---- contractions ----------------------------------------------------------------------------------------------------


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


def dims_of(value: ir.Value, node: Node) -> frozenset[int]:
    """The iteration dimensions that a value of an operation's body depends on."""
    return products.dims_of(mlir.body_of(node.op), value, [mlir.map_dims(m) for m in mlir.maps_of(node.op)])


# ---- directions of memory --------------------------------------------------------------------------------------------

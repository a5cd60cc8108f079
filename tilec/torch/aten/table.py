"""The table of translators, and what one of them is called with: a node with its arguments by name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilec.core.dtypes import DTYPES, OTHER_NAMES
from tilec.torch.aliases import arguments, only_readers, readers, schema_of
from tilec.torch.extents import current, extent
from tilec.torch.extents import shape as extents_of
from tilec.torch.indices import Index
from tilec.torch.program import Graph, Tensor, Unsupported, literal

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

Value = Any  # a tensor, a tuple of them, a Python number or None
Translator = Callable[["Call"], Value]


@dataclass(frozen=True)
class Row:
    """What is known of an operation: its translator, or why it is `refused`, and what others ask about it."""

    translate: Translator | None = None
    refused: str = ""
    whole: str = ""
    """Why graphs have it, where core ATen takes PyTorch's decomposition."""
    smooth: bool = False
    """A value may enter it unrounded: its rounding to 16 bits would be an error, and nobody's intention."""
    shows: str = ""
    """"order" if the result has the elements of the first argument, each of them once or several times in a row, "elements" if it
    has them in another order."""
    casts: bool = False
    """The result has the elements in another type."""
    concatenates: bool = False
    """It puts tensors together, or replaces a part of one, and reads each element that it needs once."""
    linear: bool = False
    """Arithmetic that a join may contain."""
    product: bool = False
    """A product of matrices whose factors are its last two tensors."""
    softmax: bool = False
    switch: str = ""
    """"conv" or "matmul": of PyTorch's switches, which one allows factors of f32 to be rounded (`tilec/torch/precision.py`)."""


ONE = "one expression here, where PyTorch's decomposition stores several tensors"
SUMS = "positions are sums of indices, where PyTorch's decomposition gathers at computed ones"
TABLE: dict[str, Row] = {}
UNKNOWN = Row(refused="not translated")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NARROW = ("f16", "bf16", "f8e4m3", "f8e5m2")

UNROUNDED = "tilec_unrounded"
"""Of nodes whose results kernels are to keep on chip: a cast to a wider type takes their digits from before they are rounded."""
ROUNDED = "tilec_rounded"
"""Of products of f32: the type that PyTorch's switches allow their factors to be rounded to (`tilec/torch/precision.py`)."""
MOST_JOINED = 8  # operations, one in another

_TYPES = {"torch.bool": "bool", "torch.float8_e4m3fn": "f8e4m3", "torch.float8_e5m2": "f8e5m2"}


def expresses(names: str, **properties: Any) -> Callable[[Translator], Translator]:
    """Registers a translator of ATen operations by their names, all overloads, with properties of their rows."""

    def add(function: Translator) -> Translator:
        TABLE.update(dict.fromkeys(names.split(), Row(function, **properties)))
        return function

    return add


def refused(reason: str, names: str) -> None:
    """Registers why operations are not supported."""
    TABLE.update(dict.fromkeys(names.split(), Row(refused=reason)))


def dtype_of(dtype: torch.dtype) -> str:
    """The language's name of one of torch's types."""
    text = str(dtype)
    name = _TYPES.get(text) or OTHER_NAMES.get(text.removeprefix("torch."))
    if name is None or name not in DTYPES:
        raise Unsupported(f"type {text.removeprefix('torch.')}")
    return name


def op_name(node: Node) -> str:
    """`add` of `aten.add.Tensor`, `getitem` of Python's."""
    target = node.target
    if target is operator.getitem:
        return "getitem"
    if (schema := schema_of(node)) is None:
        return getattr(target, "__name__", str(target))
    space, _, name = schema.name.partition("::")
    return name if space in ("aten", "prims") else schema.name


def row_of(node: Node) -> Row:
    """The row of the operation that a node is; one without properties for all else."""
    return TABLE.get(op_name(node), UNKNOWN) if node.op == "call_function" else UNKNOWN


def translator(node: Node) -> Translator:
    row = row_of(node)
    if row.translate is None:
        raise Unsupported(f"{op_name(node)}: {row.refused}")
    return row.translate


def statement_name(node: Node) -> str:
    return node.name.lstrip("_") if node.name.lstrip("_")[:1].isalpha() else f"t_{node.name}"


class Call:
    """One node: `call["dim"]` is an argument by its name in the schema, with nodes replaced by their values."""

    def __init__(self, graph: Graph, node: Node, values: Mapping[Node, Value]):
        self.graph, self.node, self.name = graph, node, op_name(node)
        self.meta: Any = node.meta.get("val")
        look = values.__getitem__
        self.args = _replaced(node.args, look)
        for read in node.all_input_nodes:
            _check(read.meta.get("val"))
        _check(self.meta)
        given = arguments(node) if schema_of(node) is not None else {}
        self.named = {name: _replaced(value, look) for name, value in given.items()}

    def __getitem__(self, name: str) -> Value:
        return self.named[name]

    def get(self, name: str, otherwise: Value = None) -> Value:
        return self.named.get(name, otherwise)

    def __contains__(self, name: str) -> bool:
        return name in self.named

    @property
    def shape(self) -> tuple[int, ...]:
        return extents_of(self.meta.shape)

    @property
    def dtype(self) -> str:
        return dtype_of(self.meta.dtype)

    @property
    def device(self) -> torch.device:
        """PyTorch's, of what is computed."""
        return (self.meta[0] if isinstance(self.meta, tuple | list) else self.meta).device

    def results(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and types of several results."""
        return [self.typed(m) for m in self.meta]

    @staticmethod
    def typed(meta: torch.Tensor) -> tuple[tuple[int, ...], str]:
        return extents_of(meta.shape), dtype_of(meta.dtype)

    def reads(self, number: int) -> bool:
        """Whether something may read one of several results."""
        users = self.node.users
        return not users or any(op_name(u) != "getitem" or u.args[1] == number for u in users)

    def emit(
        self, shape: Sequence[int], dtype: str, expression: Callable[[list[Index]], str] | str, whole: Sequence[int] = ()
    ) -> Tensor:
        """A result: of 16 bits, unrounded if its one reader may have it so."""
        if dtype in ("f16", "bf16") and stays_wide(self.node):
            return self.graph.emit(shape, "f32", expression, dtype, whole)
        return self.graph.emit(shape, dtype, expression, whole=whole)

    def joined(self) -> bool:
        """Whether the one reader joins it with others, or has it as a part: it reads the element that it needs. So does arithmetic
        whose own one reader does, such as that of rotary positions on a part of each head."""
        node, most = self.node, MOST_JOINED
        for user in only_readers(node):
            row = row_of(user)
            if row.concatenates:
                return True
            if not row.shows:
                if not row.linear or list(user.args).count(node) > 1 or not most:
                    return False
                if (
                    user.meta["val"].numel() != node.meta["val"].numel()
                ):  # broadcast, it would be computed more than once
                    return False
                most -= 1
            node = user
        return False

    def formula(self, shape: Sequence[int], dtype: str, expression: Callable[[Sequence[Index]], str]) -> Tensor:
        """A result that nothing stores, of 16 bits unrounded."""
        wide = "f32" if dtype in ("f16", "bf16") else dtype
        return Tensor("", tuple(shape), wide, dtype if wide != dtype else "", formula=lambda i: f"({expression(i)})")

    def axes(self, dims: int | list[int] | tuple[int, ...] | None, rank: int) -> list[int]:
        """Dimensions as a list of numbers from 0: all of them where none is named."""
        if dims is None or (isinstance(dims, list | tuple) and not dims):
            return list(range(rank))
        chosen = [int(d) % rank for d in (dims if isinstance(dims, list | tuple) else [dims])] if rank else []
        if len({*chosen}) < len(chosen):
            raise Unsupported("a dimension that is named twice")
        return sorted(chosen)

    def checked(self, made: Value) -> Value:
        """Shapes are PyTorch's: a translator that has another one is wrong."""
        pairs = zip(made, self.meta) if isinstance(made, tuple) else [(made, self.meta)]
        for mine, theirs in pairs:
            if isinstance(mine, Tensor) and hasattr(theirs, "shape"):
                assert mine.shape == extents_of(theirs.shape), (self.node.format_node(), mine, theirs.shape)
                assert mine.torch_dtype == dtype_of(theirs.dtype), (self.node.format_node(), mine, theirs.dtype)
        return made


def stays_wide(node: Node) -> bool:
    """Whether a result of 16 bits has one reader in the graph, and that one computes with its digits: an expression of several
    operations is rounded once, as in Inductor. Weights of a softmax go into their product so."""
    are_weights = row_of(node).softmax
    for user in only_readers(node):
        row = row_of(user)
        if _scales_factor(user):
            return False
        if row.shows:
            node = user
            continue
        if row.casts and node.meta.get(UNROUNDED):
            return True
        return row.smooth or (are_weights and row.product and user.args[-2] is node)
    return False


def rounds_operation(node: Node) -> bool:
    """Whether a cast is how PyTorch's decomposition rounds an operation of 16 bits that it computes in f32.

    Its result is then rounded as that of any operation of 16 bits. A cast that the model asks for is a rounding that is meant.
    What is cast is followed back through the decomposition: it is such an operation if all floats that enter it have the
    cast's type.
    """
    whole, narrow = str(node.meta.get("original_aten")), node.meta["val"].dtype  # copies of operators are not equal
    pending: list[Node] = [*node.all_input_nodes]
    found: set[Node] = set()
    if whole in ("None", str(node.target)):
        return False
    while pending:
        made = pending.pop()
        dtype = getattr(made.meta.get("val"), "dtype", None)
        if made in found or dtype is None or not dtype.is_floating_point or dtype == narrow:
            continue
        if made.op != "call_function" or str(made.meta.get("original_aten")) != whole:
            return False
        found.add(made)
        pending += made.all_input_nodes
    return True


def read_wide(node: Node) -> bool:
    """Whether all readers, by views, compute with a result's digits, or cast it to a wider type."""
    return all(row_of(n).smooth or row_of(n).casts for n in readers(node, shows))


def shows(node: Node) -> bool:
    """Whether the operation's result has the elements of its first argument."""
    return bool(row_of(node).shows)


def _scales_factor(node: Node) -> bool:
    """Whether it multiplies a factor of a product by a number: the product reads what is multiplied (`Tensor.origin`)."""
    if op_name(node) not in ("mul", "div") or type(node.args[1]).__name__ == "Node":
        return False
    return any(row_of(n).product for n in readers(node, shows))


def rounded_to(node: Node) -> str:
    """The type of 16 bits that the one reader of a result casts it to, or nothing."""
    for user in only_readers(node):
        if row_of(user).casts:
            dtype = dtype_of(user.meta["val"].dtype)
            return dtype if dtype in ("f16", "bf16") else ""
        if not shows(user):
            return ""
    return ""


def operand(x: Tensor | float | int | bool, compute: str, access: Callable[[Tensor], str]) -> str:
    """Text of an operand in a computation of type `compute`: a cast where the language would take another type than PyTorch."""
    if not isinstance(x, Tensor):
        return literal(x, compute)
    text = access(x)
    wide = "f32" if compute in NARROW else compute
    same = x.dtype == wide or (wide == "f32" and x.dtype in NARROW)
    return text if same else f"{wide}({text})"


FINDING = "finding"
"""In a node's `meta`, and in that of its copies in the graphs of partitions: what `constants.patterns` found about its elements."""


def scratch(node: Node) -> tuple[Graph, Mapping[Node, Value]]:
    """A graph whose inputs are what the node reads, but for what follows from numbers alone."""
    graph = Graph()
    return graph, {read: _given(graph, read) for read in node.all_input_nodes}


def _given(graph: Graph, read: Node) -> Value:
    found, value = read.meta.get(FINDING), read.meta.get("val")
    if found is not None and found.like is value and found.pattern is not None:
        return found.pattern.tensor()
    return _argument(graph, read.name, value)


def _argument(graph: Graph, name: str, value: Any) -> Value:
    if isinstance(value, tuple | list):
        return tuple(_argument(graph, f"{name}_{n}", v) for n, v in enumerate(value))
    if not hasattr(value, "shape"):
        return value
    try:
        dtype = dtype_of(value.dtype)
    except Unsupported:
        return None  # the call refuses it
    if not all(isinstance(n, int) for n in value.shape):
        return None
    return graph.argument(name, value.shape, dtype)


def _check(value: Any) -> None:
    """Refuses what no tensor of a program can be."""
    if isinstance(value, tuple | list):
        for v in value:  # of several results, one may be nothing, and then nothing asks for it
            if not (hasattr(v, "shape") and all(isinstance(n, int) for n in v.shape) and 0 in v.shape):
                _check(v)
    elif hasattr(value, "shape"):
        dtype_of(value.dtype)
        if str(value.layout) != "torch.strided":
            raise Unsupported(f"layout {str(value.layout).removeprefix('torch.')}")
        if current() is None and not all(isinstance(n, int) for n in value.shape):
            raise Unsupported("a size that is known when it runs")
        if 0 in extents_of(value.shape):
            raise Unsupported("tensors without elements")
    elif type(value).__name__ == "SymInt":
        extent(value)
    elif value is not None and not isinstance(value, bool | int | float):
        raise Unsupported(f"a value of type {type(value).__name__}")


def _replaced(argument: Any, look: Callable[[Any], Value]) -> Any:
    """Nodes by their values, in nested lists too: torch's own map makes immutable lists of what it finds."""
    if isinstance(argument, list | tuple):
        return [_replaced(a, look) for a in argument]
    return look(argument) if type(argument).__name__ == "Node" else argument

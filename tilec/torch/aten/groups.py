"""Products by groups of rows, as in a mixture of experts: `offs` has the end of each group, which has a matrix of its own.

A group has as many rows as the data say, and a tile of a kernel has one matrix. So each group begins at a multiple of R places, and
a block of R places reads its rows and its matrix where these are. Places behind the end of a group repeat some row, and nothing
reads what becomes of them: a library's kernels have tiles that are as empty. R is a power of two that is no less than the rows of a
group, on average, and at most BLOCK.

    offset[e]   places before group e, less rows before it
    z[b, i, n] = sum[k](x[b * R + i - offset[g[b]], k] * w[g[b], k, n])      g[b]: the group of block b
    y[t, n]    = z[(t + offset[h[t]]) // R, (t + offset[h[t]]) % R, n]        h[t]: the group of row t
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.core.dtypes import DTYPES
from tilec.torch import indices as ix
from tilec.torch.aten import costs
from tilec.torch.aten.table import Call, Value, expresses
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, reduction

BLOCK = 128  # rows of a tile that keeps matrix units busy
LEAST = 16
UNEVEN = "groups of rows: tiles with places that hold none take longer than PyTorch's products of each group"
SUMS = "sums over groups of rows"


class Groups:
    """The groups of `count` rows, and their blocks: as many as there may be, whatever the groups are."""

    def __init__(self, call: Call, offs: Tensor, count: int):
        self.call, self.offs, self.rows, self.groups = call, offs, count, offs.shape[0]
        self.size = LEAST
        while self.size < min(BLOCK, -(-count // self.groups)):
            self.size *= 2
        filled = min(self.groups, count)
        self.blocks = max(1, (count + filled * (self.size - 1)) // self.size)

    def before(self, e: Index) -> str:
        """Rows before a group."""
        return f"({self.offs.at(e - 1)} if {e} > 0 else 0)" if self.groups > 1 else "0"

    def locate(self) -> None:
        """Writes where the blocks and the rows of groups are."""
        graph, size, last = self.call.graph, self.size, self.groups - 1
        needed = lambda e: f"(({self.offs.at(e)} - {self.before(e)} + {size - 1}) // {size})"  # noqa: E731
        total = lambda i: f"cumsum[{i[0]}]({needed(i[0])})" if last else needed(ix.number(0))  # noqa: E731
        ends = graph.emit((self.groups,), "i32", total, whole=[0])
        offset = graph.emit(
            (self.groups,), "i32", lambda i: f"({ends.at(i[0])} - {needed(i[0])}) * {size} - {self.before(i[0])}"
        )
        first = lambda e, text: f"min({reduction('sum', [self.groups], e)}, {last})" if last else text  # noqa: E731
        of_block = lambda b: first(lambda e: f"i32({ends.at(e[0])} <= {b})", "0")  # noqa: E731
        of_row = lambda t: first(lambda e: f"i32({self.offs.at(e[0])} <= {t})", "0")  # noqa: E731
        self.of_block = graph.emit((self.blocks,), "i32", lambda i: of_block(i[0]))
        self.of_row = graph.emit((self.rows,), "i32", lambda i: of_row(i[0]))
        at = lambda text: ix.opaque(text, (0, last)) if last else ix.number(0)  # noqa: E731
        self.group = lambda b: at(self.of_block.at(b))
        offset_of = lambda of, i: offset.at(at(of.at(i)))  # noqa: E731
        row = lambda i: f"{i[0] * size + i[1]} - {offset_of(self.of_block, i[0])}"  # noqa: E731
        self.row = graph.emit((self.blocks, size), "i32", lambda i: f"clamp({row(i)}, 0, {self.rows - 1})")
        most = self.blocks * size - 1
        self.of = graph.emit(
            (self.rows,), "i32", lambda i: f"clamp({i[0]} + {offset_of(self.of_row, i[0])}, 0, {most})"
        )

    def product(self, x: Tensor, w: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Each row of x times the matrix of its group; 0 for rows behind the last group. What reads a row reads its place: they are
        not put in order in memory."""
        graph, depth = self.call.graph, x.shape[1]
        self.locate()
        base, where, seen = x, self.row, x.shape[0]
        if (
            x.positions is None and (found := graph.rows.get(x.name)) is not None
        ):  # rows of another tensor, which is read instead
            base, rows = found
            given = lambda i: rows(ix.opaque(self.row.at(*i), (0, seen - 1)))  # noqa: E731
            where = graph.emit(self.row.shape, "i32", lambda i: given(i).sum_text())
        row = lambda i: ix.opaque(where.at(i[0], i[1]), (0, base.shape[0] - 1))  # noqa: E731

        def element(i: list[Index]) -> str:
            group = self.group(i[0])
            return reduction("sum", [depth], lambda k: f"{base.at(row(i), k[0])} * {w.at(group, k[0], i[2])}")

        padded = graph.emit((self.blocks, self.size, shape[1]), dtype, element)
        end = self.offs.at(ix.number(self.groups - 1))

        def taken(i: Sequence[Index]) -> str:
            position = ix.opaque(self.of.at(i[0]), (0, self.blocks * self.size - 1))
            return f"({padded.at(position // self.size, position % self.size, i[1])} if {i[0]} < {end} else 0)"

        return Tensor("", tuple(shape), dtype, formula=taken)

    def weights(self, x: Tensor, y: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
        """For each group the product of its rows of x and of y."""
        self.locate()
        end = self.offs.at(ix.number(self.groups - 1))

        def element(i: list[Index]) -> str:
            inside = lambda t: f"{self.of_row.at(t)} == {i[0]} and {t} < {end}"  # noqa: E731
            term = lambda t: f"{x.at(t, i[1])} * {y.at(t, i[2])} if {inside(t)} else 0"  # noqa: E731
            return reduction("sum", [self.rows], lambda t: term(t[0]))

        return self.call.graph.emit(shape, dtype, element)


def _pays(call: Call, groups: Groups, depth: int, width: int, looked: int, products: int = 1) -> bool:
    """Whether products of `looked` rows, of which PyTorch's multiply as many as there are, take no longer than those and PyTorch's
    launches: on the CPU, one for each of a group's products."""
    launches = costs.LAUNCHES + (products * groups.groups if call.device.type == "cpu" else 0)
    target = costs.machine(call.device.type)
    own = 2e6 * (looked - groups.rows) * depth * width / target.peak("fma.f32")
    return costs.pays(own, launches * target.launch.overhead_us)


def _rows_pay(call: Call, groups: Groups, depth: int, width: int, products: int = 1) -> bool:
    """Of rows times matrices. On a GPU, PyTorch's kernels have tiles with places that hold no row, too."""
    return call.device.type != "cpu" or _pays(call, groups, depth, width, groups.blocks * groups.size, products)


def _matrices_pay(call: Call, groups: Groups, depth: int, width: int, products: int = 1) -> bool:
    """Of the matrices' gradients, which look at each row for each group."""
    return _pays(call, groups, depth, width, groups.groups * groups.rows, products)


def _checked(x: Tensor, w: Tensor, offs: Tensor | None) -> None:
    if offs is None or len(x.shape) != 2 or len(w.shape) != 3:
        raise Unsupported("a product by groups of columns")
    if not DTYPES[x.dtype].is_float:
        raise Unsupported("a product by groups of integers")


@expresses("_grouped_mm transformers::grouped_mm_fallback")
def grouped_product(call: Call) -> Tensor:
    names = ("self", "mat2") if "mat2" in call else ("input", "weight")
    x, w, offs = call[names[0]], call[names[1]], call["offs"]
    if call.get("bias") is not None:
        raise Unsupported("a product by groups with a bias")
    if offs is not None and len(x.shape) == len(w.shape) == 2:
        found = Groups(call, offs, x.shape[1])
        if not _matrices_pay(call, found, x.shape[0], w.shape[1]):
            raise Unsupported(SUMS)
        return found.weights(x.permuted((1, 0)), w, call.shape, call.dtype)
    _checked(x, w, offs)
    found = Groups(call, offs, x.shape[0])
    if not _rows_pay(call, found, x.shape[1], w.shape[2]):
        raise Unsupported(UNEVEN)
    return found.product(x, w, call.shape, call.dtype)


@expresses("transformers::grouped_mm_fallback_backward")
def grouped_gradient(call: Call) -> Value:
    """Of the rows: a product by groups with the matrices transposed. Of the matrices: sums over the rows of each group."""
    x, w, offs, grad = (call[n] for n in ("input", "weight", "offs", "grad_output"))
    _checked(x, w, offs)
    found = Groups(call, offs, x.shape[0])
    if not _rows_pay(call, found, w.shape[2], w.shape[1], 2):
        raise Unsupported(UNEVEN)
    if not _matrices_pay(call, found, w.shape[1], w.shape[2], 2):
        raise Unsupported(SUMS)
    (rows, dtype), (matrices, _) = call.results()
    return found.product(grad, w.permuted((0, 2, 1)), rows, dtype), found.weights(x, grad, matrices, dtype)

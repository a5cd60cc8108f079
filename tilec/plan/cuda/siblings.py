"""Tiles of sibling contractions (`tilec/analysis/siblings.py`): the facts on which they must agree, and their common problem.

Results that meet share a block's columns: its right tile consists of a tile of each right factor, which the matrix units multiply
as one. Results apart have tiles of their own, so that their columns add up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilec.analysis.factor_access import FactorAccess
from tilec.analysis.graph import Graph, Node
from tilec.analysis.multiplicands import multiplicands_of, scales_of
from tilec.analysis.siblings import parts_of
from tilec.core.target import Target
from tilec.cost.block_tile import Contraction
from tilec.kernels.matrix import BYTES
from tilec.plan.cuda.contraction import SeveralProducts, Tiles, fed_problem, ranked_tiles
from tilec.plan.cuda.operands import Operand, Roles, arrange, factor_access
from tilec.plan.groups import Group


@dataclass(frozen=True)
class _Sibling:
    """One of the contractions. `locations`: where its left and its right factor lie; None for those of which that is not known."""

    node: Node
    kind: str
    locations: tuple[tuple | None, ...]
    roles: Roles
    operands: dict[str, Operand]
    problem: Contraction

    @property
    def common(self) -> tuple:
        """On which all agree."""
        fed = tuple((f.copy, f.pieces, f.stored, f.major) for f in self.operands.values())
        return self.kind, self.roles.rows, self.roles.inner, self.roles.inner_box, self.problem.two_level, fed


def sibling_tiles(g: Group, graph: Graph, target: Target) -> Tiles | str:
    """Tiles of several contractions of one left factor, or why there are none."""
    parts = [[_sibling(n, Group(part, g.space), graph, target) for n in part if n.contraction] for part in parts_of(g.nodes, graph)]
    found = [sibling for part in parts for sibling in part]
    first = found[0]
    if why := _refuse(parts, found):
        return why
    products, columns = len(parts[0]), [part[0].roles.columns for part in parts]
    most = max((s.problem for s in found), key=lambda p: (sum(p.epilogue.values()), p.reads))
    each = {unit: n / products for unit, n in most.epilogue.items()}
    whole = replace(
        first.problem, n=products * sum(prod(g.space.extents[d] for d in dims) for dims in columns), stored=1 / products,
        reads=most.reads / products, epilogue=each, sources=(first.problem.sources[0], sum(s.problem.sources[1] for s in found)),
    )  # fmt: skip
    fed = [s.operands["right"] for s in found]
    right = replace(fed[0], longest=min(f.longest for f in fed), unaligned=any(f.unaligned for f in fed))
    roles = replace(first.roles, columns=tuple(d for dims in columns for d in dims))
    several = SeveralProducts(products, tuple(map(len, columns)) if len(columns) > 1 else ())
    tiles = ranked_tiles(first.kind, roles, first.operands | {"right": right}, whole, g, graph, target, several)
    return tiles if tiles.choices else f"{_names(found)} read one factor, and no tile of warpgroups fits them together"


def _sibling(node: Node, g: Group, graph: Graph, target: Target) -> _Sibling:
    """`g`: the operations of its result."""
    kind = next((kind for kind in multiplicands_of(node, target) if kind in BYTES), "f32")
    roles, operands = arrange(node, kind, g, graph, target)
    locations = tuple(_location(factor_access(node, roles.factors[side], g)) for side in ("left", "right"))
    return _Sibling(node, kind, locations, roles, operands, fed_problem(node, kind, roles, operands, g, graph, target))


def _location(found: FactorAccess | None) -> tuple | None:
    """None for what is computed, or is 0 where the tensor has elements, or lies where another tensor tells."""
    if found is None or not found.access.exact or not all(s.is_static for s in found.access.subscripts):
        return None
    return found.access.tensor, found.shape, tuple(frozenset(at.items()) for at in found.factors), found.constants


def _refuse(parts: list[list[_Sibling]], found: list[_Sibling]) -> str | None:
    """Why they cannot be one kernel."""
    first, *others = found
    left, right = ({s.locations[side] for s in found} for side in (0, 1))
    if len(left) > 1 or None in left:
        if len(right) == 1 and None not in right:
            return f"{_names(found)} read one factor, but it has the indices along which the results are contiguous"
        return "both are contractions, and the tile that one writes is not the tile that the other reads"
    read_one = f"{_names(found)} read one factor, but"
    if any(0 in s.node.extents for s in found):
        return f"{read_one} an index has no values"
    if any(s.common != first.common for s in others):
        return f"{read_one} not in the same types, steps and orders of dimensions"
    if any(len(part) != len(parts[0]) or any(s.roles.columns != part[0].roles.columns for s in part) for part in parts):
        return f"{read_one} not as many of them meet in each result"
    if first.problem.parts > 1 or any(scales_of(s.node) for s in found):
        return f"{read_one} sums of parts or with scales are of one product"
    return None


def _names(found: list[_Sibling]) -> str:
    *names, last = [s.node.name for s in found]
    return f"{', '.join(names)} and {last}"

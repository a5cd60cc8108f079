"""What backward computes again in place of reading it: large results of products, such as the scores of attention.

    forward   s = q @ k.T;  lse = logsumexp(s);  o = exp(s - lse) @ v           saves q, k, v, o and lse
    backward  s and exp(s - lse) again;  delta = sum(do * o);  ...              reads nothing of the size of s

A product is marked if what is computed elementwise from it is multiplied again, so that a kernel may keep all of that on chip, and
if computing it again takes less time than storing and loading its result would. `torch._functorch` then leaves it out of what
forward saves. A softmax on the way becomes an exponential of the difference from a number for each row, which is saved.

A part of a tensor is marked, too, where it has gaps in memory: forward saves the whole, and backward reads the part in it. So is a
copy that repeats a tensor's elements, such as keys for each head of a group, and what numbers alone decide, such as a causal mask.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise
from math import inf, prod
from typing import TypeAlias, Unpack

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from tilec.core.target import Target
from tilec.torch.aliases import (
    ancestors,
    arguments,
    draws,
    is_pointwise,
    is_view,
    maker,
    node_at,
    returns,
    schema_of,
    source,
    writes,
)
from tilec.torch.aten.table import UNROUNDED, dtype_of, op_name, row_of, shows
from tilec.torch.builder import Builder
from tilec.torch.constants import is_constant
from tilec.torch.layout import layout
from tilec.torch.share import share_equal
from tilec.torch.types import Joint, Value

aten = torch.ops.aten
Targets = Callable[[torch.device], Target | None]
NARROW = {torch.bfloat16, torch.float16}


def partition(
    joint: fx.GraphModule, inputs: Sequence[Value], targets: Targets, **how: Unpack[Joint]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward of a joint graph, for AOTAutograd. `targets` says what a device's programs are compiled for."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    mark(joint.graph, how["num_fwd_outputs"], targets)
    share_equal(joint.graph)
    with config.patch(cse=False):  # that is done
        return min_cut_rematerialization_partition(joint, inputs, **how)


def mark(graph: fx.Graph, results: int, targets: Targets) -> None:
    """Marks what backward computes again. The graph's first `results` outputs are forward's."""
    leaving = [n for n in returns(graph)[:results] if isinstance(n, fx.Node)]
    forward = ancestors(leaving).keys()
    for node in (*_from_numbers(graph), *_repeated(forward)):
        node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
    for part in (n for n in forward if _has_gaps(n)):
        for node in (part, *(n for n in part.all_input_nodes if isinstance(n.meta.get("val"), tuple | list))):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
    for product in [n for n in graph.nodes if n in forward and row_of(n).product]:
        region = _region(product, forward)
        if not region or any(n in leaving for n in region) or "recompute" in product.meta:
            continue
        if not _pays(product, region, targets):
            continue
        readers = {u for n in region for u in n.users if u in forward and row_of(u).product}
        repeated = {*region, *_factors((product, *readers)), *_constants(region)}
        for softmax in [n for n in region if row_of(n).softmax]:
            _simplify_sums(graph, softmax)
            repeated |= set(_exponentials_of(graph, softmax))
            repeated.discard(softmax)
            graph.erase_node(softmax)
        for node in repeated:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            node.meta[UNROUNDED] = True


def _has_gaps(node: fx.Node) -> bool:
    """Whether the node shows a part of another's memory, of which kernels would read a copy."""
    value = node.meta.get("val")
    if not is_view(maker(node)) or not isinstance(value, torch.Tensor):  # perhaps one of several parts
        return False
    numbers = (*value.shape, *value.stride())
    return all(isinstance(n, int) for n in numbers) and layout(value.shape, value.stride()) is None


def _from_numbers(graph: fx.Graph) -> set[fx.Node]:
    """What is computed from numbers alone, element by element, which each reader can compute for itself."""
    found = set[fx.Node]()
    for node in graph.nodes:
        if schema_of(node) is None or writes(node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        read = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        known = is_constant(node) or (bool(read) and (is_view(node) or _is_elementwise(node)) and not draws(node))
        if known and all(n in found for n in read):
            found.add(node)
    return found


def _repeated(forward: Iterable[fx.Node]) -> set[fx.Node]:
    """Views and copies of all of a tensor's elements that have some of them more than once."""
    found = set[fx.Node]()
    for node in forward:
        whole = source(node, shows)
        if 0 < _size(whole) < _size(node):
            found.add(node)
    return found


def _region(product: fx.Node, forward: Container[fx.Node]) -> list[fx.Node]:
    """The product and what forward computes of it element by element; nothing unless that is a factor of another product, or where
    something else than sums along it reads it."""
    size, found, multiplied = _size(product), {product: None}, False
    pending = [product]
    while pending:
        node = pending.pop()
        for user in node.users:
            if user not in forward or user in found:
                continue
            if row_of(user).product:
                multiplied = multiplied or any(not shows(n) for n in found if n is not product)
            elif _is_elementwise(user) and _size(user) == size:
                found[user] = None
                pending.append(user)
            elif not 0 < _size(user) < size or draws(user):
                return []  # it is stored all the same
    return list(found) if multiplied else []


def _is_elementwise(node: fx.Node) -> bool:
    row = row_of(node)
    return is_pointwise(node) or bool(row.shows) or row.softmax or row.casts


def _size(node: fx.Node) -> int:
    value = node.meta.get("val")
    return prod(value.shape) if isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape) else -1


def _pays(product: fx.Node, region: Sequence[fx.Node], targets: Targets) -> bool:
    """Whether the operations take less time than one store and one load of the result, where matrix units read what a kernel has
    just computed in registers: on a GPU, of 16 bits."""
    value = product.meta["val"]
    factors = [n for n in product.all_input_nodes if _size(n) >= 0][-2:]
    types = {_from_cast(n).meta["val"].dtype for n in factors}
    if not types <= NARROW or _size(product) < 0 or len(factors) < 2:
        return False
    target, kind = targets(value.device), dtype_of(types.pop())
    size = _size(product)
    if target is None or target.sm is None or not target.instructions(kind) or size <= sum(map(_size, factors)):
        return False
    summed = factors[0].meta["val"].shape[-1]
    computed = sum(not shows(n) and n is not product for n in region)
    special = sum(row_of(n).softmax for n in region)
    arithmetic = 2 * computed / target.peak("fma.f32") + special / target.peak("special")
    computing = max(2 * summed / target.peak(f"tensor.{kind}"), arithmetic)
    moved = 2 * value.element_size()
    level = target.l2 if size * value.element_size() <= target.l2.bytes else target.dram
    return computing <= moved / level.rate(target.units)


def _from_cast(factor: fx.Node) -> fx.Node:
    """What a factor is a view of, before it was cast to a wider type: a kernel reads that."""
    return source(factor, lambda n: shows(n) or _widens(n))


def _widens(node: fx.Node) -> bool:
    """Whether it casts 16 bits to f32."""
    if not row_of(node).casts:
        return False
    return node.meta["val"].dtype == torch.float32 and node.all_input_nodes[0].meta["val"].dtype in NARROW


def _factors(products: Iterable[fx.Node]) -> list[fx.Node]:
    """What views, multiples and wider casts of stored tensors products read: they read the tensors themselves."""

    def through(node: fx.Node) -> bool:
        scaled = node.op == "call_function" and op_name(node) in ("mul", "div") and len(node.all_input_nodes) == 1
        return scaled or shows(node) or _widens(node)

    read = [n for product in products for n in product.all_input_nodes]
    return [n for n in ancestors(filter(through, read), through) if through(n)]


def _constants(region: Iterable[fx.Node]) -> list[fx.Node]:
    """What the region reads that is computed from nothing, such as a causal mask. What is drawn is not computed."""
    unknown = lambda n: n.op == "placeholder" or draws(n)  # noqa: E731
    return [n for n in ancestors(region) if n.op == "call_function" and not any(map(unknown, ancestors([n])))]


# ---- softmax ---------------------------------------------------------------------------------------------------------


def _exponentials_of(graph: fx.Graph, softmax: fx.Node) -> list[fx.Node]:
    """Has exponentials in the place of a softmax; returns what is computed again."""
    x, dim = node_at(softmax), softmax.args[1]
    narrow, made = softmax.meta["val"].dtype, Builder(graph, softmax)
    wide = x if x.meta["val"].dtype not in (torch.bfloat16, torch.float16) else made(aten._to_copy.default, x, dtype=torch.float32)
    top = made(aten.amax.default, wide, [dim], True)
    if op_name(softmax) == "_safe_softmax":  # 0 for a row of -inf alone
        finite = made(aten.lt.Scalar, made(aten.abs.default, top), inf)
        kind, device = top.meta["val"].dtype, top.meta["val"].device
        zero = made(aten.scalar_tensor.default, 0.0, dtype=kind, layout=torch.strided, device=device)
        top = made(aten.where.self, finite, top, zero)
    total = made(aten.sum.dim_IntList, made(aten.exp.default, made(aten.sub.Tensor, wide, top)), [dim], True)
    if op_name(softmax) == "_safe_softmax":
        total = made(aten.clamp.default, total, 1.0)
    lse = made(aten.add.Tensor, top, made(aten.log.default, total))
    whole = list(lse.meta["val"].shape)  # saved without dimensions of 1, as kernels read pairs of it
    lse = made(aten.view.default, made(aten.view.default, lse, [n for n in whole if n != 1]), whole)
    weight = made(aten.exp.default, made(aten.sub.Tensor, wide, lse))
    if weight.meta["val"].dtype != narrow:
        weight = made(aten._to_copy.default, weight, dtype=narrow)
    softmax.replace_all_uses_with(weight)
    return [lse, *(n for n in made.made if _size(n) == _size(softmax))]


def _simplify_sums(graph: fx.Graph, softmax: fx.Node) -> None:
    """What a softmax's gradient takes away, by what forward has computed, which needs nothing as large as p:

    sum[j](p[i, j] * c[i, j] * sum[d](g[i, d] * v[j, d]))  =  sum[d](g[i, d] * o[i, d])

    of o[i, d] = sum[j](p[i, j] * c[i, j] * v[j, d]). The factor c is what weights are multiplied by, such as a dropout's mask.
    """
    of_p = _multiples(softmax)
    products = {(n.args[1], of_p[p]): n for p in of_p for n in p.users if op_name(n) == "bmm" and n.args[0] is p}
    for total in [n for n in graph.nodes if n.op == "call_function" and op_name(n) == "sum" and len(n.args) == 3]:
        x, (dims, stays) = node_at(total), total.args[1:]
        value = x.meta["val"]
        if not stays or [d % value.dim() for d in dims] != [value.dim() - 1] or x.op != "call_function" or op_name(x) != "mul":
            continue
        for p, g in (x.args, x.args[::-1]):
            if not isinstance(p, fx.Node) or not isinstance(g, fx.Node) or p not in of_p:
                continue
            path = _to_product(g)
            if path is None or path[-1].meta["val"].shape[-2:] != value.shape[-2:]:
                continue
            gradient, values = node_at(path[-1], 0), node_at(path[-1], 1)
            factors = _sorted((*of_p[p], *(f for n, of in pairwise(path) if (f := _factor(n, of)) is not None)))
            flipped = values.op == "call_function" and op_name(values) == "permute" and list(arguments(values)["dims"]) == [0, 2, 1]
            if not flipped or (o := products.get((node_at(values), factors))) is None:
                continue
            build = Builder(graph, total)
            wide = [build(aten._to_copy.default, n, dtype=value.dtype) for n in (gradient, o)]
            delta = build(aten.sum.dim_IntList, build(aten.mul.Tensor, *wide), [-1], True)
            for node in {*path, *_multiples(path[-1])}:  # it is multiplied by what is computed again
                node.meta[UNROUNDED] = True
            total.replace_all_uses_with(build(aten.view.default, delta, list(total.meta["val"].shape)))
            break


Factor: TypeAlias = fx.Node | float  # a number, or a tensor as large as what it multiplies


def _factor(node: fx.Node, of: fx.Node) -> Factor | None:
    """What a product multiplies one of its two operands by."""
    if node.op != "call_function" or op_name(node) != "mul" or _size(node) != _size(of) or len(node.args) != 2:
        return None
    (other,) = [a for a in node.args if a is not of] or [of]
    if isinstance(other, int | float):
        return other
    return other if isinstance(other, fx.Node) and _size(other) == _size(of) else None


def _sorted(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    return tuple(sorted(factors, key=str))


def _multiples(node: fx.Node) -> dict[fx.Node, tuple[Factor, ...]]:
    """The node, views and casts of all of it, and products with factors, with these."""
    found, pending = {node: tuple[Factor, ...]()}, [node]
    while pending:
        of = pending.pop()
        for user in of.users:
            factor = _factor(user, of)
            if user not in found and (factor is not None or _is_same(user)):
                found[user] = found[of] if factor is None else _sorted((*found[of], factor))
                pending.append(user)
    return found


def _to_product(node: fx.Node) -> list[fx.Node] | None:
    """The way from a node to the batch of products that it is a multiple of, by views and casts."""
    if node.op != "call_function":
        return None
    if op_name(node) == "bmm":
        return [node]
    if not _is_same(node) and op_name(node) != "mul":
        return None
    for of in node.all_input_nodes:
        if (_is_same(node) or _factor(node, of) is not None) and (path := _to_product(of)) is not None:
            return [node, *path]
    return None


def _is_same(node: fx.Node) -> bool:
    """Whether it has the same elements in the same order."""
    row = row_of(node)
    return (row.shows == "order" or row.casts) and _size(node) == _size(node.all_input_nodes[0])

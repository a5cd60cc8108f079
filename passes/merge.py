"""Merging two `linalg.generic` operations into one: the rewriting that fusion is made of.

Whether to merge is the plan's business; whether one may is asked here, and a refusal says why.
"""

from __future__ import annotations

from tilec import mlir
from tilec.mlir import ir, linalg, tensor


def refuse_inline(producer: ir.Operation, consumer: ir.Operation) -> str | None:
    """Why `producer` cannot be computed inside `consumer` at each use, or None where it can."""
    if "reduction" in mlir.iterators_of(producer):
        return "it reduces: a reduction is complete only after its last element"
    if len(producer.results) != 1:
        return "it has several results"
    result = producer.results[0]
    if any(result in op.operands for op in mlir.walk(consumer)):
        return "it is read at computed subscripts, so it must be in memory"
    return None


def inline(producer: ir.Operation, consumer: ir.Operation) -> ir.Operation:
    """Computes an elementwise producer inside its consumer.

    %e = generic(x) { exp }                 ->    %s = generic(x) { exp; add }
    %s = generic(%e) { add }
    """
    assert refuse_inline(producer, consumer) is None
    result, block = producer.results[0], mlir.body_of(producer)
    (out_map,) = mlir.maps_of(producer)[len(mlir.inputs_of(producer)) :]
    produced_dims = mlir.map_dims(out_map)
    inputs, maps = mlir.inputs_of(consumer), mlir.maps_of(consumer)
    rank = maps[0].n_dims
    kept = [(v, m) for v, m in zip(inputs, maps) if v != result]
    # each use of the result maps the producer's dimensions to the consumer's in its own way
    placements = [dict(zip(produced_dims, mlir.map_dims(m))) for v, m in zip(inputs, maps) if v == result]
    added = []
    for dims in placements:
        for value, map_ in zip(mlir.inputs_of(producer), mlir.maps_of(producer)):
            added.append((value, mlir.projection(rank, [dims[d] for d in mlir.map_dims(map_)])))
    new_inputs = _unique(kept + added)
    outputs, out_maps = mlir.outputs_of(consumer), maps[len(inputs) :]
    covered = {d for map_ in (*(m for _, m in new_inputs), *out_maps) for d in mlir.map_dims(map_)}
    with ir.InsertionPoint(consumer), mlir.fused_location([producer, consumer]):
        if missing := [d for d in range(rank) if d not in covered]:  # the result was all that told their extents
            extents = mlir.extents_of(consumer)
            shape = tensor.empty([extents[d] for d in missing], mlir.type_of("i1"))
            new_inputs = [*new_inputs, (shape, mlir.projection(rank, missing))]
        merged, new_block = mlir.generic(
            [r.type for r in consumer.results],
            [v for v, _ in new_inputs],
            outputs,
            [m for _, m in new_inputs] + out_maps,
            mlir.iterators_of(consumer),
        )
        _copy_attributes(consumer, merged)
        element = dict(zip(new_inputs, new_block.arguments))
        with ir.InsertionPoint(new_block):
            mapping: dict[ir.Value, ir.Value] = {}
            old = list(mlir.body_of(consumer).arguments)
            placement = iter(placements)
            for argument, value, map_ in zip(old, inputs, maps):
                if value != result:
                    mapping[argument] = element[value, map_]
                    continue
                dims = next(placement)
                inner = {
                    a: element[v, mlir.projection(rank, [dims[d] for d in mlir.map_dims(m)])]
                    for a, v, m in zip(block.arguments, mlir.inputs_of(producer), mlir.maps_of(producer))
                }
                (mapping[argument],) = _clone_with_indices(block, inner, dims)
            mapping.update(zip(old[len(inputs) :], list(new_block.arguments)[len(new_inputs) :]))
            linalg.YieldOp(mlir.clone_body(mlir.body_of(consumer), mapping))
    for before, after in zip(consumer.results, merged.results):
        before.replace_all_uses_with(after)
    consumer.erase()
    return merged.operation


def merge(first: ir.Operation, second: ir.Operation, dims: dict[int, int]) -> ir.Operation:
    """One pass over a common iteration space for two operations; `dims` takes the second's dimensions to the first's.

    %e = generic(x) { exp }                  ->   %e, %s = generic(x) { exp; add }
    %s = generic(%e) { add }
    """
    maps1, maps2 = mlir.maps_of(first), mlir.maps_of(second)
    rank = maps1[0].n_dims
    renamed2 = [mlir.projection(rank, [dims[d] for d in mlir.map_dims(m)]) for m in maps2]
    inputs1, inputs2 = mlir.inputs_of(first), mlir.inputs_of(second)
    produced = {result: n for n, result in enumerate(first.results)}
    inputs = _unique(
        [(v, m) for v, m in zip(inputs1, maps1)] + [(v, m) for v, m in zip(inputs2, renamed2) if v not in produced]
    )
    outputs = mlir.outputs_of(first) + mlir.outputs_of(second)
    out_maps = maps1[len(inputs1) :] + renamed2[len(inputs2) :]
    iterators = [
        "reduction" if "reduction" in pair else "parallel"
        for pair in zip(mlir.iterators_of(first), _reordered(mlir.iterators_of(second), dims))
    ]
    with ir.InsertionPoint(second), mlir.fused_location([first, second]):
        merged, block = mlir.generic(
            [r.type for r in (*first.results, *second.results)],
            [v for v, _ in inputs],
            outputs,
            [m for _, m in inputs] + out_maps,
            iterators,
        )
        _copy_attributes(first, merged)
        element = dict(zip(inputs, block.arguments))
        old_outputs = list(block.arguments)[len(inputs) :]
        count = len(mlir.outputs_of(first))
        with ir.InsertionPoint(block):
            mapping = {a: element[v, m] for a, v, m in zip(mlir.body_of(first).arguments, inputs1, maps1)}
            mapping.update(zip(list(mlir.body_of(first).arguments)[len(inputs1) :], old_outputs[:count]))
            yielded = mlir.clone_body(mlir.body_of(first), mapping)
            inner = {}
            for a, v, m in zip(mlir.body_of(second).arguments, inputs2, renamed2):
                inner[a] = yielded[produced[v]] if v in produced else element[v, m]
            inner.update(zip(list(mlir.body_of(second).arguments)[len(inputs2) :], old_outputs[count:]))
            yielded += _clone_with_indices(mlir.body_of(second), inner, dims)
            linalg.YieldOp(yielded)
    for before, after in zip((*first.results, *second.results), merged.results):
        before.replace_all_uses_with(after)
    second.erase()
    first.erase()
    return merged.operation


def _clone_with_indices(block: ir.Block, mapping: dict[ir.Value, ir.Value], dims: dict[int, int]) -> list[ir.Value]:
    """clone_body for a body whose `linalg.index` dimensions change their numbers."""
    for op in block.operations:
        if op.operation.name == "linalg.index":
            old = ir.IntegerAttr(op.attributes["dim"]).value
            mapping[op.results[0]] = linalg.IndexOp(dims[old]).result
    return mlir.clone_body(block, mapping)


def _unique(pairs: list[tuple[ir.Value, ir.AffineMap]]) -> list[tuple[ir.Value, ir.AffineMap]]:
    return list(dict.fromkeys(pairs))


def _reordered(iterators: list[str], dims: dict[int, int]) -> list[str]:
    return [iterators[old] for _, old in sorted((new, old) for old, new in dims.items())]


def _copy_attributes(source: ir.Operation, target: ir.OpView) -> None:
    for name in source.attributes:
        key = name if isinstance(name, str) else name.name
        if key.startswith("tilec."):
            target.attributes[key] = source.attributes[key]

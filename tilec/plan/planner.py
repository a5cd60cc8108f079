"""The decisions: which operations form a kernel, which tiles cut it, which data stay on chip. Only this stage weighs cost.

`make_plan` reads the IR of one function and a target, and returns a `Plan`. `annotate` writes the plan into the IR as `tilec.*`
attributes (`tilec/kernels/attributes.py`). The passes after it read nothing else.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="call-arg"

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tilec.analysis.copied_results import copies_of
from tilec.analysis.graph import Graph
from tilec.analysis.isomorphic import StructuralCache
from tilec.analysis.lifetimes import Lifetimes
from tilec.analysis.products import dims_of, factors_of
from tilec.analysis.rules import NAMED
from tilec.analysis.traffic import outputs_of
from tilec.core import mlir, records
from tilec.core.diagnostics import CallError
from tilec.core.extents import EXTENTS
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.model import TooLarge, predict
from tilec.kernels import Family, KernelPlan, Planned
from tilec.kernels.attributes import Placement
from tilec.plan.cuda.launches import Order, choose_launches
from tilec.plan.digest import sign
from tilec.plan.given_groups import Fixed, group_as
from tilec.plan.groups import Group, Remark
from tilec.plan.model import Plan
from tilec.plan.search import NONE, Demands, carried_out, search
from tilec.plan.state import APPROXIMATE, State
from tilec.plan.unchosen import renamed, unchosen


def make_plan(
    function: ir.Operation, target: Target, fixed: Fixed | None = None, demands: Demands | None = None,
    cache: StructuralCache | None = None,
) -> Plan:  # fmt: skip
    """Decides everything for one function of `linalg` on tensors. Where a schedule names them, `fixed` gives the kernels, and
    `demands` the steps of rewrites; with `fixed`, there are no further steps.

    A kernel whose intermediates do not fit on chip becomes one kernel for each operation; a kernel of `fixed` raises CallError
    instead, as does a step that cannot be applied. `cache`: what is known from another plan of the program.
    """
    cache = cache or StructuralCache()
    wanted = {**(NONE if fixed else {}), **(demands or {})}
    state = State(lambda: function, target, cache, fixed, may_pack=bool(wanted.get("pack", True)))
    plan = search(state, partial(_fitting_plan, source=function), wanted)
    return replace(plan, replan=partial(make_plan, function, target, cache=cache))


def ranked(
    function: ir.Operation, target: Target, fixed: Fixed, demands: Demands, names: Container[str], most: int
) -> dict[str, list[KernelPlan]]:  # fmt: skip
    """The plan's `candidates` of some kernels, where `fixed` and `demands` decide all kernels and steps. No other kernel is chosen,
    and one that fits no tile is left out. Raises CallError where the kernels or steps are not possible."""
    state = carried_out(State(lambda: function, target, StructuralCache(), fixed), {**NONE, **demands})
    graph, wanted = state.graph(), _given(state)
    assert wanted is not None
    groups, _ = group_as(graph, target, wanted)
    starts = [unchosen(g, graph, n, target) for g, n in zip(groups, _kernel_names(mlir.symbol(function), groups, graph))]
    found = dict[str, list[KernelPlan]]()
    for start in starts:
        with suppress(TooLarge):
            if start.name in names:
                found |= _candidates(groups, starts, graph, target, (start.name,), most)
    return found


def _given(state: State) -> Fixed | None:
    """The kernels that a schedule names, without operations that the steps have computed inside others."""
    if state.fixed is None or state.base is None:
        return state.fixed
    return replace(state.fixed, inlined=tuple(n for n in state.fixed.inlined if n not in state.base.names_inlined))


def _fitting_plan(state: State, source: ir.Operation) -> Plan:
    """The plan of a program; that of `source`, if no step was applied."""
    remarks: list[Remark] = []
    wanted = _given(state)
    while True:
        try:
            plan = _plan(state, wanted, source)
            return replace(plan, remarks=(*remarks, *plan.remarks)) if remarks else plan
        except _Unfusable as error:
            if state.fixed is not None or wanted == error.kernels:
                names = ", ".join(f"`{name}`" for name in error.names)
                raise CallError(f"{names} cannot be one kernel: {error}") from None
            wanted = error.kernels
            remarks.append(Remark("refused", f"{', '.join(error.names)} as one kernel", str(error)))


class _Unfusable(Exception):
    """The intermediates of a group do not fit on chip. `kernels` are all groups, where this one is a kernel for each operation."""

    def __init__(self, why: TooLarge, g: Group, groups: list[Group], graph: Graph):
        super().__init__(str(why))
        self.names = [n.name for n in g.nodes]
        others = (tuple(n.name for n in other.nodes) for other in groups if other is not g)
        inlined = tuple(n.name for n in graph.nodes if n.inlined)
        self.kernels = Fixed((*others, *((name,) for name in self.names)), inlined)


def _plan(state: State, fixed: Fixed | None, source: ir.Operation) -> Plan:
    """The plan of a program, in which all steps are applied."""
    target = state.target
    if target.kind == "cuda":
        from tilec.plan.cuda.choose import choose
    else:
        from tilec.plan.cpu.loops import choose
    if fixed is None:
        graph, groups, remarks = state.grouped
    else:
        graph = state.graph()
        groups, remarks = group_as(graph, target, fixed)
    remarks = remarks + _approximation_remarks(state.approximations)
    stem = mlir.symbol(source)
    kernels: list[KernelPlan] = []
    starts = [unchosen(g, graph, name, target) for g, name in zip(groups, _kernel_names(stem, groups, graph))]
    for g, start in zip(groups, starts):
        try:
            found = graph.memoise("kernel", g.nodes, partial(choose, start, g, graph, target))
            kernel, why = renamed(start, *found.result, found)
        except TooLarge as error:
            raise _Unfusable(error, g, groups, graph) from None
        kernel = _overlapped(kernel, target) if kernels else kernel
        kernels.append(replace(kernel, prediction=predict(kernel.work, target)))
        remarks += why
    order = Order.of(groups, graph)
    launches: dict[str, tuple[str, ...]] = {}
    if target.kind == "cuda":
        lifetimes = Lifetimes.of([g.nodes for g in groups], graph)
        launches, why = choose_launches(kernels, order.copy(), lifetimes, target)
        remarks += why
    before = state.base.names_inlined if state.base is not None else ()
    return Plan(
        target,
        tuple(kernels),
        (*before, *(n.name for n in graph.nodes if n.inlined)),
        tuple(remarks),
        signature(source),
        state.applied,
        state.approximations,
        state.function,
        copies=copies_of(source, target),
        candidates=partial(_candidates, groups, starts, graph, target),
        launches=launches,
        order=order,
        inlined_before=before,
    )


def _candidates(
    groups: list[Group], starts: list[KernelPlan], graph: Graph, target: Target, names: Container[str] | None = None,
    most: int | None = None,
) -> dict[str, list[KernelPlan]]:  # fmt: skip
    from tilec.plan.candidates import candidates

    found = dict[str, list[KernelPlan]]()
    for g, start in zip(groups, starts):
        if names is None or start.name in names:
            own = graph.memoise(("candidates", most), g.nodes, partial(candidates, start, g, graph, target, most))
            found[start.name] = [renamed(start, kernel, [], own)[0] for kernel in own.result]
    for start in starts[1:]:
        if start.name in found:
            found[start.name] = [_overlapped(kernel, target) for kernel in found[start.name]]
    return found


def _overlapped(kernel: KernelPlan, target: Target) -> KernelPlan:
    """A kernel that others come before, whose ends its start is under where the target can do that."""
    if not target.launch.overlap_us:
        return kernel
    work = replace(kernel.work, overlaps=True)
    options = replace(kernel.options, overlap_launch=True)
    return replace(kernel, options=options, work=work, prediction=predict(work, target))


def _approximation_remarks(approximations: dict[ir.Operation, str]) -> list[Remark]:
    """One for every operation of the program that has approximate forms."""
    forms: dict[str, list[str]] = {}
    lines: dict[str, tuple[str, int] | None] = {}
    for op, form in reversed(approximations.items()):
        name = mlir.get_string(op.parent.operation, "tilec.name") or "op"
        lines[name] = mlir.source_line(op)
        if form not in forms.setdefault(name, []):
            forms[name].append(form)
    reasons = {
        "hidden": "by a fast approximation: the rounding to 16 bits hides its relative error of at most {}",
        "exact": "by a fast approximation, within the function's documented error",
        "weight": "by a fast approximation: the error of the sum is at most {}, within its bound",
    }
    found = []
    for name, used in forms.items():
        for kind, reason in reasons.items():
            if kept := [
                f
                for f in used
                if kind == ("weight" if "weight" in f else "hidden" if NAMED[f].error else "exact")
            ]:
                error = _power(max(NAMED[f].error for f in kept)) if kind != "exact" else ""
                functions = ", ".join(dict.fromkeys(map(_function, kept)))
                found.append(Remark("approximated", name, f"{functions} {reason.format(error)}", lines[name]))
    return found


def _function(form: str) -> str:
    """The function that an approximation computes: `exp` of `exp_below`, `1 + tanh` of `one_plus_tanh`."""
    if form.startswith("one_plus_"):
        return f"1 + {form.removeprefix('one_plus_')}"
    name = form.partition("_")[0]
    return {"divide": "division"}.get(name, name)


def _power(error: float) -> str:
    return f"2^{math.log2(error):.0f}"


def signature(function: ir.Operation) -> str:
    """`softmax(x: f32[512, 64])`: the name of a program with its shapes, which a schedule file repeats. Extents that vary are texts
    over the sizes: `f32[2 * M + 1, 64]`."""
    has_names = "arg_attrs" in function.attributes
    attributes = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])] if has_names else []
    names = [ir.StringAttr(a["tilec.name"]).value for a in attributes]
    types = [ir.ShapedType(a.type) for a in mlir.entry(function).arguments]
    shapes = [_shape(a, t) for a, t in zip(attributes, types)]
    inputs = [f"{n}: {t.element_type}" + (f"[{', '.join(shape)}]" if shape else "") for n, t, shape in zip(names, types, shapes)]
    return f"{ir.StringAttr(function.attributes['sym_name']).value}({', '.join(inputs)})"


def _shape(attributes: ir.DictAttr, type_: ir.ShapedType) -> list[str]:
    """The extents of an argument in the source."""
    for key in ("tilec.shape", EXTENTS):
        if key in attributes:
            found = attributes[key]
            if isinstance(found, ir.ArrayAttr):
                return [ir.StringAttr(w).value for w in found]
            return list(map(str, ir.DenseI64ArrayAttr(found)))
    return list(map(str, type_.shape))


def _kernel_names(stem: str, groups: Sequence[Group], graph: Graph) -> list[str]:
    """A name for each kernel, after its results; a number tells apart what would be one name (`a.1` and `a_1`)."""
    names: list[str] = []
    for g in groups:
        values = outputs_of(g.nodes, graph)
        named = [n for n in g.nodes if any(r.value in values for r in n.results)] or g.nodes  # some have a check alone
        name = wanted = f"{stem}_{'_'.join(n.name.replace('.', '_') for n in named[:3])}"
        count = 1
        while name in names:
            count += 1
            name = f"{wanted}__{count}"
        names.append(name)
    return names


# ---- the plan as attributes ------------------------------------------------------------------------------------------


def annotate(module: ir.Operation, function: ir.Operation, plan: Plan) -> None:
    """Writes the plan into the IR, where the passes read it and a person can edit it. The plan's own function takes the function's
    place: in it the steps of rewrites were applied."""
    if plan.function is not None and plan.function != function:
        ir.InsertionPoint(function).insert(plan.function)
        function.erase()
        function = plan.function
    for op, form in plan.approximations.items():
        op.attributes[APPROXIMATE] = mlir.string(form)
    by_name = {mlir.get_string(op, "tilec.name"): op for op in mlir.traverse(function) if mlir.is_generic(op)}
    for name in plan.inlined:
        if name in by_name:  # else it was computed inside its readers before steps of kernels were applied
            by_name[name].attributes["tilec.inline"] = ir.UnitAttr.get()
    table: dict[str, ir.Attribute] = {}
    for kernel in plan.kernels:
        for name in kernel.nodes:
            placement = Placement(
                kernel=kernel.name, loop_group=kernel.loop_groups[name], dims=kernel.dims[name], loops=kernel.loops.get(name),
                left=_left(by_name[name], kernel.dims[name], kernel.family),
            )  # fmt: skip
            placement.write(by_name[name])
        planned = Planned(kernel.grid, kernel.tile, kernel.options)
        table[kernel.name] = planned.to_attribute(kernel.prediction.time_us)
    module.attributes["tilec.kernels"] = ir.DictAttr.get(table)
    if "tilec.launches" in module.attributes:
        del module.attributes["tilec.launches"]
    if plan.launches:
        launches: dict[str, ir.Attribute] = {
            name: ir.ArrayAttr.get([mlir.string(k) for k in kernels]) for name, kernels in plan.launches.items()
        }
        module.attributes["tilec.launches"] = ir.DictAttr.get(launches)
    if plan.rewrites:
        steps = [{"rewrite": mlir.string(a.rewrite)} | records.to_attributes(a.step) for a in plan.rewrites]
        module.attributes["tilec.rewrites"] = ir.ArrayAttr.get([ir.DictAttr.get(step) for step in steps])
    module.attributes["tilec.target"] = mlir.string(plan.target.name)
    module.attributes["tilec.backend"] = mlir.string(plan.target.kind)
    sign(module)


def _left(op: ir.Operation, dims: Sequence[int], family: Family) -> int | None:
    """1 where the second factor of an operation's product is the left one of its kernel. A pass cannot tell: in a tile of one
    element nothing depends on an index any more."""
    inner = [d for d, kind in zip(dims, mlir.iterators_of(op)) if kind == "reduction"]
    rows, columns = map(set, family.sides_of(dims, inner))
    if not rows | columns or (factors := factors_of(op)) is None:
        return None
    own = [mlir.map_dims(m) for m in mlir.maps_of(op)]
    first, second = ({dims[d] for d in dims_of(mlir.body_of(op), factor, own)} for factor in factors)
    return 1 if second & rows or first & columns else None

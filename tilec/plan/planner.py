"""The decisions: which operations form a kernel, which tiles cut it, which data stay on chip. Only this stage weighs cost.

`make_plan` reads the IR of one function and a target, and returns a `Plan`. `annotate` writes the plan into the IR as `tilec.*`
attributes (`tilec/kernels/attributes.py`). The passes after it read nothing else.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="call-arg"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from tilec.analysis.alike import Alike
from tilec.analysis.copied_results import copies_of
from tilec.analysis.graph import Graph, build_graph
from tilec.analysis.lifetimes import Lifetimes
from tilec.analysis.multiplicands import converts
from tilec.analysis.precision import APPROXIMATION_ERRORS, approximate_operations
from tilec.analysis.traffic import outputs_of
from tilec.core import mlir, records
from tilec.core.diagnostics import CallError
from tilec.core.fitted import WarpgroupTimes
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost.model import TooLarge, predict
from tilec.kernels import KernelPlan, Planned
from tilec.kernels.attributes import Parts, Placement, StoredFactor
from tilec.passes.tensor.copies import copy_for_readers
from tilec.passes.tensor.diagonals import store_by_diagonal
from tilec.passes.tensor.pack import SIDES
from tilec.passes.tensor.pieces import compute_in_pieces
from tilec.plan.chain import WIDEST
from tilec.plan.cuda.launches import Order, choose_launches
from tilec.plan.digest import sign
from tilec.plan.fusion import group
from tilec.plan.given_groups import Fixed, group_as
from tilec.plan.groups import Group, Remark
from tilec.plan.model import Plan, Split
from tilec.plan.prepack import apply_packs, choose_packs
from tilec.plan.recompute import is_large, of_joins, of_products, of_reads, plan_diagonals, plan_with
from tilec.plan.split_reduction import apply_splits, choose_splits, with_inlined
from tilec.plan.unchosen import renamed, unchosen
from tilec.process import forks


def make_plan(
    function: ir.Operation, target: Target, fixed: Fixed | None = None, splitting: bool = True, alike: Alike | None = None
) -> Plan:  # fmt: skip
    """Decides everything for one function of `linalg` on tensors. `fixed` gives the kernels, where a schedule names them.

    With `splitting`, long reductions may be split, where the whole program then takes less time. A kernel whose intermediates
    do not fit on chip becomes one kernel for each operation; a kernel of `fixed` raises CallError instead. `alike`: what is
    known from another plan of the program.
    """
    planner = partial(plan_with, of_products, planner=partial(_fitting_plan, alike=alike or Alike()))
    planner = partial(plan_diagonals, planner=partial(plan_with, of_reads, planner=planner))
    return plan_with(of_joins, function, target, fixed, splitting, planner)


@dataclass(frozen=True)
class _Whole:
    """The kernels of a function as it is, before anything in it is split or packed."""

    function: ir.Operation
    approximations: dict[ir.Operation, str]
    graph: Graph
    groups: list[Group]
    remarks: list[Remark]

    @staticmethod
    def of(function: ir.Operation, target: Target, alike: Alike) -> _Whole:
        approximations = approximate_operations(function, target.kind)
        graph = _for_target(build_graph(function, approximations, alike), target)
        return _Whole(function, approximations, graph, *group(graph, target))

    @cached_property
    def names_inlined(self) -> list[str]:
        return [n.name for n in self.graph.nodes if n.inlined]

    @cached_property
    def inlined(self) -> ir.Operation:
        """A copy of the function after inlining, from which each plan with splits or packs makes its own."""
        return with_inlined(self.function, self.names_inlined)


def _fitting_plan(
    function: ir.Operation, target: Target, fixed: Fixed | None, splitting: bool, alike: Alike, whole: _Whole | None = None
) -> Plan:  # fmt: skip
    remarks: list[Remark] = []
    wanted, whole = fixed, whole or _Whole.of(function, target, alike)
    while True:
        try:
            plan = _make_plan(function, target, wanted, splitting, alike, whole)
            return replace(plan, remarks=(*remarks, *plan.remarks)) if remarks else plan
        except _Apart as error:
            if fixed is not None or wanted == error.kernels:
                names = ", ".join(f"`{name}`" for name in error.names)
                raise CallError(f"{names} cannot be one kernel: {error}") from None
            wanted = error.kernels
            remarks.append(Remark("refused", f"{', '.join(error.names)} as one kernel", str(error)))


class _Apart(Exception):
    """The intermediates of a group do not fit on chip. `kernels` are all groups, where this one is a kernel for each operation."""

    def __init__(self, why: TooLarge, g: Group, groups: list[Group], graph: Graph):
        super().__init__(str(why))
        self.names = [n.name for n in g.nodes]
        others = (tuple(n.name for n in other.nodes) for other in groups if other is not g)
        inlined = tuple(n.name for n in graph.nodes if n.inlined)
        self.kernels = Fixed((*others, *((name,) for name in self.names)), inlined)


def _make_plan(
    function: ir.Operation, target: Target, fixed: Fixed | None, splitting: bool, alike: Alike, whole: _Whole
) -> Plan:  # fmt: skip
    splits, why = choose_splits(whole.groups, whole.graph, target) if splitting else ([], [])
    split = partial(_planned, function, target, fixed, alike, whole, splits, why)
    if splits and fixed is None and target.kind == "cuda":
        whole_plan = partial(_fitting_plan, function, target, None, False, alike, whole)
        return _whole_if_faster(split, whole_plan, at_once=is_large(function))
    return split()


def _planned(
    function: ir.Operation, target: Target, fixed: Fixed | None, alike: Alike, whole: _Whole, splits: list[Split],
    why: list[Remark],
) -> Plan:  # fmt: skip
    """The plan with these reductions split."""
    if target.kind == "cuda":
        from tilec.plan.cuda.choose import choose
    else:
        from tilec.plan.cpu.loops import choose
    approximations, graph, groups, remarks = whole.approximations, whole.graph, whole.groups, whole.remarks
    packs, reasons = choose_packs(
        [g for g in groups if not any(s.name == n.name for s in splits for n in g.nodes)], graph, target
    )
    before = whole.names_inlined if splits or packs else []
    if splits or packs or fixed:
        if splits or packs:  # what `fuse` will make of it
            function_then = whole.inlined.clone()
            apply_splits(function_then, splits)
            apply_packs(function_then, packs)
            graph = _for_target(
                build_graph(
                    function_then, approximate_operations(function_then, target.kind) if approximations else {}, alike
                ),
                target,
            )
        else:
            graph = _for_target(build_graph(function, approximations, alike), target)
        groups, remarks = group_as(graph, target, fixed) if fixed else group(graph, target)
    remarks = why + reasons + remarks + _approximation_remarks(approximations)
    stem = ir.StringAttr(function.attributes["sym_name"]).value
    kernels: list[KernelPlan] = []
    starts = [unchosen(g, graph, name, target) for g, name in zip(groups, _kernel_names(stem, groups, graph))]
    for g, start in zip(groups, starts):
        try:
            found = graph.once("kernel", g.nodes, partial(choose, start, g, graph, target))
            kernel, why = renamed(start, *found.result, found)
        except TooLarge as error:
            raise _Apart(error, g, groups, graph) from None
        kernel = _overlapped(kernel, target) if kernels else kernel
        kernels.append(replace(kernel, prediction=predict(kernel.work, target)))
        remarks += why
    order = Order.of(groups, graph)
    launches: dict[str, tuple[str, ...]] = {}
    if target.kind == "cuda":
        lifetimes = Lifetimes.of([g.nodes for g in groups], graph)
        launches, why = choose_launches(kernels, order.copy(), lifetimes, target)
        remarks += why
    inlined = (*before, *(n.name for n in graph.nodes if n.inlined))
    regroup = partial(make_plan, function, target, splitting=bool(splits))
    return Plan(
        target,
        tuple(kernels),
        inlined,
        tuple(remarks),
        _signature(function),
        tuple(splits),
        approximations,
        regroup,
        tuple(packs),
        copies_of(function, target),
        partial(_candidates, groups, starts, graph, target),
        launches=launches,
        order=order,
    )


def _candidates(
    groups: list[Group], starts: list[KernelPlan], graph: Graph, target: Target
) -> dict[str, list[KernelPlan]]:
    from tilec.plan.candidates import candidates

    found = {start.name: candidates(start, g, graph, target) for g, start in zip(groups, starts)}
    for start in starts[1:]:
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
                if kind == ("weight" if "weight" in f else "hidden" if APPROXIMATION_ERRORS[f] else "exact")
            ]:
                error = _power(max(APPROXIMATION_ERRORS[f] for f in kept)) if kind != "exact" else ""
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


def _weighed(plan: Plan) -> float:
    """Its time, where kernels whose blocks share steps have to be as much faster as the target says."""
    shared = [k.prediction.time_us for k in plan.kernels if getattr(k.options, "stream_k", 0)]
    return plan.time_us + (plan.target.fit(WarpgroupTimes).stream_k - 1) * sum(shared)


def _whole_if_faster(split: Callable[[], Plan], whole: Callable[[], Plan], at_once: bool) -> Plan:
    """The plan without splits where blocks that share rows do as well: parts take a second kernel, and often a second
    look at the data."""

    def about(plan: Plan) -> tuple[float, float, list[str]]:
        return _weighed(plan), plan.time_us, [s.name for s in plan.splits]

    faster = forks.choose([split, whole], about, lambda said: int(said[1][0] <= said[0][0]), at_once)
    number, plan, (parts, one) = faster
    if number == 0:
        return plan
    times = f"{duration(parts[1])} split, {duration(one[1])} unsplit"
    return replace(plan, remarks=(*(Remark("refused", f"to split {name}", times) for name in parts[2]), *plan.remarks))


def _for_target(graph: Graph, target: Target) -> Graph:
    """The CPU's register kernels multiply floats, and several rows: sums of integer products are reductions there. On a GPU a
    product with a vector is a contraction, too, where an 8-bit float has to be converted; one of two vectors has no rows. Nor is a
    product one that nobody reads, of which checks are left: its kernel has nothing to store."""
    for node in graph.nodes:
        if not any(mlir.uses(r.value) for r in node.results):
            node.contraction = node.vector_product = None
        if target.kind == "cpu":
            node.vector_product = None
            if node.contraction is not None and node.contraction.integer:
                node.contraction = None
        elif (product := node.vector_product) is not None and product.m + product.n and node.contraction is None:
            node.contraction = product
            if not converts(node, target):
                node.contraction = None
    return graph


def _signature(function: ir.Operation) -> str:
    """`softmax(x: f32[512, 64])`: the name of a program with its shapes, which a schedule file repeats."""
    has_names = "arg_attrs" in function.attributes
    attributes = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])] if has_names else []
    names = [ir.StringAttr(a["tilec.name"]).value for a in attributes]
    types = [ir.ShapedType(a.type) for a in mlir.entry(function).arguments]
    shapes = [
        list(ir.DenseI64ArrayAttr(a["tilec.shape"]) if "tilec.shape" in a else t.shape) for a, t in zip(attributes, types)
    ]
    inputs = [f"{n}: {t.element_type}{shape or ''}" for n, t, shape in zip(names, types, shapes)]
    return f"{ir.StringAttr(function.attributes['sym_name']).value}({', '.join(inputs)})"


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
    """Writes the plan into the IR, where the passes read it and a person can edit it."""
    approximations = plan.approximations
    if plan.pieces:
        compute_in_pieces(function, WIDEST)
        approximations = approximate_operations(function, plan.target.kind)
    if plan.diagonals:
        store_by_diagonal(function, plan.diagonals)
        approximations = approximate_operations(function, plan.target.kind)
    if plan.copied:
        copy_for_readers(function, WIDEST)
        approximations = approximate_operations(function, plan.target.kind)
    for op, form in approximations.items():
        op.attributes["tilec.approximate"] = mlir.string(form)
    by_name = {mlir.get_string(op, "tilec.name"): op for op in mlir.traverse(function) if mlir.is_generic(op)}
    for name in plan.inlined:
        by_name[name].attributes["tilec.inline"] = ir.UnitAttr.get()
    parts = {f"{s.name}.partial": s for s in plan.splits}
    stored = {p.stored: p for p in plan.packs}
    table: dict[str, ir.Attribute] = {}
    for kernel in plan.kernels:
        for name in kernel.nodes:
            placement = _placement(kernel, name)
            if name in plan.recomputed:
                anew = records.to_attribute(Placement(**placement))
                by_name[plan.recomputed[name]].attributes["tilec.recompute"] = anew
            elif name in stored:
                p = stored[name]
                factor = StoredFactor(factor_dims=p.dims, kind=p.kind, stored_extents=p.extents, **placement)
                by_name[p.name].attributes[f"tilec.pack_{SIDES[p.side]}"] = records.to_attribute(factor)
            elif name in parts:
                cut = Parts(dim=parts[name].dim, parts=parts[name].parts, **placement)
                by_name[parts[name].name].attributes["tilec.split"] = records.to_attribute(cut)
            else:
                Placement(**placement).write(by_name[name])
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
    module.attributes["tilec.target"] = mlir.string(plan.target.name)
    module.attributes["tilec.backend"] = mlir.string(plan.target.kind)
    sign(module)


def _placement(kernel: KernelPlan, name: str) -> dict[str, Any]:
    """The fields of a Placement for one operation of a kernel."""
    return {
        "kernel": kernel.name,
        "loop_group": kernel.loop_groups[name],
        "dims": kernel.dims[name],
        "loops": kernel.loops.get(name),
    }

"""A case in eager mode, at f64, and through the back end: values, gradients, changed inputs, strides, types and aliases.

AOTAutograd traces a case and hands its graphs to the back end, as it does below `torch.compile`; where it cannot (a result that is
no tensor, say), `torch.compile` runs the case.

A case that draws numbers is compared with eager mode's, of PyTorch's own kernels (`fallback_random`). With tilec's own numbers, it
is run twice: results of one seed are equal, and of eager mode's shapes, types, strides and aliases.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager
from torch.utils import _pytree as pytree

from tests.pytorch.judge import ERROR, differences, error, largest
from tests.pytorch.samples import Case
from tilec.torch import report, reports
from tilec.torch.backend import backend

WHOLE, PART, EAGER, NOTHING = "whole", "in part", "by PyTorch", "nothing to compute"
REFUSED, AS_EAGER, WRONG, CRASHED, SKIPPED = "refused alike", "as aot_eager", "wrong", "crashed", "skipped"
VERDICTS = (WHOLE, PART, EAGER, NOTHING, REFUSED, AS_EAGER, WRONG, CRASHED, SKIPPED)
LEAST = 1e-5  # of a result's largest value; of all gradients'. Sums of few terms that cancel may be exact by luck
Backend = Callable[..., Any]


def TILEC(gm: torch.nn.Module, inputs: list[Any]) -> Any:
    """The back end, with the random numbers of eager mode."""
    return backend(gm, inputs, options={"fallback_random": True})  # type: ignore[arg-type]


def DRAWING(gm: torch.nn.Module, inputs: list[Any]) -> Any:
    """The back end, with its own random numbers."""
    return backend(gm, inputs)  # type: ignore[arg-type]



def AOT(gm: torch.nn.Module, inputs: list[Any]) -> Any:
    """PyTorch's own back end that traces and runs operators eagerly, `aot_eager`: what differs there, PyTorch's tracing changes."""
    return aot_eager(gm, inputs)


@dataclass
class Outcome:
    """How a case ended. `backward`: whether it has gradients. `random`: whether it draws numbers, which must be eager mode's.
    `refused`: whether eager mode raises an error.
    `reasons`: how many operations PyTorch runs, by why."""

    case: str
    verdict: str
    message: str = ""
    backward: bool = False
    random: bool = False
    refused: bool = False
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass
class Ran:
    """Tensors by what they are; other results; for each result the first tensor that shares its memory, and where in it. `drawn`:
    whether numbers were taken from PyTorch's generator."""

    tensors: dict[str, torch.Tensor]
    others: list[Any]
    memory: list[tuple[int, int]]
    drawn: bool


def agreement(case: Case, dynamo: bool = False) -> Outcome:
    """`dynamo`: through `torch.compile` in any case."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _agreement(case, dynamo)
        finally:
            logging.disable(before)
            reports.forget()


def _agreement(case: Case, dynamo: bool) -> Outcome:
    backward = any(isinstance(v, torch.Tensor) and v.requires_grad for v in case.values)
    if case.undefined:
        return Outcome(case.name, SKIPPED, "elements that have no promised value")
    try:
        eager = _run(case.call, case.given(), backward)
    except Exception as error:
        if case.refused:
            return _refusal(case, dynamo, error)
        if backward:  # some derivatives are not there
            return _agreement(case.without_gradients(), dynamo)
        return Outcome(case.name, SKIPPED, f"eager mode raises {type(error).__name__}")
    if case.refused:
        return Outcome(case.name, SKIPPED, "eager mode raises nothing")
    if not any(k.startswith("gradient") for k in eager.tensors):
        case, backward = case.without_gradients(), False
    again = _run(case.call, case.given(), backward, seed=1)
    made = Outcome(case.name, CRASHED, backward=backward)
    same = eager.tensors.keys() == again.tensors.keys() and all(_equal(v, again.tensors[k]) for k, v in eager.tensors.items())
    made.random = again.drawn and not same  # LAPACK's results depend on where the tensors lie, too
    try:
        reference = None if made.random else _run(case.call, case.wide(), backward)
    except Exception:  # no such operator at f64
        reference = None

    def ran(backend: Backend) -> Ran | str:
        try:
            return _compiled(case, backward, dynamo, backend)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:600]}"

    reports.forget()
    compiled = ran(TILEC)
    made.verdict, made.reasons = counted()
    noise: dict[str, float] = {}
    wrong = [compiled] if isinstance(compiled, str) else _separate(reference, eager, compiled, noise)
    if wrong and reference is not None and not isinstance(compiled, str):
        noise = _noise(case, reference, backward)
        wrong = _separate(reference, eager, compiled, noise)
    if not wrong and made.random and (wrong := _drawn(eager, ran(DRAWING), ran(DRAWING))):
        made.message, made.verdict = "; ".join(wrong), WRONG
    elif wrong:
        made.message, made.verdict = "; ".join(wrong), CRASHED if isinstance(compiled, str) else WRONG
        traced = ran(AOT)
        if isinstance(traced, str) or isinstance(compiled, str):
            agree = isinstance(traced, str) and isinstance(compiled, str)
        else:
            agree = not _separate(reference, traced, compiled, noise)
        made.verdict = AS_EAGER if agree else made.verdict
    return made


def _refusal(case: Case, dynamo: bool, why: Exception) -> Outcome:
    made = Outcome(case.name, AS_EAGER, f"eager mode raises {type(why).__name__}: {str(why)[:200]}", refused=True)
    for through, verdict in ((TILEC, REFUSED), (AOT, WRONG)):
        try:
            _compiled(case, False, dynamo, through)
        except Exception:
            made.verdict = verdict
            break
    return made


def _run(call: Callable[..., Any], values: list[Any], backward: bool, seed: int = 0) -> Ran:
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    with torch.set_grad_enabled(backward):
        leaves = pytree.tree_leaves(call(*values))
    results = [v for v in leaves if isinstance(v, torch.Tensor)]
    given = [v for v in values if isinstance(v, torch.Tensor)]
    tensors = {f"result {n}": _plain(v) for n, v in enumerate(results)}
    memory = _shared([*given, *results])[len(given) :]
    if backward:
        ends = [r for r in results if r.requires_grad]
        if ends:
            torch.autograd.backward(ends, [_weights(e, n) for n, e in enumerate(ends)])
        tensors |= {f"gradient {n}": _plain(v.grad) for n, v in enumerate(given) if v.grad is not None}
    tensors |= {f"input {n}": _plain(v) for n, v in enumerate(given)}
    drawn = not torch.equal(before, torch.get_rng_state())
    return Ran(tensors, [v for v in leaves if not isinstance(v, torch.Tensor)], memory, drawn)


def _weights(value: torch.Tensor, seed: int) -> torch.Tensor:
    """Weights of a result's elements in the sum whose gradients are taken: those of f64 are those of f32."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.complex64 if value.dtype.is_complex else torch.float32
    return torch.randn(value.shape, generator=generator, dtype=kind).to(value.dtype)


def _plain(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    value = value.to_dense() if value.layout is not torch.strided else value
    return torch.view_as_real(value.resolve_conj()) if value.dtype.is_complex else value


def _shared(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    first: dict[int, int] = {}
    found = []
    for n, v in enumerate(tensors):
        if v.layout is not torch.strided or not v.numel():
            found.append((n, 0))
        else:
            owner = first.setdefault(v.untyped_storage().data_ptr(), n)
            found.append((owner, 0 if owner == n else v.storage_offset() - tensors[owner].storage_offset()))
    return found


def _compiled(case: Case, backward: bool, dynamo: bool, backend: Backend) -> Ran:
    """Through a back end of `torch.compile`."""
    case = case if backward else case.without_gradients()
    values = case.given()
    numbers = [n for n, v in enumerate(values) if isinstance(v, torch.Tensor)]
    if not dynamo and numbers:
        module = _Flat(case.call, values, numbers)
        try:
            with torch.set_grad_enabled(backward):
                run = backend(module, [values[n] for n in numbers])
            return _run(lambda *v: pytree.tree_unflatten(run(*[v[n] for n in numbers]), module.tree), values, backward)
        except Exception:  # a result that is no tensor, or data that decide a size
            reports.forget()
    torch._dynamo.reset()
    return _run(torch.compile(lambda *v: case.call(*v), backend=backend, dynamic=False), case.given(), backward)


class _Flat(torch.nn.Module):
    """A case as what AOTAutograd traces: tensors to a flat tuple."""

    def __init__(self, call: Callable[..., Any], values: list[Any], numbers: list[int]):
        super().__init__()
        self.call, self.given, self.numbers = call, list(values), numbers
        self.graph = fx.Graph()  # Dynamo's, which says what the user calls inputs
        self.tree: Any = None

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        values = list(self.given)
        for n, v in zip(self.numbers, tensors):
            values[n] = v
        leaves, self.tree = pytree.tree_flatten(self.call(*values))
        return tuple(leaves)


def counted() -> tuple[str, dict[str, int]]:
    """The verdict of a case that is right, and the reasons of what PyTorch runs."""
    found = report()
    reasons = Counter(_message(e.operation, e.reason) for g in found.graphs for e in g.eager)
    for part in (p for g in found.graphs for p in g.parts if p.reason is not None):
        reasons[f"a program that is not compiled: {part.reason.splitlines()[0][:120]}"] += part.operations
    if not found.operations:
        return NOTHING, {}
    return WHOLE if found.taken == found.operations else PART if found.taken else EAGER, dict(reasons)


def _message(operation: str, reason: str) -> str:
    name = operation.rpartition("::")[2]
    return reason if reason.startswith(name) or "tensors without elements" in reason else f"{name}: {reason}"


def _noise(case: Case, reference: Ran, backward: bool) -> dict[str, float]:
    """The error that the last bits of inputs make: digits may cancel."""
    found: dict[str, float] = {}
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        values = case.wide()
        for v, narrow in zip(values, case.values):
            if isinstance(v, torch.Tensor) and v.dtype == torch.float64:
                v.data = v.data * (1 + _digits(narrow) * (2 * torch.rand(v.shape, generator=generator, dtype=v.dtype) - 1))
        made = _run(case.call, values, backward).tensors
        for name in (n for n in made.keys() & reference.tensors.keys() if made[n].shape == reference.tensors[n].shape):
            found[name] = max(found.get(name, 0.0), error(made[name], reference.tensors[name]))
    return found


def _digits(value: torch.Tensor) -> float:
    """The last bit of a number of about 1 in the tensor's type."""
    return torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0


def _separate(reference: Ran | None, eager: Ran, compiled: Ran, noise: dict[str, float]) -> list[str]:
    found = []
    exact = reference.tensors if reference is not None else eager.tensors

    def least(name: str) -> float:
        among = [v for k, v in exact.items() if k == name or (k.startswith("gradient") and name.startswith("gradient"))]
        return max(max(LEAST, _digits(eager.tensors[name])) * max(map(largest, among)), ERROR * noise.get(name, 0.0))

    found += differences({"reference": exact, "eager": eager.tensors, "compiled": compiled.tensors}, least)
    if len(eager.others) != len(compiled.others) or not all(map(_same, eager.others, compiled.others)):
        found.append(f"results {compiled.others}, eager mode {eager.others}")
    if eager.memory != compiled.memory:
        found.append(f"memory of results {compiled.memory}, eager mode {eager.memory}")
    return found


def _drawn(eager: Ran, one: Ran | str, other: Ran | str) -> list[str]:
    """What two runs with one seed and tilec's own random numbers have that is not as it must be."""
    if isinstance(one, str) or isinstance(other, str):
        return [r for r in (one, other) if isinstance(r, str)]
    found = [f"{n}: of one seed, but different" for n, v in one.tensors.items() if not _equal(v, other.tensors[n])]
    like = {n: (v.shape, v.dtype, v.stride()) for n, v in eager.tensors.items()}
    if like != {n: (v.shape, v.dtype, v.stride()) for n, v in one.tensors.items()} or eager.memory != one.memory:
        found.append("random numbers that do not lie as eager mode's do")
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= 1e-5 * abs(one) or (one != one and other != other)
    return bool(one == other)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))

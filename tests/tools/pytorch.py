"""Models through `torch.compile(backend="tilec")`, judged against themselves at f64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

SLACK = 4.0
"""How much further from the f64 result than PyTorch's own result another one may be, beside a few units in the last place."""


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="tilec", **options)


def plans_by(name: str, folder: Any, monkeypatch: Any) -> list[Any]:
    """The plans that are made from now on, in which the rewrite of this name is applied wherever it can be, whether it pays or not.
    They are made in this process, and for programs that tests before had compiled, too."""
    from tilec.driver import lowering
    from tilec.plan.search import ALL
    from tilec.process import compile_server
    from tilec.torch import shared

    monkeypatch.setenv("TILEC_CACHE_DIR", str(folder))
    monkeypatch.setattr(compile_server, "running", lambda kind: False)  # another process knows nothing of this
    shared.forget()
    plans: list[Any] = []
    make = lowering.make_plan
    monkeypatch.setattr(lowering, "make_plan", lambda *given: plans.append(make(*given, demands={name: ALL})) or plans[-1])
    return plans


def texts_of(monkeypatch: Any, folder: Any, function: Any, *tensors: torch.Tensor) -> list[str]:
    """The programs of forward and of backward for an H200, which are not run; the tensors may be on the CPU."""
    from tilec.torch import backend, call

    def unmade(partition: Any, written: Any, graph: Any, key: Any) -> Any:
        made = [(r.shape, r.strides, r.dtype) for r in written.results]
        empty = lambda: [torch.empty_strided(*how[:2], dtype=how[2]) for how in made]  # noqa: E731
        return lambda *values: empty() if len(made) > 1 else empty()[0]

    monkeypatch.setenv("TILEC_TORCH_DUMP", str(folder))
    monkeypatch.setattr(backend, "_refuse_other_devices", lambda *given: None)
    monkeypatch.setattr(call.Partition, "_bound", unmade)
    monkeypatch.setattr(call.Partition, "ahead", staticmethod(lambda *given: lambda: None))
    torch.compile(function, backend="tilec", options={"target": "h200", "strict": True})(*tensors).sum().backward()
    return [p.read_text() for p in sorted(folder.rglob("*.tile"))]


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def wide(value: Any) -> Any:
    """At f64, where it is of floats."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().requires_grad_(value.requires_grad) if value.is_floating_point() else value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(map(wide, value))
    return value


def assert_near(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, what: str = "") -> None:
    """`found` is what a compiled model gives, `eager` what the model gives, `exact` what it gives at f64. Values are no further
    from exact than eager's are, up to SLACK and rounding; all else is eager's: shape, type, strides, integers, infinities."""
    assert found.shape == eager.shape and found.dtype == eager.dtype and found.device == eager.device, what
    assert found.stride() == eager.stride(), f"{what}: strides {found.stride()}, eager's are {eager.stride()}"
    if not found.is_floating_point():
        assert torch.equal(found, eager), what
        return
    digits = torch.finfo(found.dtype)
    found, eager, exact = found.detach().double(), eager.detach().double(), exact.detach().double()
    same = (found == exact) | (found.isnan() & exact.isnan()) | ((found == eager) & ~eager.isfinite())
    scale = exact[exact.isfinite()].abs().max().item() if exact.isfinite().any() else 0.0
    allowed = SLACK * (eager - exact).abs().nan_to_num(0.0) + 8 * digits.eps * (exact.abs() + scale) + digits.tiny
    worst = ((found - exact).abs() - allowed).masked_fill(same, -np.inf)
    off = (found - exact).abs().max().item() if found.numel() else 0.0
    assert not (worst > 0).any() and not worst.isnan().any(), f"{what}: off by {off:.3g} of {scale:.3g}"


def tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def assert_agrees(model: Any, *inputs: Any, backward: bool = False, calls: int = 1, **options: Any) -> Any:
    """The compiled model gives what the model gives: results, changed inputs and buffers, and with `backward` the gradients of
    parameters and inputs. Returns the compiled model."""
    eager, exact = copy.deepcopy(model), copy.deepcopy(model)
    exact = exact.double() if isinstance(exact, torch.nn.Module) else exact
    call = compiled(model, **options)
    for _ in range(calls):
        given = [copied(inputs), copied(inputs), wide(inputs)]
        results = []
        for function, values in zip((call, eager, exact), given):
            with torch.set_grad_enabled(backward):
                result = function(*values)
            if backward:
                torch.manual_seed(1)
                loss = [(r, torch.randn(r.shape, dtype=torch.float32)) for r in tensors(result) if r.requires_grad]
                torch.autograd.backward([r for r, _ in loss], [g.to(r.dtype) for r, g in loss])
            results.append(result)
        compare("result", *results)
        compare("input", *given)
        if backward:
            compare("gradient of input", *([t.grad for t in tensors(v)] for v in given))
        if isinstance(model, torch.nn.Module):
            compare("buffer", *(dict(m.named_buffers()) for m in (model, eager, exact)))
            if backward:
                compare("gradient", *({n: p.grad for n, p in m.named_parameters()} for m in (model, eager, exact)))
    return call


def copied(values: Any) -> Any:
    """The same values in other memory that lies alike."""

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        made = value.detach() if 0 in value.stride() else made.copy_(value.detach())
        return made.requires_grad_(value.requires_grad)

    return torch.utils._pytree.tree_map(one, values)


def compare(what: str, found: Any, eager: Any, exact: Any) -> None:
    flat = torch.utils._pytree.tree_flatten
    (f, shape), (e, same), (x, _) = flat(found), flat(eager), flat(exact)
    assert shape == same, what
    for k, (one, two, three) in enumerate(zip(f, e, x)):
        if isinstance(two, torch.Tensor):
            assert_near(one, two, three, f"{what} {k}")
        else:
            assert one == two, f"{what} {k}"

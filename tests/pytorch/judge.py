"""A model compiled beside the model in eager mode: both against f64, forward and one training step.

Results of compiled code may differ from those of eager code, which rounds after every operation; so neither is the reference.
The reference is the model at f64, and compiled results may have ERROR times the error of eager ones, as root mean squares (the
rule of PyTorch's own benchmarks, `torch._dynamo.utils.same`). Eager mode's error may be small by luck; so where a result lies
beyond that bound, draws of the model at f64 show what rounding makes (rounding.py):

- ERROR times what it makes while no value crosses a bound, such as 0 of `relu`, is right. Draws of FINE bits show it.
- A value that crosses one moves a gradient by a step, and with it the gradients of what comes before. A result that is beyond the
  first is right if some draw of f32's bits moves it as far, and if most of those that such draws move with it have moved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from tests.pytorch.rounding import BITS, drawn
from tests.pytorch.zoo import Inputs, Model, without_dropout
from tilec.torch import report

ERROR = 3.0
LEAST = 2e-6  # of the largest value of the reference: an error of eager mode may be 0 by luck
DRAWS = 8
FINE = BITS + 10


@dataclass
class Step:
    """A forward pass, or a training step: the operations of its graphs, those that tilec computes, partitions, and why PyTorch
    computes the others."""

    name: str
    taken: int
    operations: int
    partitions: int
    reasons: dict[str, int]


@dataclass
class Verdict:
    """The differences of the forward pass and of the training step beyond their bounds, or the error that ended either. `rounding`:
    those beyond eager mode's error, but not beyond what rounding makes."""

    model: str
    steps: list[Step] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    rounding: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def right(self) -> bool:
        return not self.wrong and not self.failed


Compile = Callable[[torch.nn.Module], Callable]
Run = Callable[[torch.nn.Module, Callable, Inputs], dict[str, torch.Tensor]]


def judge(model: Model, compile: Compile, training: bool = True) -> Verdict:
    """`compile` makes a callable of a module."""
    verdict = Verdict(model.name)
    torch.manual_seed(0)
    eager = without_dropout(model.make())
    inputs = model.inputs(eager)
    steps = [("inference", _forward, False), ("training", _step, True)][: 2 if training else 1]
    for name, run, train in steps:
        results = {}
        for kind in ("reference", "eager", "compiled"):
            module = copy.deepcopy(eager).train(train)
            values = inputs
            if kind == "reference":
                module, values = _at_f64(module), _wide(inputs)
            torch._dynamo.reset()
            try:
                results[kind] = run(module, compile(module) if kind == "compiled" else module, values)
            except Exception as error:
                if kind != "compiled":
                    raise
                verdict.failed = f"{name}: {type(error).__name__}: {error}"
                return verdict
        found = report()
        parts = sum(len(graph.parts) for graph in found.graphs)
        verdict.steps.append(Step(name, found.taken, found.operations, parts, dict(found.reasons)))
        beyond = list(differences(results))
        if beyond:
            noise = _rounding(eager, inputs, run, train, results["reference"])
            wrong = list(differences(results, noise.bounds(results)))
            for line in beyond:
                found = verdict.wrong if line in wrong else verdict.rounding
                found.append(f"{name}: {line}, rounding {noise.smooth.get(line.split(':')[0], 0.0):.2g}")
    return verdict


@dataclass
class Rounding:
    """Errors of results by their names: those that rounding makes where no value crosses a bound, and those of each draw."""

    smooth: dict[str, float]
    draws: list[dict[str, float]]

    def bounds(self, results: dict[str, dict[str, torch.Tensor]]) -> Callable[[str], float]:
        """The error that is allowed in the result of a name."""
        reference, eager, compiled = (results[k] for k in ("reference", "eager", "compiled"))
        first = {n: max(LEAST * largest(reference[n]), ERROR * noise) for n, noise in self.smooth.items()}
        steps = [{n for n in first if draw[n] > first[n]} for draw in self.draws]
        off = {n for n in first if n in compiled and not error(compiled[n], reference[n], eager[n]) <= first[n]}

        def bound(name: str) -> float:
            among = [n for n, step in enumerate(steps) if name in step]
            if not among:
                return first.get(name, 0.0)
            together = set.intersection(*(steps[n] for n in among))
            return max(self.draws[n][name] for n in among) if 2 * len(together & off) >= len(together) else first[name]

        return bound


def _rounding(eager: torch.nn.Module, inputs: Inputs, run: Run, train: bool, exact: dict[str, torch.Tensor]) -> Rounding:
    def errors(seed: int, bits: int) -> dict[str, float]:
        made = drawn(_at_f64(copy.deepcopy(eager).train(train)), _wide(inputs), run, seed, bits)
        return {n: error(made[n], want) for n, want in exact.items() if want.is_floating_point()}

    draws = [errors(seed, BITS) for seed in range(DRAWS)]
    fine = [errors(seed, FINE) for seed in range(DRAWS)]
    # What a model computes in f32 itself does not round to FINE bits: no more than all draws show.
    smooth = {n: min(max(d[n] for d in fine) * 2.0 ** (FINE - BITS), max(d[n] for d in draws)) for n in fine[0]}
    return Rounding(smooth, draws)


def _wide(inputs: Inputs) -> Inputs:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def _at_f64(module: torch.nn.Module) -> torch.nn.Module:
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")  # PyTorch's grouped product takes no f64
    return module.double()


def _forward(module: torch.nn.Module, call: Callable, inputs: Inputs) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return dict(leaves("output", call(**inputs)))


def _step(module: torch.nn.Module, call: Callable, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Outputs, gradients of every parameter, and the buffers that the step changes."""
    # Models of speech set `requires_grad` of a view of their input, which PyTorch allows where the input itself has none.
    inputs = {k: v.clone().requires_grad_() if v.dim() == 4 else v for k, v in inputs.items()}
    outputs = dict(leaves("output", call(**inputs)))
    loss = None
    for n, value in enumerate(outputs.values()):
        if value.is_floating_point() and value.requires_grad:
            # Weights that differ by element: a sum of plain outputs has no gradient where a norm or a softmax is last.
            weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(n)).to(value.dtype)
            term = (value * weights).sum() / max(value.numel(), 1) ** 0.5
            loss = term if loss is None else loss + term
    assert loss is not None, "no output has a gradient"
    loss.backward()
    results = {k: v.detach() for k, v in outputs.items()}
    results |= {f"gradient of {k}": p.grad for k, p in module.named_parameters() if p.grad is not None}
    results |= {f"gradient of {k}": v.grad for k, v in inputs.items() if v.grad is not None}
    return results | {f"buffer {k}": b.detach() for k, b in module.named_buffers()}


def leaves(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for n, part in enumerate(value):
            yield from leaves(f"{name}[{n}]", part)


def differences(results: dict[str, dict[str, torch.Tensor]], least: Callable[[str], float] | None = None) -> Iterator[str]:
    """What compiled results have that is not as it must be. An element that is eager mode's, too, is as it must be. `least` is the
    error that is allowed in any case of the result of a name: LEAST times its largest value, if it is not given."""
    reference, eager, compiled = (results[k] for k in ("reference", "eager", "compiled"))
    for missing in eager.keys() ^ compiled.keys():
        yield f"{missing}: {'missing' if missing in eager else 'not in eager mode'}"
    for name in eager.keys() & compiled.keys():
        want, plain, got = reference[name], eager[name], compiled[name]
        if (got.shape, got.dtype) != (plain.shape, plain.dtype):
            yield f"{name}: {got.dtype}{tuple(got.shape)}, eager mode {plain.dtype}{tuple(plain.shape)}"
        elif got.numel() and _strides(got) != _strides(plain):
            yield f"{name}: strides {got.stride()}, eager mode {plain.stride()}"
        elif not got.is_floating_point():
            if not (torch.equal(got, plain) or torch.equal(got, want)):
                yield f"{name}: {int((got != plain).sum())} of {got.numel()} differ"
        else:
            lost = plain.isnan() & ~want.isnan()  # by eager mode alone: nothing to compare with
            want, plain, got = (v.masked_fill(lost, 0) for v in (want, plain, got))
            allowed = max(ERROR * error(plain, want), LEAST * largest(want) if least is None else least(name))
            if not (off := error(got, want, plain)) <= allowed:
                yield f"{name}: error {off:.2g}, eager mode {error(plain, want):.2g}, largest value {largest(want):.2g}"


def _strides(value: torch.Tensor) -> list[int]:
    """Those that address anything: a stride along one place does not."""
    return [s for s, n in zip(value.stride(), value.shape) if n > 1]


def error(value: torch.Tensor, want: torch.Tensor, plain: torch.Tensor | None = None) -> float:
    """Root mean square of the difference; infinities and NaNs at the same places do not count, nor do elements of `plain`."""
    value, want = value.double(), want.double()
    same = (value == want) | (value.isnan() & want.isnan())
    if plain is not None:
        same |= (value == plain.double()) | (value.isnan() & plain.isnan())
    return float(torch.where(same, 0.0, value - want).square().mean().sqrt()) if value.numel() else 0.0


def largest(value: torch.Tensor) -> float:
    finite = value[value.isfinite()].double()
    return float(finite.abs().max()) if finite.numel() else 0.0

"""Convolutions on the CPU, drawn by a seed, beside PyTorch's own: the time of a call of each, and the time that tilec predicts.

Small and large images, windows of 1 to 7 elements, strides, dilations, borders, groups, depthwise and transposed ones, one to
three spatial dimensions, channels before the pixels or last, f32 and bf16. The threads of both wait without spinning: they would
hold the cores that the other's need.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.measure import on_cpu
from benchmarks.runner import Row

MOST = 2e9  # operations of a convolution
LEAST = 2e4


@dataclass(frozen=True)
class Convolution:
    batch: int
    channels: int
    to: int
    image: tuple[int, ...]
    window: int
    stride: int = 1
    dilation: int = 1
    border: int = 0
    groups: int = 1
    transposed: bool = False
    last: bool = False
    dtype: str = "f32"

    @property
    def name(self) -> str:
        size = "x".join(map(str, (self.batch, self.channels, *self.image)))
        window = "x".join([str(self.window)] * len(self.image))
        unusual = {"stride": self.stride - 1, "dilation": self.dilation - 1, "padding": self.border, "groups": self.groups - 1}
        values = {"stride": self.stride, "dilation": self.dilation, "padding": self.border, "groups": self.groups}
        more = [f"{name} {values[name]}" for name, other in unusual.items() if other]
        more += ["transposed"] * self.transposed + ["channels last"] * self.last
        return ", ".join([f"{window} {size} to {self.to} {self.dtype}", *more])

    @property
    def extents(self) -> tuple[int, ...]:
        """Of the result's pixels."""
        span = self.dilation * (self.window - 1)
        if self.transposed:
            return tuple((n - 1) * self.stride - 2 * self.border + span + 1 for n in self.image)
        return tuple((n + 2 * self.border - span - 1) // self.stride + 1 for n in self.image)

    @property
    def flops(self) -> float:
        """Those of its products and sums."""
        pixels = 1
        for n in self.image if self.transposed else self.extents:
            pixels *= n
        return 2.0 * self.batch * pixels * self.channels * self.to // self.groups * self.window ** len(self.image)

    def module(self):
        import torch

        rank = len(self.image)
        kind = getattr(torch.nn, f"Conv{'Transpose' if self.transposed else ''}{rank}d")
        made = kind(
            self.channels, self.to, self.window, stride=self.stride, padding=self.border, dilation=self.dilation, groups=self.groups
        )
        x = torch.randn(self.batch, self.channels, *self.image)
        if self.dtype == "bf16":
            made, x = made.bfloat16(), x.bfloat16()
        if self.last:
            layout = torch.channels_last if rank == 2 else torch.channels_last_3d
            made, x = made.to(memory_format=layout), x.to(memory_format=layout)
        return made, x


def draw(random: Random) -> Convolution:
    """One of the kinds that networks have."""
    while True:
        rank = random.choice((1, 2, 2, 2, 2, 2, 3))
        side = random.choice({1: (50, 128, 400, 1500), 2: (4, 7, 8, 13, 14, 16, 28, 32, 56), 3: (4, 7, 8, 14)}[rank])
        image = (side,) * rank if random.random() < 0.8 else tuple(max(2, side - d) for d in range(rank))
        window = random.choice((1, 1, 2, 3, 3, 3, 3, 4, 5, 7))
        channels, to = (random.choice((3, 16, 24, 32, 48, 64, 65, 96, 128, 256, 512)) for _ in range(2))
        kind = random.choice(("plain",) * 6 + ("groups", "depthwise", "transposed"))
        groups = {"groups": random.choice((2, 4, 8)), "depthwise": channels}.get(kind, 1)
        channels, to = (channels, channels) if kind == "depthwise" else (-(-n // groups) * groups for n in (channels, to))
        dilation = 2 if random.random() < 0.1 else 1
        found = Convolution(
            random.choice((1, 1, 2, 8)), channels, to, image, window, random.choice((1, 1, 1, 2)), dilation,
            random.choice((0, dilation * (window // 2))), groups, kind == "transposed",
            rank > 1 and random.random() < 0.25, "bf16" if random.random() < 0.2 else "f32",
        )  # fmt: skip
        if min(found.extents) > 0 and LEAST <= found.flops <= MOST:
            return found


def suite(count: int, seed: int) -> list[Row]:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # in the worker, before PyTorch and Numba start their threads
    random = Random(seed)
    drawn = dict.fromkeys(draw(random) for _ in range(2 * count))
    return [Row(c.name, lambda c=c: compare(c), 120, lambda c=c: {"prepared": bool(compiled(c))}) for c in list(drawn)[:count]]


def compiled(c: Convolution):
    """The module, its input, the compiled module, and the texts of its programs."""
    import torch

    import tilec.torch  # noqa: F401

    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = c.module()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["TILEC_TORCH_DUMP"] = folder
        made = torch.compile(module, backend="tilec", dynamic=False)
        made(x)
        texts = [p.read_text() for p in sorted(Path(folder).rglob("*.tile"))]
    return module, x, made, texts


def compare(c: Convolution) -> dict:
    import torch

    import tilec
    from tilec.core.host import available_cores

    torch.set_num_threads(available_cores())
    module, x, made, texts = compiled(c)
    with torch.no_grad():
        times = on_cpu({"tilec": lambda: made(x), "torch": lambda: module(x)}, rounds=7, budget=0.012)
        ours, theirs, exact = made(x).double(), module(x).double(), module.double()(x.double())
    error, usual = ((y - exact).abs().max().item() for y in (ours, theirs))
    kernels = [k for text in texts for k in tilec.compile(text, target="cpu").plan.kernels]
    return {
        "group": "convolutions", "flops": c.flops, "predicted_us": sum(k.prediction.time_us for k in kernels),
        "families": [k.options.name for k in kernels],
        "right": error <= 2 * usual + 1e-6 * exact.abs().max().item(),
        "times_us": {k: t.median for k, t in times.items()}, "range_us": {k: (t.low, t.high) for k, t in times.items()},
    }  # fmt: skip


__all__ = ["Convolution", "draw", "suite"]

"""Models that are called with other sizes each time, for `python -m benchmarks sizes`: first calls, later ones, and stalls.

A row is a model compiled in one way, in a process of its own with empty caches. Its calls are drawn from a seed, the same for all
ways. They are made once, each for the first time at its sizes or not, and then once more, when all sizes have been seen. Results of
the first calls are compared with eager mode's.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.device import alone
from benchmarks.model_rows import WAYS

Facts = dict[str, Any]
Inputs = dict[str, Any]
SLOW_S, STALL_S = 0.2, 0.05  # of a first call; of a call, longer than the same one took later
ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.04}  # root mean square of what differs from eager mode, over that of its result
TOKENS = 20  # that `generate` makes
LONGEST = {"cpu": 299, "cuda": 1499}


@dataclass(frozen=True)
class Calls:
    """A model and its calls. `make(device)`: the module. `draw(random)`: what a call is given, in numbers. `inputs(numbers,
    device)`: the arguments for them. `step(module, compiled, inputs)`: the call, which returns a tensor; `compiled` stands for the
    module. `tokens(numbers)`: of a call, or images."""

    name: str
    count: int
    make: Callable[[str], nn.Module]
    draw: Callable[[random.Random], tuple[int, ...]]
    inputs: Callable[[tuple[int, ...], str], Inputs]
    tokens: Callable[[tuple[int, ...]], int]
    step: Callable[[nn.Module, Callable, Inputs], Tensor] = lambda module, compiled, inputs: _tensor(compiled(**inputs))

    def drawn(self, seed: int = 0) -> list[tuple[int, ...]]:
        chosen = random.Random(f"{self.name} {seed}")
        return [self.draw(chosen) for _ in range(self.count)]


def _tensor(made: Any) -> Tensor:
    return made if isinstance(made, Tensor) else made[0]


# ---- models ----------------------------------------------------------------------------------------------------------

SMALL = dict(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    vocab_size=512, max_position_embeddings=4096,
)  # fmt: skip
WIDE = SMALL | dict(
    hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256
)
OTHER = ("head_dim", "num_key_value_heads")  # of decoders alone
IMAGE = 64  # the side of a ViT's image on a CPU


def _typed(module: nn.Module, device: str) -> nn.Module:
    return module.to(device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16).eval()


def _from_transformers(kind: str, device: str) -> nn.Module:
    """A model of transformers with random weights: of small widths on a CPU, of published ones on a GPU."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    torch.manual_seed(0)
    cpu = device == "cpu"
    plain = {k: v for k, v in SMALL.items() if k not in OTHER}
    with torch.device(device):
        if kind == "llama":
            module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SMALL if cpu else WIDE)))
        elif kind == "bert":
            sizes = plain if cpu else dict(num_hidden_layers=4)
            module = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
        else:
            sizes = plain | {"image_size": IMAGE} if cpu else dict(num_hidden_layers=4)
            module = transformers.ViTModel(transformers.ViTConfig(**sizes), add_pooling_layer=False)
    module.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, do_sample=False)
    return _typed(module, device)


class Stage(nn.Module):
    def __init__(self, fan_in: int, fan_out: int):
        super().__init__()
        self.first, self.second = nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.Conv2d(fan_out, fan_out, 3, padding=1)
        self.norm = nn.GroupNorm(8, fan_out)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.norm(self.second(nn.functional.silu(self.first(x)))))


class UNet(nn.Module):
    """Three levels of convolutions: down by strides of 2, up by the nearest pixel, joined with what was at each level."""

    def __init__(self, width: int):
        super().__init__()
        self.begin = Stage(3, width)
        self.down = nn.ModuleList(nn.Conv2d(width * n, width * 2 * n, 3, 2, 1) for n in (1, 2))
        self.stages = nn.ModuleList(Stage(width * n, width * n) for n in (2, 4))
        self.up = nn.ModuleList(Stage(width * 3 * n, width * n) for n in (2, 1))
        self.end = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, passed = self.begin(x), []
        for down, stage in zip(self.down, self.stages):
            passed.append(x)
            x = stage(down(x))
        for up, before in zip(self.up, reversed(passed)):
            x = up(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), before], 1))
        return self.end(x)


def _unet(device: str) -> nn.Module:
    torch.manual_seed(0)
    return _typed(UNet(16 if device == "cpu" else 64), device)


def _words(numbers: tuple[int, ...], device: str, padded: bool = False) -> Inputs:
    """Tokens of (batch, length); `padded`: the last sequences are shorter, and a mask says so."""
    batch, length = numbers[:2]
    tokens = torch.randint(3, 512, (batch, length), generator=torch.Generator().manual_seed(batch + length)).to(device)
    if not padded:
        return {"input_ids": tokens, "use_cache": False}
    ends = length - torch.arange(batch, device=device) * length // (2 * batch)
    return {"input_ids": tokens, "attention_mask": (torch.arange(length, device=device) < ends[:, None]).long()}


def _pixels(numbers: tuple[int, ...], device: str, name: str) -> Inputs:
    batch, height, width = numbers
    drawn = torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(sum(numbers)))
    return {name: drawn.to(device, torch.float32 if device == "cpu" else torch.bfloat16)}


def _prompt(numbers: tuple[int, ...], device: str) -> Inputs:
    """For `generate` as it is by default: its cache grows by a token a step."""
    return {"input_ids": _words((1, *numbers), device)["input_ids"], "max_new_tokens": TOKENS}


def _generate(module: nn.Module, compiled: Callable, inputs: Inputs) -> Tensor:
    """`generate` calls the module's `forward`, for which `compiled` is put."""
    own = module.forward
    module.forward = compiled
    try:
        return module.generate(**inputs)
    finally:
        module.forward = own


def _long_tailed(draw: random.Random, most: int) -> int:
    """A length, half of which are below a sixteenth of `most`: the logarithms are normal."""
    return min(most, max(4, int(draw.lognormvariate(math.log(most / 16), 1.0))))


def loads(device: str) -> list[Calls]:
    cpu = device == "cpu"
    llama, bert, vit = (partial(_from_transformers, kind) for kind in ("llama", "bert", "vit"))
    side, words = IMAGE if cpu else 224, lambda n: n[0] * n[1]
    longest, steps = (128, 12) if cpu else (512, 64)
    return [
        Calls("llama", 40, llama, lambda r: (r.choice((1, 2, 4)), r.randint(17, LONGEST[device])), _words, words),
        Calls("bert, padded", 40, bert, lambda r: (r.randint(1, 16), r.randint(8, longest)), partial(_words, padded=True), words),
        Calls("vit", 20, vit, lambda r: (r.randint(1, 64), side, side), partial(_pixels, name="pixel_values"), lambda n: n[0]),
        Calls("unet", 20, _unet, lambda r: (r.choice((1, 2, 4)), 8 * r.randint(4, steps), 8 * r.randint(4, steps)),
              partial(_pixels, name="x"), lambda n: n[0]),
        Calls("generate", 4, llama, lambda r: (r.randint(5, 60),), _prompt, lambda n: TOKENS, _generate),
    ]  # fmt: skip


def serving(device: str, requests: int) -> Calls:
    """One sequence a request, of lengths with a long tail."""
    llama = partial(_from_transformers, "llama")
    return Calls("serving", requests, llama, lambda r: (1, _long_tailed(r, LONGEST[device])), _words, lambda n: n[1])


# ---- measured --------------------------------------------------------------------------------------------------------


def measure(load: Calls, way: str, device: str, limit_s: float = 300.0) -> Facts:
    """Facts of a row. After `limit_s` seconds of first calls the others are left out, and `calls` says how many were made."""
    from tilec.torch.backend import register

    register()
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    module, drawn, first, right = load.make(device), load.drawn(), [], True
    own = module.forward if load.step is _generate else module
    compiled = own if way == "eager" else torch.compile(own, **WAYS[way])

    def timed(inputs: Inputs, function: Callable) -> tuple[float, Tensor]:
        wait()
        start = time.perf_counter()
        made = load.step(module, function, inputs)
        wait()
        return time.perf_counter() - start, made

    with torch.no_grad(), alone():
        for numbers in drawn:
            inputs = load.inputs(numbers, device)
            seconds, made = timed(inputs, compiled)
            first.append(seconds)
            if way != "eager":
                right &= _agrees(made, timed(inputs, own)[1])
            if sum(first) > limit_s:
                break
        later = [timed(load.inputs(numbers, device), compiled)[0] for numbers in drawn[: len(first)]]
    return facts(load, drawn[: len(first)], first, later) | {"right": right, "compilations": _compilations(way)}


def facts(load: Calls, drawn: list[tuple[int, ...]], first: list[float], later: list[float]) -> Facts:
    """Of calls in order: seconds when they were first made, and when they were made again."""
    tokens = sum(map(load.tokens, drawn))
    return {
        "calls": len(first), "of": load.count, "first_s": sum(first), "slow": sum(s > SLOW_S for s in first),
        "slowest_s": max(first), "stalls": sum(a - b > STALL_S for a, b in zip(first, later)),
        "last_s": first[-1], "later_us": 1e6 * statistics.fmean(later), "token_us": 1e6 * sum(later) / tokens,
        "first_token_us": 1e6 * sum(first) / tokens,
        "each": [[*numbers, round(a, 5), round(b, 5)] for numbers, a, b in zip(drawn, first, later)],
    }  # fmt: skip


def _agrees(made: Tensor, want: Tensor) -> bool:
    if not want.is_floating_point():
        return made.shape == want.shape  # tokens of random weights: two nearly equal ones may change places
    error = (made.float() - want.float()).square().mean().sqrt() / want.float().square().mean().sqrt()
    return made.shape == want.shape and error.item() <= ERROR[want.dtype]


def _compilations(way: str) -> Mapping[str, int]:
    """Graphs that Dynamo made, and of tilec how often their partitions were compiled."""
    from torch._dynamo.utils import counters

    from tilec.torch import report

    found = {"graphs": int(counters["stats"]["unique_graphs"])}
    return found | ({"programs": sum(p.sizes for g in report().graphs for p in g.parts)} if way == "tilec" else {})


__all__ = ["Calls", "facts", "loads", "measure", "serving"]

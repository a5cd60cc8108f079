"""Compiles a small GPT of PyTorch's by tilec, trains it on sums that it makes up, and has it add.

    python examples/gpt.py [--steps 400] [--backend tilec|inductor|eager]

Prints the loss, what became of the model's graphs, and answers. `TILEC_TORCH_DUMP=DIR` writes the model as `.tile` programs.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

import tilec.torch

SIGNS = "0123456789+=;"
LENGTH = 9  # "17+25=42;"


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.layers(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2):
        super().__init__()
        self.signs, self.places = nn.Embedding(len(SIGNS), width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(SIGNS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Of ids [batch, length], logits [batch, length, signs]."""
        x = self.signs(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def sums(count: int, device: str) -> torch.Tensor:
    """Lines such as `17+25=42;`, as ids [count, LENGTH]."""
    pairs = torch.randint(0, 50, (count, 2)).tolist()
    lines = [f"{a:02}+{b:02}={a + b:02};" for a, b in pairs]
    return torch.tensor([[SIGNS.index(c) for c in line] for line in lines], device=device)


def answer(model: nn.Module, question: str, device: str) -> str:
    """The question, continued sign by sign. All steps have the model's whole length, so that it is compiled once."""
    ids = torch.zeros(1, LENGTH, dtype=torch.long, device=device)
    ids[0, : len(question)] = torch.tensor([SIGNS.index(c) for c in question])
    for place in range(len(question), LENGTH):
        ids[0, place] = model(ids)[0, place - 1].argmax()
    return "".join(SIGNS[i] for i in ids[0].tolist())


def main() -> float:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--backend", choices=("tilec", "inductor", "eager"), default="tilec")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    plain = GPT().to(device)
    model = plain if args.backend == "eager" else torch.compile(plain, backend=args.backend)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    begin, loss = time.perf_counter(), torch.tensor(0.0)
    for step in range(args.steps):
        lines = sums(64, device)
        loss = F.cross_entropy(model(lines).flatten(0, 1)[:-1], lines.flatten()[1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in (0, 1) or step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - begin:.1f} s")
    with torch.no_grad():
        print(*(answer(model, question, device) for question in ("17+25=", "04+38=", "49+49=")))
    if args.backend == "tilec":
        print(tilec.torch.report())
    return loss.item()


if __name__ == "__main__":
    main()

"""Makes causal attention and its gradient an operator of PyTorch, and compares it with PyTorch's own.

    python examples/torch_operator.py [--sizes 2,4,256,64] [--device cpu|cuda]

The gradient does not store the weights: it computes them again, from the logarithms of the rows' sums (`l`) that the forward op
keeps for it. Nothing takes `l_grad`, so that `l` is not differentiable.
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional as F

import tilec.torch

ATTENTION = """
op attention(q: f32[B, H, S, D], k: f32[B, H, S, D], v: f32[B, H, S, D]) -> (o: f32[B, H, S, D], l: f32[B, H, S]) {
    s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(f32(D)) if j <= i else -inf
    l[b, h, i]    = logsumexp[j](s[b, h, i, j])
    o[b, h, i, d] = sum[j](exp(s[b, h, i, j] - l[b, h, i]) * v[b, h, j, d])
}
op attention_backward(
    q: f32[B, H, S, D], k: f32[B, H, S, D], v: f32[B, H, S, D], o: f32[B, H, S, D], l: f32[B, H, S], o_grad: f32[B, H, S, D]
) -> (q_grad: f32[B, H, S, D], k_grad: f32[B, H, S, D], v_grad: f32[B, H, S, D]) {
    s[b, h, i, j]      = sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(f32(D)) if j <= i else -inf
    p[b, h, i, j]      = exp(s[b, h, i, j] - l[b, h, i])
    t[b, h, i]         = sum[d](o_grad[b, h, i, d] * o[b, h, i, d])
    p_grad[b, h, i, j] = sum[d](o_grad[b, h, i, d] * v[b, h, j, d])
    s_grad[b, h, i, j] = p[b, h, i, j] * (p_grad[b, h, i, j] - t[b, h, i]) / sqrt(f32(D))
    q_grad[b, h, i, d] = sum[j](s_grad[b, h, i, j] * k[b, h, j, d])
    k_grad[b, h, j, d] = sum[i](s_grad[b, h, i, j] * q[b, h, i, d])
    v_grad[b, h, j, d] = sum[i](p[b, h, i, j] * o_grad[b, h, i, d])
}
"""
attention = tilec.torch.op(ATTENTION, op="attention", backward=ATTENTION, name="examples::attention")


def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.relu(attention(2 * q, k, v).o)


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.scaled_dot_product_attention(2 * q, k, v, is_causal=True))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="2,4,256,64", help="batch, heads, length, head dimension")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(argv)
    sizes = [int(n) for n in chosen.sizes.split(",")]
    given = [torch.randn(sizes, device=chosen.device, requires_grad=True) for _ in range(3)]
    ways = {
        "by itself": model,
        "in a compiled model": torch.compile(model, backend="tilec", fullgraph=True),
        "head by head, by vmap": lambda *x: torch.vmap(model, in_dims=1, out_dims=1)(*(t.unsqueeze(2) for t in x)).squeeze(2),
    }
    wanted = expected(*given)
    grads = torch.autograd.grad(wanted.square().sum(), given)
    for name, way in ways.items():
        made = way(*given)
        found = torch.autograd.grad(made.square().sum(), given)
        worst = max(float((a - b).detach().abs().max()) for a, b in zip((made, *found), (wanted, *grads)))
        print(f"{name}: largest difference from PyTorch's {worst:.1e}")
        torch.testing.assert_close((made, *found), (wanted, *grads), rtol=1e-3, atol=1e-3)
    print(tilec.torch.report())


if __name__ == "__main__":
    from tilec.torch.backend import register

    register()  # where tilec is not installed, but in the path
    main()

"""What examples compute, in eager PyTorch, where it is more than one call."""

from __future__ import annotations


class _Torch:
    """PyTorch, imported when a benchmark first asks for something of it."""

    def __getattr__(self, name):
        import torch

        return getattr(torch, name)


torch = _Torch()


def torch_rmsnorm(x, gain):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], gain, 1e-6)


def torch_attention(q, k, v, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def torch_attention_backward(q, k, v, o, lse, do):
    s = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    p = torch.exp(s - lse[..., None]).tril()
    ds = p * (do.float() @ v.float().mT - (do.float() * o.float()).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return tuple(x.to(q.dtype) for x in (ds @ k.float(), ds.mT @ q.float(), p.mT @ do.float()))


def torch_dropout(x, p, seed):
    """Draws numbers of its own."""
    return torch.nn.functional.dropout(x, 0.1)


def torch_residual_block(x, skip, gain, bias, p, seed):
    total = x + skip
    normal = torch.nn.functional.layer_norm(total, total.shape[-1:], gain, bias)
    return torch_dropout(torch.nn.functional.gelu(normal), p, seed), total


def torch_rotary(x):
    length, width = x.shape[-2:]
    d = torch.arange(width // 2, device=x.device, dtype=torch.float32)
    angle = torch.outer(torch.arange(length, device=x.device, dtype=torch.float32), 10000 ** (-2 * d / width))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def torch_jacobi(x):
    y = x.clone()
    y[1:-1, 1:-1] = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 4
    return y


def torch_mlp(x, w1, b1, w2, b2):
    return torch.addmm(b2, torch.nn.functional.gelu(torch.addmm(b1, x, w1)), w2)


def torch_transformer_block(x, attn_gain, mlp_gain, wq, wk, wv, wo, w_gate, w_up, w_down):
    n = torch_rmsnorm(x, attn_gain)
    q, k, v = (torch.einsum("bse,ehd->bhsd", n, w) for w in (wq, wk, wv))
    o = torch_attention(torch_rotary(q), torch_rotary(k), v, causal=True)
    r = x + torch.einsum("bhsd,hde->bse", o, wo)
    m = torch_rmsnorm(r, mlp_gain)
    return r + (torch.nn.functional.silu(m @ w_gate) * (m @ w_up)) @ w_down

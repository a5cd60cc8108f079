"""What examples compute, by hand: plain NumPy, in the type of the arrays. Tests give it f64."""

from __future__ import annotations

import math

import numpy as np


def np_erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def np_gelu(x):
    return x * (1 + np_erf(x / math.sqrt(2))) / 2


def np_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def np_logsumexp(x):
    m = x.max(-1)
    return m + np.log(np.exp(x - m[..., None]).sum(-1))


def np_rand(seed, counters):
    """Philox4x32 of seven rounds, on Python's integers."""
    word = 0xFFFFFFFF

    def number(counter):
        a, b, c, d = counter // 4 & word, counter >> 34, 0, 0
        first, second = seed & word, seed >> 32 & word
        for _ in range(7):
            left, right = a * 0xD2511F53, c * 0xCD9E8D57
            a, b, c, d = (right >> 32) ^ b ^ first, right & word, (left >> 32) ^ d ^ second, left & word
            first, second = (first + 0x9E3779B9) & word, (second + 0xBB67AE85) & word
        return ((a, b, c, d)[counter % 4] >> 8) * 2.0**-24

    return np.array([number(int(n)) for n in counters.ravel()]).reshape(counters.shape)


def np_dropout(x, p, seed):
    kept = np_rand(int(seed), np.arange(x.size).reshape(x.shape)) >= p
    return np.where(kept, x / (1 - p), 0)


def np_residual_block(x, skip, gain, bias, p, seed):
    total = x + skip
    return np_dropout(np_gelu(np_layernorm(total, gain, bias)), p, seed), total


def np_layernorm(x, gain, bias):
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gain + bias


def np_rmsnorm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain


def np_cross_entropy(logits, target):
    return np.mean(np_logsumexp(logits) - logits[np.arange(len(target)), target])


def np_attention(q, k, v, causal=False):
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(s.shape[-1], dtype=bool), s, -np.inf)
    return np_softmax(s) @ v


def np_attention_backward(q, k, v, o, lse, do):
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    p = np.where(np.tri(s.shape[-1], dtype=bool), np.exp(s - lse[..., None]), 0)
    ds = p * (do @ v.swapaxes(-1, -2) - (do * o).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do


def np_rotary(x):
    length, width = x.shape[-2:]
    half = width // 2
    angle = np.outer(np.arange(length), 10000.0 ** (-2 * np.arange(half) / width)).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def np_conv2d(x, f):
    (n, _, h, w), (k, _, r, s) = x.shape, f.shape
    padded = np.pad(x, ((0, 0), (0, 0), (r // 2, r // 2), (s // 2, s // 2)))
    y = np.zeros((n, k, h, w))
    for i in range(r):
        for j in range(s):
            y += np.einsum("nchw,kc->nkhw", padded[:, :, i : i + h, j : j + w], f[:, :, i, j])
    return y


def np_max_pool(x):
    n, c, h, w = x.shape
    return x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))


def np_jacobi(x):
    y = x.copy()
    y[1:-1, 1:-1] = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 4
    return y


def np_transformer_block(x, attn_gain, mlp_gain, wq, wk, wv, wo, w_gate, w_up, w_down):
    n = np_rmsnorm(x, attn_gain)
    q, k, v = (np.einsum("bse,ehd->bhsd", n, w, optimize=True) for w in (wq, wk, wv))  # by BLAS
    o = np_attention(np_rotary(q), np_rotary(k), v, causal=True)
    r = x + np.einsum("bhsd,hde->bse", o, wo, optimize=True)
    m = np_rmsnorm(r, mlp_gain)
    gate = m @ w_gate
    return r + (gate / (1 + np.exp(-gate)) * (m @ w_up)) @ w_down

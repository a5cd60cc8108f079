"""Operators that tests make of programs, and the same by PyTorch."""

from __future__ import annotations

import torch

import tilec.torch

ROWS = """
op rows(x: f64[M, N]) -> (y: f64[M, N]) { y[i, j] = softmax[j](x[i, j]) }
op rows_backward(y: f64[M, N], y_grad: f64[M, N]) -> (x_grad: f64[M, N]) {
    s[i]         = sum[j](y[i, j] * y_grad[i, j])
    x_grad[i, j] = y[i, j] * (y_grad[i, j] - s[i])
}
"""
LAYER = """
op layer(x: f64[M, K], w: f64[K, N], a: f64) -> (y: f64[M, N], top: i64[M]) {
    h[i, j] = a * sum[k](x[i, k] * w[k, j])
    y[i, j] = tanh(h[i, j])
    top[i]  = argmax[j](h[i, j])
}
op layer_backward(x: f64[M, K], w: f64[K, N], a: f64, y: f64[M, N], y_grad: f64[M, N])
    -> (x_grad: f64[M, K], w_grad: f64[K, N], a_grad: f64) {
    g[i, j]      = y_grad[i, j] * (1 - y[i, j] * y[i, j])
    x_grad[i, k] = a * sum[j](g[i, j] * w[k, j])
    w_grad[k, j] = a * sum[i](x[i, k] * g[i, j])
    a_grad       = sum[i, j, k](g[i, j] * x[i, k] * w[k, j])
}
"""
TWICE = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }"


def rows(**options):
    return tilec.torch.op(ROWS, op="rows", backward=ROWS, **options)


def layer():
    return tilec.torch.op(LAYER, op="layer", backward=LAYER)


def parts(m=3, k=4, n=5, grad=True):
    x, w = torch.randn(m, k, dtype=torch.float64), torch.randn(k, n, dtype=torch.float64)
    return [t.requires_grad_(grad) for t in (x, w, torch.tensor(0.7, dtype=torch.float64))]


def by_torch(x, w, a):
    h = a * (x @ w)
    return torch.tanh(h), h.argmax(1)


def agree(got, wanted):
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, check_stride=True)

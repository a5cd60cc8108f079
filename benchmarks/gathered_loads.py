"""Programs for matrix units whose factors lie where memory tells: rows in another order, weights of experts, pages of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.workloads import Bound, Input, Workload, functional, limit, torch

PAGES = (16, 64)


def loads() -> Iterator[Workload]:
    yield permuted(8192, 4096, 4096)
    yield experts(128, 128, 4096, 2048, 16)
    for page in PAGES:
        yield prefill(page)
        yield paged_decoding(page)


def permuted(rows: int, n: int, k: int) -> Workload:
    text = """op permuted(x: bf16[S, K], p: i32[T], w: bf16[K, N]) -> (y: bf16[T, N]) {
        y[t, n] = sum[k](x[p[t], k] * w[k, n])
    }"""

    def peer(x, p, w):
        return x[p.long()] @ w

    inputs = (Input("bf16", (rows, k)), Input("i32", (rows,), below=rows), Input("bf16", (k, n), 1 / math.sqrt(k)))
    return Workload(
        f"product of gathered rows {rows}x{n}x{k} bf16", text, inputs, peer, limit("bf16", k / 8, 4), flops=2.0 * rows * n * k,
        form="products of gathered rows",
    )  # fmt: skip


def experts(blocks: int, rows: int, n: int, k: int, count: int) -> Workload:
    """A mixture of experts: blocks of tokens, each of which one expert multiplies; blocks of one expert follow one another."""
    text = """op experts(x: bf16[S, K], p: i32[B, I], e: i32[B], w: bf16[E, K, N]) -> (y: bf16[B, I, N]) {
        y[b, i, n] = sum[k](x[p[b, i], k] * w[e[b], k, n])
    }"""

    def peer(x, p, e, w):
        return torch.stack([block @ w[int(which)] for block, which in zip(x[p.long()], e)])

    def grouped(x, p, e, w):
        """With the ends of each expert's rows from before."""
        ends, places = (torch.bincount(e.long(), minlength=count).cumsum(0) * rows).int(), p.reshape(-1).long()
        return lambda: torch._grouped_mm(x[places], w, offs=ends)

    tokens = blocks * rows // 2
    inputs: tuple[Input, ...] = (Input("bf16", (tokens, k)), Input("i32", (blocks, rows), below=tokens))
    inputs += (Input("i32", (blocks,), below=count, ascend=True),)
    inputs += (Input("bf16", (count, k, n), 1 / math.sqrt(k)),)
    return Workload(
        f"product by experts {blocks}x{rows}x{n}x{k} of {count} bf16", text, inputs, peer, limit("bf16", k / 8, 4),
        flops=2.0 * blocks * rows * n * k, expected=peer, compiled_peers={"_grouped_mm": grouped}, form="products of gathered rows",
    )  # fmt: skip


def _from_pages(x, table):
    return x[table.long()].flatten(1, 2).transpose(1, 2)


def prefill(page: int, batch: int = 4, length: int = 4096, heads: int = 16, shared: int = 4, d: int = 128) -> Workload:
    """Causal attention over keys in pages, `heads` of which share `shared` ones."""
    text = """op attention(q: bf16[B, H, S, D], k: bf16[G, P, H2, D], v: bf16[G, P, H2, D], table: i32[B, U])
        -> (o: bf16[B, H, S, D]) {
        t[b, h, i, j] = sum[d](q[b, h, i, d] * k[table[b, j // P], j % P, h // (H // H2), d]) / sqrt(f32(D)) where j in 0:U * P
        s[b, h, i, j] = t[b, h, i, j] if j <= i else -inf
        p[b, h, i, j]: bf16 = softmax[j](s[b, h, i, j])
        o[b, h, i, d] = sum[j](p[b, h, i, j] * v[table[b, j // P], j % P, h // (H // H2), d])
    }"""

    def peer(q, k, v, table):
        keys, values = (_from_pages(x, table) for x in (k, v))
        return functional().scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)

    pages = batch * length // page
    pool = Input("bf16", (pages, page, shared, d))
    table = Input("i32", (batch, length // page), below=pages)
    return Workload(
        f"attention over pages of {page}, {batch}x{heads}x{length}x{d} bf16", text,
        (Input("bf16", (batch, heads, length, d)), pool, pool, table), peer, Bound(2.0**-6, 2.0**-6),
        flops=2.0 * batch * heads * length * length * d, form="attention over pages",
    )  # fmt: skip


def paged_decoding(page: int, batch: int = 8, length: int = 8192, heads: int = 32, shared: int = 4, d: int = 128) -> Workload:
    """One query for each sequence and head."""
    text = """op attention(q: bf16[B, H, D], k: bf16[G, P, H2, D], v: bf16[G, P, H2, D], table: i32[B, U]) -> (o: bf16[B, H, D]) {
        s[b, h, j] = sum[d](q[b, h, d] * k[table[b, j // P], j % P, h // (H // H2), d]) / sqrt(f32(D)) where j in 0:U * P
        p[b, h, j]: bf16 = softmax[j](s[b, h, j])
        o[b, h, d] = sum[j](p[b, h, j] * v[table[b, j // P], j % P, h // (H // H2), d])
    }"""

    def peer(q, k, v, table):
        keys, values = (_from_pages(x, table) for x in (k, v))
        return functional().scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]

    whole = prefill(page, batch, length, heads, shared, d)
    return replace(
        whole, name=f"decoding over pages of {page}, {batch}x{heads}x{length}x{d} bf16", program=text, torch=peer,
        inputs=(Input("bf16", (batch, heads, d)), *whole.inputs[1:]), flops=4.0 * batch * heads * length * d,
    )  # fmt: skip

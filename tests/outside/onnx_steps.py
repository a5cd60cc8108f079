"""ONNX's recurrent layers: each step of a sequence is equations of its own, of the state before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.outside.onnx_table import Node, expressed
from tests.outside.traced import by_torch
from tilec.torch.program import Graph, Tensor, Unsupported

MOST_STEPS = 64


@expressed("RNN", "GRU", "LSTM")
def recurrent(g: Graph, n: Node) -> list[Tensor]:
    import torch

    kind, backward = n.proto.op_type, n.attribute("direction", "forward")
    names, operands = ["x", "w", "r", "bias", "lengths", "h", "c", "peepholes"], []
    for place in range(len(n)):
        if place in n:
            operands.append((names[place], n.x(place)))
    given = [name for name, _ in operands]
    batch_first = bool(n.attribute("layout", 0))
    steps = operands[0][1].shape[1 if batch_first else 0]
    if steps > MOST_STEPS:
        raise Unsupported(f"{kind}: more than {MOST_STEPS} steps, each of which would be equations of its own")
    if n.attribute("activations") not in (None, [b"Tanh"]) or n.attribute("clip") or n.attribute("input_forget"):
        raise Unsupported(f"{kind}: other activations than the usual ones have no case")

    def direction(parts: dict[str, Any], which: int, back: bool) -> tuple[Any, ...]:
        at = {k: v[which] for k, v in parts.items() if k not in ("x", "lengths")}
        x, hidden = parts["x"], at["r"].shape[-1]
        zeros = x.new_zeros(x.shape[1], hidden)
        state = [at.get("h", zeros), at.get("c", zeros)]
        rows: list[Any] = [None] * steps
        for t in reversed(range(steps)) if back else range(steps):
            new = STEPS[kind](n, x[t], state, at)
            if "lengths" in parts:
                going = (t < parts["lengths"])[:, None]
                rows[t] = torch.where(going, new[0], 0.0)
                new = [torch.where(going, a, b) for a, b in zip(new, state)]
            else:
                rows[t] = new[0]
            state = new
        return torch.stack(rows), *state

    def call(*values: Any) -> Any:
        parts = dict(zip(given, values))
        if batch_first:
            parts |= {k: parts[k].transpose(0, 1) for k in ("x", "h", "c") if k in parts}
        ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[backward]
        found = [direction(parts, d, back) for d, back in enumerate(ways)]
        y = torch.stack([f[0] for f in found], 1)
        ends = [torch.stack(last) for last in list(zip(*found))[1:]]
        if batch_first:
            y, ends = y.permute(2, 0, 1, 3), [e.transpose(0, 1) for e in ends]
        return [y, *ends[: len(n.proto.output) - 1]]

    return by_torch(g, call, *(tensor for _, tensor in operands))


def _rnn(n: Node, x: Any, state: list[Any], at: dict[str, Any]) -> list[Any]:
    y = x @ at["w"].T + state[0] @ at["r"].T
    if "bias" in at:
        y = y + at["bias"].chunk(2)[0] + at["bias"].chunk(2)[1]
    return [y.tanh(), state[1]]


def _gru(n: Node, x: Any, state: list[Any], at: dict[str, Any]) -> list[Any]:
    import torch

    before = state[0]
    (wz, wr, wh), (rz, rr, rh) = at["w"].chunk(3), at["r"].chunk(3)
    zero = torch.zeros(before.shape[-1], dtype=before.dtype)
    bz, br, bh, cz, cr, ch = at["bias"].chunk(6) if "bias" in at else [zero] * 6
    z = torch.sigmoid(x @ wz.T + before @ rz.T + bz + cz)
    r = torch.sigmoid(x @ wr.T + before @ rr.T + br + cr)
    if n.attribute("linear_before_reset", 0):
        h = torch.tanh(x @ wh.T + r * (before @ rh.T + ch) + bh)
    else:
        h = torch.tanh(x @ wh.T + (r * before) @ rh.T + bh + ch)
    return [(1 - z) * h + z * before, state[1]]


def _lstm(n: Node, x: Any, state: list[Any], at: dict[str, Any]) -> list[Any]:
    import torch

    h, c = state
    gates = x @ at["w"].T + h @ at["r"].T
    if "bias" in at:
        gates = gates + at["bias"].chunk(2)[0] + at["bias"].chunk(2)[1]
    i, o, f, new = gates.chunk(4, -1)
    pi, po, pf = at["peepholes"].chunk(3) if "peepholes" in at else (0.0, 0.0, 0.0)
    i, f = torch.sigmoid(i + pi * c), torch.sigmoid(f + pf * c)
    c = f * c + i * torch.tanh(new)
    return [torch.sigmoid(o + po * c) * torch.tanh(c), c]


STEPS: dict[str, Callable[[Node, Any, list[Any], dict[str, Any]], list[Any]]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}

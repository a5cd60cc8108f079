"""The programs that are written for models and for samples of operators, as files: `diff -r` of two folders tells what a change of
the translation changes. Nothing is compiled: PyTorch runs the partitions.

    python -m tests.pytorch.texts --out FOLDER [--only gpt2 softmax] [--most 3]
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from tests.pytorch import agreement
from tests.pytorch.samples import Case, Choice, of_operator, operators
from tests.pytorch.zoo import Model, models, without_dropout
from tilec.torch import backend, call, reports
from tilec.torch.aten import orders

MODELS = ("gpt2", "bert", "llama", "gemma2", "resnet18", "unet")
TARGETS = {"cpu": torch.float32, "h200": torch.bfloat16}
"""With the type that models have there."""


class UNet(nn.Module):
    """Convolutions down and up again, with joins and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = F.silu(self.into(x))
        inner = F.silu(self.norm(self.middle(F.max_pool2d(self.down(first), 2))))
        upper = self.up(F.interpolate(F.dropout(inner, 0.1, self.training), scale_factor=2))
        return self.out(torch.cat([F.gelu(upper), first], 1))


@contextmanager
def unmade(target: str) -> Iterator[None]:
    """Partitions for a target are written, and PyTorch runs them on tensors of the CPU."""
    with (
        mock.patch.object(backend, "load_compilers", lambda kind: None),
        mock.patch.object(backend, "_refuse_other_devices", lambda *given: None),
        mock.patch.object(call.Partition, "_bound", lambda partition, *given: partition.eager),
        mock.patch.object(call.Partition, "ahead", staticmethod(lambda *given: lambda: None)),
        mock.patch.object(orders, "reorders", lambda device: target != "cpu"),
    ):
        yield


def written(run: Callable[[], Any]) -> str:
    """What the graphs of a run become: programs, the functions that call them, and what PyTorch computes for which reason."""
    torch._dynamo.reset()
    reports.forget()
    found = []
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, TILEC_TORCH_DUMP=folder):
        with mock.patch.object(backend, "_number", itertools.count()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run()
            except Exception as error:
                found.append(f"{type(error).__name__}: {str(error)[:300]}\n")
        for path in sorted(p for p in Path(folder).rglob("*") if p.is_file()):
            text = path.read_text()
            if path.suffix == ".json":
                text = "\n".join(f"{e['operation']}: {e['reason']}" for e in json.loads(text)["eager"]) + "\n"
            found.append(f"---- {path.relative_to(folder)}\n{text}")
    return "".join(found)


def of_model(model: Model, dtype: torch.dtype, target: str) -> Callable[[], Any]:
    """A forward pass, and a training step."""

    def run() -> None:
        torch.manual_seed(0)
        module = without_dropout(model.make()).to(dtype) if model.name != "unet" else UNet().to(dtype)
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in model.inputs(module).items()}
        made = torch.compile(module, backend="tilec", options={"target": target})
        with torch.no_grad():
            module.eval()(**given)
            made(**given)
        module.train()
        results = [v for v in torch.utils._pytree.tree_leaves(made(**given)) if isinstance(v, torch.Tensor)]
        sum(r.float().sum() for r in results if r.requires_grad).backward()

    return run


def all_models() -> list[Model]:
    known = {m.name: m for m in models()}
    known["unet"] = Model("unet", "here", "", UNet, lambda module: {"x": torch.randn(2, 3, 16, 16)})
    return [known[name] for name in MODELS]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pytorch.texts", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--only", nargs="*", default=[], help="models of these names, and operators that have these in theirs")
    parser.add_argument("--most", type=int, default=3, help="samples of each operator")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    options.out.mkdir(parents=True, exist_ok=True)
    for target, dtype in TARGETS.items():
        with unmade(target):
            for model in all_models():
                if not options.only or model.name in options.only:
                    (options.out / f"{model.name} {target}.txt").write_text(written(of_model(model, dtype, target)))
    with unmade("cpu"):
        for name in operators():
            if not options.only or any(o in name for o in options.only):
                for case in chosen(name, options.most):
                    (options.out / f"op {case.name.replace('/', '-')}.txt").write_text(written(of_case(case)))


def chosen(name: str, most: int) -> list[Case]:
    """So many of an operator's samples, far from each other."""
    found = [c for c in of_operator(name, Choice()) if not c.refused and not c.undefined]
    return found[:: max(1, len(found) // most)][:most]


def of_case(case: Case) -> Callable[[], Any]:
    backward = any(isinstance(v, torch.Tensor) and v.requires_grad for v in case.values)
    return lambda: agreement._compiled(case, backward, False, agreement.DRAWING)


if __name__ == "__main__":
    main()

"""Models on several processes: each set-up of `torch.distributed`, compiled, beside itself in eager mode.

`python -m tests.pytorch distributed` runs them on the CPU by gloo, with `--device cuda` on as many GPUs by NCCL, and with `--time`
says how long a training step takes beside eager mode and `torch.compile`. All processes run the same cases in the same order.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

LIMIT_S = 600  # of all cases
STEPS = 3
ALLOWED = 2e-4  # of the largest element: sums in another order, at f32, through four blocks and STEPS steps
Compile = Callable[..., Any]


@dataclass(frozen=True)
class Setup:
    """`width` of the model's blocks, `rows` of a process's batch."""

    device: str
    rank: int
    ranks: int
    width: int
    rows: int
    blocks: int = 2
    dtype: str = "float32"


@dataclass
class Case:
    """`step(k)` is the k-th training step and returns tensors; `state` gives what it changes."""

    step: Callable[[int], Any]
    state: Callable[[], Any]


def model(setup: Setup, **options: Any) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.norm = nn.RMSNorm(width)
            self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((width, 4 * width), (4 * width, width)))

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.silu(self.up(self.norm(x))))

    torch.manual_seed(0)
    parts: list[Any] = [Block(setup.width) for _ in range(setup.blocks)]
    if options.get("buffers"):
        parts.insert(1, nn.BatchNorm1d(setup.width))
    if options.get("breaks"):
        parts.insert(2, _Break())
    if options.get("unused"):
        parts[1].unused = nn.Linear(setup.width, 8)
    return nn.Sequential(*parts).to(setup.device, getattr(torch, setup.dtype))


def _Break() -> Any:
    import torch

    class Break(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            torch._dynamo.graph_break()
            return x

    return Break()


@cache
def batch(setup: Setup, k: int, rows: int | None = None) -> Any:
    """Of each process and step another. It is made once: what is timed draws no numbers."""
    import torch

    generator = torch.Generator().manual_seed(100 * k + setup.rank)
    made = torch.randn(rows or setup.rows, setup.width, generator=generator)
    return made.to(setup.device, getattr(torch, setup.dtype))


def trained(setup: Setup, call: Any, module: Any, optimizer: Any = None, rows: Callable[[int], int] | None = None) -> Case:
    import torch

    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=1e-2)

    def step(k: int) -> Any:
        optimizer.zero_grad()
        loss = call(batch(setup, k, rows and rows(k))).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Case(step, lambda: {**state(module.state_dict().items()), "gradients": gradients(module)})


def state(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name.replace("_orig_mod.", ""): value for name, value in named}


def gradients(module: Any) -> dict[str, Any]:
    return state((name, p.grad) for name, p in module.named_parameters())


# ---- data parallel ---------------------------------------------------------------------------------------------------


def ddp(
    setup: Setup, compiled: Compile, around: bool, optimize: Any = True, rows: Callable[[int], int] | None = None,
    options: Any = (), **how: Any,
) -> Case:  # fmt: skip
    """DistributedDataParallel around the compiled model, or inside. `optimize`: Dynamo's `optimize_ddp`, which cuts graphs at
    buckets."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch._dynamo.config.optimize_ddp = optimize
    module = model(setup, **dict(options))
    how = {"bucket_cap_mb": max(1, setup.width**2 >> 16), **how}
    how |= {"device_ids": [setup.rank]} if setup.device == "cuda" else {}
    wrap = partial(DistributedDataParallel, **how)
    call = compiled(wrap(module)) if around else wrap(compiled(module))
    return trained(setup, call, module, rows=rows)


def ddp_accumulating(setup: Setup, compiled: Compile) -> Case:
    """Two batches for a step, of which the first is not shared."""
    from torch.nn.parallel import DistributedDataParallel

    module = model(setup)
    call = DistributedDataParallel(compiled(module), bucket_cap_mb=1)
    inner = trained(setup, call, module)

    def step(k: int) -> Any:
        with call.no_sync():
            call(batch(setup, 50 + k)).float().square().mean().backward()
        return inner.step(k)

    return Case(step, inner.state)


def ddp_inference(setup: Setup, compiled: Compile) -> Case:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    call = compiled(DistributedDataParallel(model(setup), bucket_cap_mb=1))

    def step(k: int) -> Any:
        with torch.no_grad():
            return call(batch(setup, k))

    return Case(step, lambda: [])


# ---- sharded, tensor parallel, pipeline ------------------------------------------------------------------------------


def mesh(setup: Setup, name: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(setup.device, (setup.ranks,), mesh_dim_names=(name,))


def fsdp2(setup: Setup, compiled: Compile, each: bool) -> Case:
    """Sharded parameters; each block is compiled, or the whole model."""
    from torch.distributed.fsdp import fully_shard

    module, over = model(setup), mesh(setup, "data")
    for number, block in enumerate(module):
        if each:
            module[number] = block = compiled(block)
        fully_shard(block, mesh=over)
    fully_shard(module, mesh=over)
    call = module if each else compiled(module)
    return trained(setup, call, module)


def tensor_parallel(setup: Setup, compiled: Compile) -> Case:
    """All processes have the same batch, and a part of each matrix."""
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    module = model(setup)
    for block in module:
        parallelize_module(block, mesh(setup, "model"), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    same = Setup(**{**asdict(setup), "rank": 0})
    return trained(same, compiled(module), module, torch.optim.SGD(module.parameters(), lr=1e-2, foreach=False))


def pipeline(setup: Setup, compiled: Compile) -> Case:
    """Each process has some blocks; four microbatches."""
    import torch
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    whole = model(setup)
    share = setup.blocks // setup.ranks
    module = torch.nn.Sequential(*list(whole)[setup.rank * share :][:share])
    stage = PipelineStage(compiled(module), setup.rank, setup.ranks, torch.device(setup.device))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda made, wanted: (made.float() - wanted).square().mean())
    same, last = Setup(**{**asdict(setup), "rank": 0}), setup.rank == setup.ranks - 1

    def step(k: int) -> Any:
        module.zero_grad()
        losses: list[Any] = []
        given = (batch(same, k),) if setup.rank == 0 else ()
        schedule.step(*given, **({"target": batch(same, 50 + k).float(), "losses": losses} if last else {}))
        return losses

    return Case(step, lambda: gradients(module))


def collectives(setup: Setup, compiled: Compile) -> Case:
    """Sums over processes, inside of a graph."""
    import torch
    from torch.distributed import _functional_collectives as between

    group = torch.distributed.group.WORLD

    def function(x: Any) -> Any:
        total = between.all_reduce(x.sin(), "sum", group).cos() * 2
        return between.all_gather_tensor(total + x, 0, group) + 1

    call = compiled(function)
    return Case(lambda k: call(batch(setup, k)), lambda: [])


CASES: dict[str, Callable[[Setup, Compile], Case]] = {
    "ddp around": partial(ddp, around=True),
    "ddp inside": partial(ddp, around=False),
    "ddp around, one bucket": partial(ddp, around=True, bucket_cap_mb=500),
    "ddp around, not optimized": partial(ddp, around=True, optimize=False),
    "ddp inside, not optimized": partial(ddp, around=False, optimize=False),
    "ddp inside, static graph": partial(ddp, around=False, static_graph=True),
    "ddp around, static graph, not optimized": partial(ddp, around=True, static_graph=True, optimize=False),
    "ddp around, unused parameters": partial(ddp, around=True, options={"unused": True}, find_unused_parameters=True),
    "ddp around, gradients in buckets": partial(ddp, around=True, gradient_as_bucket_view=True),
    "ddp around, buffers and a break": partial(ddp, around=True, options={"buffers": True, "breaks": True}),
    "ddp around, other sizes": partial(ddp, around=True, rows=lambda k: 8 + 4 * k),
    "ddp accumulating": ddp_accumulating,
    "ddp inference": ddp_inference,
    "fsdp2, the model": partial(fsdp2, each=False),
    "fsdp2, each block": partial(fsdp2, each=True),
    "tensor parallel": tensor_parallel,
    "pipeline": pipeline,
    "collectives": collectives,
}
TIMED = ["ddp around", "ddp inside", "fsdp2, the model", "tensor parallel"]


# ---- a process -------------------------------------------------------------------------------------------------------


def work(text: str) -> int:
    """One process of a run. It says, as lines of JSON, each case that begins, and how it ended."""
    import torch
    import torch.distributed as dist

    from tilec.torch.backend import register

    reported = json.loads(text)
    setup, names = Setup(**reported["setup"]), reported["names"]
    register()  # where the package is not installed with its entry points
    more = {}
    if setup.device == "cuda":
        torch.cuda.set_device(setup.rank)
        more = {"device_id": torch.device("cuda", setup.rank)}
    kind = "nccl" if setup.device == "cuda" else "gloo"
    dist.init_process_group(kind, init_method=reported["meet"], rank=setup.rank, world_size=setup.ranks, **more)
    for name in names:
        send(begun=name)
        dist.barrier()
        failed = ""
        try:
            failed = _different(setup, CASES[name])
        except Exception:
            failed = traceback.format_exc()[-3000:]
        send(done=name, failed=failed)
        if failed:  # the others may wait for this one
            break
    for name in reported["timed"]:
        send(begun=f"time of {name}")
        send(timed=name, ms={way: _time(setup, CASES[name], way) for way in ("eager", "inductor", "tilec")})
    sys.stdout.flush()
    os._exit(0)  # NCCL may wait for a process that has failed


def send(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def compiled_by(way: str) -> Compile:
    import torch

    return (lambda function: function) if way == "eager" else partial(torch.compile, backend=way)


def _fresh() -> None:
    import torch

    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = True


def _different(setup: Setup, case: Callable[[Setup, Compile], Case]) -> str:
    """How the compiled case differs from the case in eager mode; "" where it does not."""
    import torch

    import tilec.torch

    found = {}
    for way in ("eager", "tilec"):
        _fresh()
        made = case(setup, compiled_by(way))
        steps = [copied(made.step(k)) for k in range(STEPS)]
        found[way] = [steps, copied(made.state())]
    if not tilec.torch.report().share:
        return "nothing was compiled"
    (one, shape), (two, same) = (torch.utils._pytree.tree_flatten(found[way]) for way in ("tilec", "eager"))
    names = [torch.utils._pytree.keystr(path) for path, _ in torch.utils._pytree.tree_flatten_with_path(found["eager"])[0]]
    if shape != same:
        return f"results of another structure: {shape}, and {same} in eager mode"
    for name, a, b in zip(names, one, two):
        if isinstance(b, torch.Tensor) and b.numel():
            scale = b.double().abs().max().item()
            error = (a.double() - b.double()).abs().max().item()
            if a.shape != b.shape or not error <= ALLOWED * scale:
                return f"{name} is off by {error:.3g} of {scale:.3g}"
    return ""


def copied(value: Any) -> Any:
    """Whole tensors, apart from those that change."""
    import torch

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()

    return torch.utils._pytree.tree_map(one, value)


def _time(setup: Setup, case: Callable[[Setup, Compile], Case], way: str) -> float:
    """The least of three times of a step, each a mean, in milliseconds."""
    import torch
    import torch.distributed as dist

    _fresh()
    wide = Setup(setup.device, setup.rank, setup.ranks, *((2048, 8192) if setup.device == "cuda" else (256, 256)), 4, "bfloat16")
    made = case(wide, compiled_by(way))
    wait = torch.cuda.synchronize if setup.device == "cuda" else nullcontext
    for k in range(3):
        made.step(k)
    count, found = 10, []
    for _ in range(3):
        wait()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            made.step(0)
        wait()
        found.append(1e3 * (time.perf_counter() - begin) / count)
    return min(found)


# ---- all processes ---------------------------------------------------------------------------------------------------


def run(
    device: str, ranks: int, names: list[str], timed: list[str], limit: float = LIMIT_S
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """For each case `{"case": name, "failed": ""}` or what failed; for each that is timed `{"timed": name, "ms": {way: ms}}`. A
    case that hangs, or that kills a process, is the last one."""
    with tempfile.TemporaryDirectory() as folder:
        meet = (Path(folder) / "meet").as_uri()
        children, files = [], []
        share = max(1, (os.cpu_count() or 1) // ranks)  # as torchrun does: more threads than cores wait for each other
        env = {"OMP_NUM_THREADS": str(share)} | os.environ | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        for rank in range(ranks):
            reported = {"setup": asdict(Setup(device, rank, ranks, 256, 8)), "names": names, "timed": timed, "meet": meet}
            command = [sys.executable, "-m", "tests.pytorch", "distributed", "--worker", json.dumps(reported)]
            files.append(((Path(folder) / f"out{rank}").open("w+"), (Path(folder) / f"err{rank}").open("w+")))
            children.append(subprocess.Popen(command, stdout=files[-1][0], stderr=files[-1][1], env=env))
        end, late = time.monotonic() + limit, False
        for child in children:
            try:
                child.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = True
        for child in children:
            child.kill()
            child.wait()
        lines_of, errors = [], []
        for out, err in files:
            for file in (out, err):
                file.seek(0)
            lines_of.append([json.loads(line) for line in out.read().splitlines() if line.startswith("{")])
            errors.append(err.read()[-1500:])
            out.close(), err.close()
    for name in names:
        ends = [next((line["failed"] for line in lines if line.get("done") == name), None) for lines in lines_of]
        reported_failed = [f"process {k}: {e}" for k, e in enumerate(ends) if e]
        if None in ends and not reported_failed:
            why = f"not done after {limit:.0f} s" if late else f"processes ended by {[c.returncode for c in children]}"
            yield {"case": name, "failed": f"{why}\n{errors[ends.index(None)]}"}
            return
        yield {"case": name, "failed": "\n".join(reported_failed)}
        if reported_failed:
            return
    yield from (line for line in lines_of[0] if "timed" in line)


def main(options: argparse.Namespace) -> int:
    names = [n for n in CASES if not options.only or any(o in n for o in options.only)]
    found = list(run(options.device, options.ranks, names, TIMED if options.time else [], options.limit))
    for line in found:
        if "timed" in line:
            print(f"{line['timed']}: " + ", ".join(f"{way} {ms:.2f} ms" for way, ms in line["ms"].items()))
        else:
            print(f"{line['case']}: {line['failed'] or 'right'}")
    right = sum(line.get("failed") == "" for line in found)
    print(f"{right} of {len(names)} set-ups on {options.ranks} processes are right")
    return int(right != len(names))

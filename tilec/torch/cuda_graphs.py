"""`mode="reduce-overhead"`: PyTorch's trees of CUDA graphs around compiled graphs. On the CPU there is nothing to replay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from tilec.core.diagnostics import CheckError
from tilec.torch.outside import deferred
from tilec.torch.types import Input, Run


class Replayed:
    """The graphs of one compiled function: forward and backward share a pool of memory."""

    def __init__(self) -> None:
        self.device: int | None = None  # of a graph that is recorded

    def wrap(self, run: Run, gm: fx.GraphModule, given: Sequence[Input], kind: str) -> tuple[Run, str | None]:
        """`run` with its GPU work recorded at the second call for given sizes, and replayed from then on; or `run` as it is, and
        why."""
        from torch._dynamo.backends import cudagraphs as torchs
        from torch._inductor.cudagraph_trees import cudagraphify_impl
        from torch._inductor.cudagraph_utils import check_multiple_devices_or_any_cpu_nodes, get_placeholder_info
        from torch._inductor.utils import count_tangents, get_first_incompatible_cudagraph_node

        from tilec.runtime.cuda.program import raise_failed

        nodes = torchs.get_device_node_mapping(gm)
        if not any(device.type == "cuda" for device in nodes):
            return run, "its tensors are on the CPU"
        reason = check_multiple_devices_or_any_cpu_nodes(nodes)
        reason = None if reason is None else reason.splitlines()[0]
        if reason is None and (node := get_first_incompatible_cudagraph_node(gm)) is not None:
            reason = f"{node.target} cannot be recorded"
        if reason is not None:
            return self._unrecorded(run, kind), reason
        fixed = list(range(count_tangents(gm))) if kind == "backward" else _static()
        self.device = torchs.get_device_index(gm)
        made = cudagraphify_impl(
            _in_order(run, self.device), list(given), fixed, device_index=self.device, is_backward=kind == "backward",
            is_inference=kind == "inference", stack_traces=torchs.get_stack_traces(gm),
            placeholders=get_placeholder_info(gm.graph), mutated_input_idxs=torchs.find_input_mutations(gm.graph),
        )  # fmt: skip

        def replayed(args: list[Input]) -> list[torch.Tensor | int | None]:
            try:
                raise_failed()  # an index that an earlier replay found outside of its tensor
            except CheckError as error:
                raise deferred(error) from None
            return made(args)

        replayed._boxed_call = True  # type: ignore[attr-defined]
        return replayed, None

    def _unrecorded(self, run: Run, kind: str) -> Run:
        """A backward graph that is not recorded tells the tree of its forward graph that the backward pass has begun."""
        if kind != "backward" or self.device is None:
            return run
        device = self.device

        def reported(args: list[Input]) -> list[torch.Tensor | int | None]:
            from torch._inductor.cudagraph_trees import get_manager

            if (manager := get_manager(device, create_if_none_exists=False)) is not None:
                manager.set_to_running_backward()
            return run(args)

        reported._boxed_call = True  # type: ignore[attr-defined]
        return reported


def _in_order(run: Run, device: int) -> Run:
    """`run`, in whose recordings temporaries share memory: PyTorch replays the graphs of a tree one after another, since their own
    tensors share a pool."""

    def recorded(args: list[Input]) -> list[torch.Tensor | int | None]:
        from torch._inductor.cudagraph_trees import get_manager

        from tilec.runtime.cuda.arena import replayed_in_order

        with replayed_in_order(get_manager(device, create_if_none_exists=False)):
            return run(args)

    recorded._boxed_call = True  # type: ignore[attr-defined]
    return recorded


def _static() -> list[int]:
    """Inputs whose memory stays where it is: parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    found = getattr(context.fw_metadata, "static_input_indices", None) if context and context.fw_metadata else None
    return list(found or ())

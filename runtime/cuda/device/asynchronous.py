"""Asynchronous copies and their barriers: cp.async (sm_80), mbarrier, bulk copies and TMA (sm_90).

Addresses of shared memory are int64 in kernels, as all addresses are. PTX takes their low 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilec.runtime.cuda.device.define import DeviceFunction, Intrinsic, ptx


def cp_async(size: int) -> DeviceFunction:
    """`cp_async_16(shared, address, bytes)`: copies `bytes` (0 to `size`) and fills the rest of `size` with
    zeros.

    16 bytes go past L1 (`.cg`), smaller sizes through it (`.ca`), as PTX requires.
    """
    cache = "cg" if size == 16 else "ca"
    return ptx(f"cp_async_{size}", f"cp.async.{cache}.shared.global [$0], [$1], {size}, $2;", "rlr")


def cp_async_wait(groups: int) -> DeviceFunction:
    """Waits until at most `groups` of this thread's newest committed groups are under way."""
    return ptx(f"cp_async_wait_{groups}", f"cp.async.wait_group {groups};")


def tma_load(rank: int, multicast: bool = False) -> DeviceFunction:
    """`(shared, tensor map, mbarrier, c0, c1, ...)`: loads a box of 1 to 5 dimensions, innermost coordinate
    first.

    With `multicast`, a 16-bit mask of the cluster's blocks comes last: each gets the box at the same shared
    address, and the bytes at the same mbarrier.
    """
    coordinates = ", ".join(f"${3 + i}" for i in range(rank))
    many = ".multicast::cluster" if multicast else ""
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{many} "
    text += f"[$0], [$1, {{{coordinates}}}], [$2]" + (f", ${3 + rank};" if multicast else ";")
    name = f"tma_load_{rank}d" + ("_multicast" if multicast else "")
    return ptx(name, text, "rlr" + "r" * rank + ("h" if multicast else ""))


def tma_store(rank: int) -> DeviceFunction:
    """`(tensor map, shared, c0, c1, ...)`: stores a box; `fence_async_shared` first, commit and wait
    after."""
    coordinates = ", ".join(f"${2 + i}" for i in range(rank))
    text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{coordinates}}}], [$1];"
    return ptx(f"tma_store_{rank}d", text, "lr" + "r" * rank)


def bulk_wait(groups: int, read: bool = True) -> DeviceFunction:
    """Waits for bulk stores: until shared memory has been read (`read`), or until the data has been
    written."""
    kind = ".read" if read else ""
    return ptx(f"bulk_wait{'_read' if read else ''}_{groups}", f"cp.async.bulk.wait_group{kind} {groups};")


def set_registers(count: int, more: bool) -> DeviceFunction:
    """`setmaxnreg` for a whole warpgroup: a multiple of 8 from 24 to 256. The kernel needs launch bounds."""
    if count % 8 or not 24 <= count <= 256:
        raise ValueError(f"setmaxnreg takes a multiple of 8 from 24 to 256, not {count}")
    direction = "inc" if more else "dec"
    return ptx(f"set_registers_{direction}_{count}", f"setmaxnreg.{direction}.sync.aligned.u32 {count};")


# `${:uid}` is LLVM's number for this use: labels must differ between them.
_LOOP = "{\n.reg .pred p;\nW_${:uid}:\nmbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;\n@!p bra W_${:uid};\n}"

_PTX: dict[str, tuple[str, str, str]] = {
    "cp_async_commit": ("cp.async.commit_group;", "", ""),
    # (mbarrier, arrivals that end a phase)
    "mbarrier_init": ("mbarrier.init.shared::cta.b64 [$0], $1;", "rr", ""),
    # (mbarrier, bytes): one arrival that also announces bytes
    "mbarrier_expect": ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr", ""),
    "mbarrier_arrive": ("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", ""),
    # (remote address of `map_shared`): it orders what this block did, as reads by a product that is over; with `.cluster`, a fence
    # of all memory would come first and take 1 us
    "mbarrier_arrive_remote": ("mbarrier.arrive.shared::cluster.b64 _, [$0];", "r", ""),
    # (mbarrier): arrives when this thread's cp.async copies so far have landed
    "cp_async_arrive": ("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r", ""),
    # (mbarrier, parity of the phase that must be over)
    "mbarrier_wait": (_LOOP, "rr", ""),
    "mbarrier_fence": ("fence.mbarrier_init.release.cluster;", "", ""),
    # Shared memory written by threads becomes visible to bulk copies and wgmma.
    "fence_async_shared": ("fence.proxy.async.shared::cta;", "", ""),
    "bulk_commit": ("cp.async.bulk.commit_group;", "", ""),
    # until the kernel before this one is complete, and its writes can be seen
    "grid_wait": ("griddepcontrol.wait;", "", ""),
    # blocks of the next kernel may be placed once all of this one have arrived
    "grid_release": ("griddepcontrol.launch_dependents;", "", ""),
}

ASYNC: dict[str, Callable[[], Intrinsic]] = {
    **{name: partial(ptx, name, *row) for name, row in _PTX.items()},
    **{f"cp_async_{size}": partial(cp_async, size) for size in (4, 8, 16)},
}

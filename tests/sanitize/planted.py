"""Kernels with a fault each, which the tool that is for it must find: or else what it calls clean means nothing."""

from __future__ import annotations

from dataclasses import dataclass

THREADS, SHARED = 128, 4096


@dataclass(frozen=True)
class Planted:
    """`body` is of a kernel of one block with arrays x (written by nobody but the host) and y (by nobody) of 128 f32."""

    tool: str
    body: str
    names: str = ""
    before: str = ""

    @property
    def source(self) -> str:
        names = f"cuda int8 int64 shared_address load_f32 store_f32 {self.names}".split()
        lines = "\n".join(f"    {line}" for line in self.body.strip().splitlines())
        return (
            f"from tilec.runtime.cuda.intrinsics import {', '.join(names)}\n{self.before}\n"
            "def planted(x, y):\n    tid = int64(cuda.threadIdx.x)\n    place = tid * 4\n"
            f"    base = shared_address(cuda.shared.array(0, int8))\n{lines}\n"
        )


PLANTED = {
    "a write behind an array": Planted("memcheck", "store_f32(y + place + 4, load_f32(x + place))"),
    "an asynchronous copy from behind an array": Planted(
        "memcheck",
        "cp_async_16(base + tid * 16, x + tid * 16, 16)\ncp_async_commit()\nwait()\n"
        "store_f32(y + place, shared_load_f32(base + tid * 16))",
        "cp_async_16 cp_async_commit cp_async_wait shared_load_f32", "wait = cp_async_wait(0)"),
    "a read of shared memory that another warp writes": Planted(
        "racecheck", "shared_store_f32(base + place, load_f32(x + place))\n"
        "store_f32(y + place, shared_load_f32(base + (tid ^ 64) * 4))", "shared_store_f32 shared_load_f32"),
    "a read of what an asynchronous copy brings, before the wait": Planted(
        "racecheck", "if tid < 32:\n    cp_async_16(base + tid * 16, x + tid * 16, 16)\ncp_async_commit()\ncuda.syncthreads()\n"
        "store_f32(y + place, shared_load_f32(base + place))\nwait()",
        "cp_async_16 cp_async_commit cp_async_wait shared_load_f32", "wait = cp_async_wait(0)"),
    "a barrier that half of each warp reaches": Planted(
        "synccheck", "if tid & 31 < 16:\n    cuda.syncthreads()\nstore_f32(y + place, load_f32(x + place))"),
    "a read of memory that nothing wrote": Planted("initcheck", "store_f32(y + place, load_f32(y + (tid ^ 64) * 4))"),
}  # fmt: skip


def compile_planted(name: str, chip: str):
    """The cubin, from the disk cache where it was compiled before."""
    from tilec.runtime.cuda.cubins import program_cubins
    from tilec.runtime.program import Emitted, KernelSource

    source = PLANTED[name].source
    kernel = KernelSource("planted", source, 1, 2, THREADS)
    return program_cubins(Emitted("planted", source, (kernel,), (), ()), chip, {})["planted"]


def run_planted(name: str) -> None:
    """Launches the kernel on the GPU."""
    import numpy as np

    from tilec.core.dtypes import F32
    from tilec.driver.devices import open_device
    from tilec.runtime.cuda.driver import chip_of, synchronize_stream
    from tilec.runtime.cuda.launch import Kernel, Launcher

    cubin = compile_planted(name, chip_of())
    x = np.arange(THREADS, dtype=np.float32)
    with open_device("cuda", {"x": x}, [("y", F32, (THREADS,))]) as device:
        launcher = Launcher(Kernel(cubin.image, cubin.entry, ["i64", "i64"]), (1, 1, 1), (THREADS, 1, 1), SHARED)
        launcher.launch(0, device.inputs[0].pointer, device.outputs[0].pointer)
        synchronize_stream(0)

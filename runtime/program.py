"""The result of printing a module: kernel sources, and the order in which the program launches them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from tilec.core.amounts import largest, plus

Amount: TypeAlias = Any
"""A number; or, in what serves all sizes of a class, the text of an extent (`tilec/core/varying.py`)."""


@dataclass(frozen=True)
class Slot:
    """Memory that a step uses: the program's input or output `number`, or one of its temporaries."""

    kind: str  # "input" | "output" | "temporary"
    number: int


@dataclass(frozen=True)
class Temporary:
    """An intermediate tensor: its bytes, and where it begins in the program's workspace, or in the array `within`. `stays_clear`:
    kernels find it zero, and leave it so; the workspace is cleared there once."""

    bytes: Amount
    offset: Amount
    stays_clear: bool = False
    within: Slot | None = None

    @property
    def end(self) -> Amount:
        return plus(self.offset, self.bytes)


@dataclass(frozen=True)
class Step:
    """One launch: kernel and the memory of its parameters in order. `kernel` None copies the first slot to the second, or
    clears the only one. `sizes`: the kernel's parameters behind these. `name`: what the plan calls the kernel, where one that is
    equal was compiled under its own name; `renamed`: then messages of that one's checks, and what they are here."""

    kernel: str | None
    slots: tuple[Slot, ...]
    bytes: Amount = 0
    sizes: tuple[Amount, ...] = ()
    name: str = ""
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def planned(self) -> str | None:
        """The plan's name of the kernel."""
        return self.name or self.kernel

    def sites(self, kernel: KernelSource) -> tuple[str, ...]:
        """The messages of the run-time checks of this launch of a kernel, by number from 1."""
        own = dict(self.renamed)
        return tuple(own.get(site, site) for site in kernel.sites)


@dataclass(frozen=True)
class TensorMap:
    """A tensor that TMA copies boxes of (CUDA): the kernel's parameter that it starts at, its shape, and the box's, which has every
    `steps[d]`-th element along dimension d, each without `steps`, and lies in lines of `swizzle` bytes. `strides`: elements between
    neighbours along each dimension, where the tensor is a part of a larger one."""

    parameter: int
    dtype: str
    item_bytes: int
    shape: tuple[Amount, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 128
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class KernelSource:
    """A kernel as Python text. `grid` blocks; `scratch` bytes of private memory a block needs (CPU); `shared` bytes of
    dynamic SRAM and `threads` a block has (CUDA); `sites` are the messages of its run-time checks, by number from 1; `maps`
    are further parameters, behind the pointers, and so many `sizes` follow; `cluster` blocks of the grid reach each other's SRAM;
    of a `persistent` kernel only as many blocks, or clusters, are launched as run at a time, since each goes on to further tiles,
    and a multiple of that number; those of an `overlap` kernel are placed while the kernel before it ends, and wait for that
    (CUDA). `inplace`: pairs of parameters, an input and a result, whose elements are made each of the input's at the same place:
    they may be one memory. A program's sizes that vary have texts in it, which `runtime/sized.py` makes numbers."""

    name: str
    text: str
    grid: Amount
    parameters: int
    threads: int = 1
    scratch: Amount = 0
    shared: int = 0
    sites: tuple[str, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    cluster: int = 1
    persistent: int = 0
    overlap: bool = False
    inplace: tuple[tuple[int, int], ...] = ()
    sizes: int = 0

    @staticmethod
    def from_json(fields: dict[str, Any]) -> KernelSource:
        """Raises KeyError or TypeError for what is not a kernel as `asdict` gives it."""
        maps = tuple(
            TensorMap(**m | {key: tuple(m[key]) for key in ("shape", "box", "steps", "strides")}) for m in fields["maps"]
        )
        pairs = tuple((a, b) for a, b in fields["inplace"])
        return KernelSource(**{**fields, "sites": tuple(fields["sites"]), "maps": maps, "inplace": pairs})


@dataclass(frozen=True)
class Emitted:
    """A whole program: `module` is the text of one Python module with all kernels."""

    name: str
    module: str
    kernels: tuple[KernelSource, ...]
    steps: tuple[Step, ...]
    temporaries: tuple[Temporary, ...]

    @property
    def launched(self) -> dict[str, KernelSource]:
        """The kernel of each launch, by the plan's name of it: several names may have one."""
        kernels = {k.name: k for k in self.kernels}
        return {step.planned or "": kernels[step.kernel] for step in self.steps if step.kernel is not None}

    @property
    def sites(self) -> list[str]:
        """The messages of all run-time checks."""
        kernels = {k.name: k for k in self.kernels}
        return [site for step in self.steps if step.kernel is not None for site in step.sites(kernels[step.kernel])]

    @property
    def workspace(self) -> Amount:
        """Bytes that hold all temporaries, but for those within arrays."""
        return largest(0, *(t.end for t in self.temporaries if t.within is None))

    def begins(self, inputs: int, outputs: int) -> list[int]:
        """What each temporary's offset counts from, by its number among inputs, outputs and temporaries: an array, or, where it is
        the temporary itself, the workspace."""
        first = {"input": 0, "output": inputs}
        own = inputs + outputs
        return [
            own + n if t.within is None else first[t.within.kind] + t.within.number
            for n, t in enumerate(self.temporaries)
        ]

    def may_share(self, input: int, output: int) -> bool:
        """Whether the program's `output` may be the memory of its `input`: nothing reads the input once the output is written."""
        read, written = Slot("input", input), Slot("output", output)
        first = next(n for n, step in enumerate(self.steps) if written in step.slots)
        if any(read in step.slots for step in self.steps[first + 1 :]):
            return False
        step, kernels = self.steps[first], {k.name: k for k in self.kernels}
        positions = [[n for n, slot in enumerate(step.slots) if slot == which] for which in (read, written)]
        allowed = kernels[step.kernel].inplace if step.kernel is not None else ()
        return all((a, b) in allowed for a in positions[0] for b in positions[1])

    def reads(self, input: int) -> bool:
        """Whether any step is given an input."""
        return any(Slot("input", input) in step.slots for step in self.steps)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Emitted:
        """Raises KeyError or TypeError for what `to_json` did not make."""
        return Emitted(
            fields["name"],
            fields["module"],
            tuple(KernelSource.from_json(k) for k in fields["kernels"]),
            tuple(_step(s) for s in fields["steps"]),
            tuple(_temporary(t) for t in fields["temporaries"]),
        )


def _step(fields: dict[str, Any]) -> Step:
    slots, renamed = (Slot(**slot) for slot in fields["slots"]), ((old, new) for old, new in fields["renamed"])
    return Step(**{**fields, "slots": tuple(slots), "sizes": tuple(fields["sizes"]), "renamed": tuple(renamed)})


def _temporary(fields: dict[str, Any]) -> Temporary:
    within = fields["within"]
    return Temporary(**{**fields, "within": within and Slot(**within)})


@dataclass(frozen=True)
class Object:
    """A CPU kernel's machine code: an object file, the symbol that it defines, and the names that it needs from outside."""

    image: bytes
    symbol: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Cubin:
    """A kernel for one chip, and its resources: `registers`, `stack` and `spills` (bytes stored and loaded) of a thread;
    `shared` bytes of a block, without dynamic shared memory."""

    image: bytes = field(repr=False)
    ptx: str = field(repr=False)
    entry: str
    chip: str
    registers: int
    stack: int
    spills: int
    shared: int
    barriers: int = 0
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def properties(self) -> dict[str, Any]:
        """All but the image and the PTX, in JSON's types."""
        return {k: v for k, v in asdict(self).items() if k not in ("image", "ptx")}

    @property
    def faults(self) -> tuple[str, ...]:
        """Why this kernel is slow: any of "spills", "stack", "warnings"."""
        found = {"spills": self.spills, "stack": self.stack, "warnings": self.warnings}
        return tuple(name for name, value in found.items() if value)

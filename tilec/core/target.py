"""Targets: descriptions of hardware for the cost model, read from `targets/*.toml` or from a user's file.

Units are in the names: `_ghz`, `_gbs` (1e9 bytes a second), `_us`, `_ns`; sizes are bytes; peaks are TFLOP/s (1e12), a fused
multiply-add being two operations. A `unit` is a streaming multiprocessor (cuda) or a core (cpu).

Annotations are evaluated in this module, since files are checked by them. Evaluating their text later would take longer
than reading a file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tilec.core.diagnostics import CallError
from tilec.core.fitted import Fitted, G, read_fitted
from tilec.core.toml import parse_toml, read_toml
from tilec.core.toml_table import parse

BUILT_IN = Path(__file__).parents[1] / "targets"
CHIPS = {  # the file that stands for a chip of which only the architecture is known
    "sm_80": "a100", "sm_86": "rtx3090", "sm_89": "l4", "sm_90": "h200", "sm_90a": "h200", "sm_100": "b200",
    "sm_100a": "b200", "sm_103": "b200", "sm_120": "rtx4090",
}  # fmt: skip


@dataclass(frozen=True)
class Level:
    """One level of memory, shared by all units, or `private` to each (then `bytes` is per unit).

    `bandwidth_gbs` is the specified rate of all units together, of which `achievable` is seen by real
    kernels; `unit_gbs`: the most that one unit can draw. `latency_ns` is under load (for Little's law). 0 means
    unknown, no limit.
    """

    bytes: int
    bandwidth_gbs: float
    achievable: float = 1.0
    unit_gbs: float = 0.0
    latency_ns: float = 0.0
    ways: int = 8
    private: bool = False

    def rate(self, units: float) -> float:
        """Bytes a second that `units` units draw together."""
        peak = self.bandwidth_gbs * self.achievable
        return 1e9 * (min(peak, self.unit_gbs * units) if self.unit_gbs else peak)


@dataclass(frozen=True)
class Sustained:
    """Shares of the peaks that the best libraries hold under load, where power limits the clock."""

    fma: float = 1.0
    tensor: float = 1.0


@dataclass(frozen=True)
class Rates:
    """Operations a clock and unit: special functions (exp, sin, rsqrt) and 32-bit integers."""

    special: float
    integer: float


@dataclass(frozen=True)
class Launch:
    """`overhead_us`: time of the host per launch, on a CPU of a parallel loop. `ramp_us`: start and drain of a kernel on the
    device. `overlap_us`: the rest of them where blocks are placed while the kernel before ends (programmatic dependent
    launch, sm_90); 0: there is no such thing."""

    overhead_us: float
    ramp_us: float
    overlap_us: float = 0.0


@dataclass(frozen=True)
class Multiprocessor:
    """The resources of one SM. Registers are 32-bit; a warp gets them in steps of `register_unit`. `groups`: how many SMs each
    group (GPC) has; a cluster lies within one. None: no clusters. Each of its `schedulers` issues an instruction of a warp a
    clock.
    """

    shared_bytes: int
    shared_per_block: int
    registers: int
    registers_per_thread: int
    threads: int
    threads_per_block: int
    blocks: int
    shared_reserved: int = 1024
    shared_bytes_per_clock: int = 128
    register_unit: int = 256
    warp: int = 32
    schedulers: int = 4
    groups: tuple[int, ...] = ()

    @property
    def issued(self) -> int:
        """Instructions of single threads that an SM issues a clock."""
        return self.schedulers * self.warp

    def clusters(self, size: int, blocks: int) -> int:
        """Clusters of `size` blocks that run at a time, where an SM holds so many blocks."""
        return sum(group * blocks // size for group in self.groups)


@dataclass(frozen=True)
class Core:
    """One CPU core: vector registers of `simd_bytes`, FMA units, clocks of an FMA."""

    simd_bytes: int
    vector_registers: int
    fma_units: int
    fma_latency: int = 4


@dataclass(frozen=True)
class Target:
    """A machine. `fma` and `tensor` are peaks in TFLOP/s, the latter by type and instruction.

    A cuda target has `sm`; a cpu target has `core`, `l1` and perhaps `l3`. `fitted`: the numbers of the cost model that were
    fitted to measurements, of this machine or of another. `note` is for the user: where the figures come from, if not from
    the file that was asked for; it is no part of the identity.
    """

    name: str
    kind: str
    chip: str
    units: int
    clock_ghz: float
    dram: Level
    l2: Level
    fma: dict[str, float] = field(hash=False)
    rates: Rates
    launch: Launch
    tensor: dict[str, dict[str, float]] = field(default_factory=dict, hash=False)
    sustained: Sustained = field(default_factory=Sustained)
    features: tuple[str, ...] = ()
    sm: Multiprocessor | None = None
    core: Core | None = None
    l1: Level | None = None
    l3: Level | None = None
    fitted: Fitted = field(default_factory=Fitted, hash=False)
    description: str = field(default="", compare=False)
    note: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.description or self.name

    def has(self, feature: str) -> bool:
        return feature in self.features

    def instructions(self, dtype: str) -> tuple[str, ...]:
        """The matrix instructions for a type ("bf16", "tf32", "f8", ...), fastest first; maybe none."""
        table = self.tensor.get(dtype, {})
        return tuple(sorted(table, key=lambda i: -table[i]))

    @property
    def backend(self) -> Literal["cpu", "cuda"]:
        """`kind`, which is one of these."""
        return "cuda" if self.kind == "cuda" else "cpu"

    @property
    def multiprocessor(self) -> Multiprocessor:
        """That of a GPU."""
        assert self.sm is not None, f"{self.name} is no GPU"
        return self.sm

    @property
    def shared_rate(self) -> float:
        """Bytes a second that the shared memory of all SMs moves."""
        return 1e9 * self.clock_ghz * self.multiprocessor.shared_bytes_per_clock * self.units

    def peak(self, unit: str) -> float:
        """Operations a second that `unit` sustains: "fma.f32", "tensor.bf16", "tensor.bf16@mma.sync",
        "special", "int".

        A type without a vector rate of its own is computed in f32.
        """
        pipe, _, dtype = unit.partition(".")
        match pipe:
            case "fma":
                return 1e12 * self.sustained.fma * self.fma.get(dtype, self.fma["f32"])
            case "tensor":
                dtype, _, instruction = dtype.partition("@")
                instruction = instruction or next(iter(self.instructions(dtype)), "")
                if instruction in self.tensor.get(dtype, {}):
                    return 1e12 * self.sustained.tensor * self.tensor[dtype][instruction]
            case "special":
                return 1e9 * self.rates.special * self.units * self.clock_ghz
            case "int":
                return 1e9 * self.rates.integer * self.units * self.clock_ghz
        raise CallError(f"target '{self.name}' has no unit '{unit}'")

    def fit(self, group: type[G]) -> G:
        """The fitted numbers of one part of the cost model. Raises CallError where the target has none."""
        return self.fitted.group(group)

    def to_dict(self) -> dict[str, Any]:
        """The tables of its TOML file, without absent and inherited entries."""
        tables = asdict(self) | {"fitted": self.fitted.to_dict()}
        return {k: v for k, v in tables.items() if v not in (None, "", {})}

    def digest(self) -> str:
        """A hash of everything that a decision may depend on, for cache keys."""
        data = {k: v for k, v in asdict(self).items() if k not in ("note", "description")}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def models() -> tuple[str, ...]:
    """The GPUs that have a file of their own."""
    return tuple(sorted(p.stem for p in BUILT_IN.glob("*.toml") if p.stem != "cpu"))


@cache
def built_in(model: str) -> Target:
    """The target of a file that comes with tilec."""
    return read(BUILT_IN / f"{model}.toml")


def _file(name: str) -> Target:
    """The built-in target with a file of this name. Raises CallError where there is none."""
    if name not in (*models(), "cpu"):
        raise CallError(f"there is no target file '{name}'")
    return built_in(name)


def read(path: Path) -> Target:
    """A target from a TOML file; every key is checked."""
    return from_dict(parse_toml(read_toml(path, "target file"), str(path)), str(path))


def from_dict(table: Mapping[str, object], where: str = "target") -> Target:
    own = {k: v for k, v in table.items() if k != "fitted"}
    target: Target = parse(Target, own, where, "")
    if target.kind not in ("cuda", "cpu"):
        raise CallError(f"{where}: `kind` is '{target.kind}', not 'cuda' or 'cpu'")
    needs = ("sm",) if target.kind == "cuda" else ("core", "l1")
    if absent := [n for n in needs if getattr(target, n) is None]:
        raise CallError(f"{where}: a {target.kind} target needs the table [{absent[0]}]")
    if "f32" not in target.fma:
        raise CallError(f"{where}: [fma] needs `f32`")
    return replace(target, fitted=read_fitted(table.get("fitted"), target.kind, where, _file))

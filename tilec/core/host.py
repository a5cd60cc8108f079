"""The host CPU as a target, as the system describes it: cores, caches, vector instructions, clock."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from tilec.core.target import BUILT_IN, Core, Level, Target, read

AMX_OPERATIONS = 1024  # a clock: 16 x 16 x 32 products and sums of bf16 in 16 clocks


@cache
def estimate() -> Target:
    """This machine as the system describes it; `targets/cpu.toml` where it does not. Measures nothing."""
    generic = read(BUILT_IN / "cpu.toml")
    assert generic.core is not None and generic.l1 is not None
    cores, clock, flags = available_cores(), _clock_ghz() or generic.clock_ghz, _flags()
    core = _core(flags, generic.core)
    peak = 2e-3 * cores * clock * core.fma_units * core.simd_bytes / 4
    loads = 2 * core.simd_bytes * clock  # two vectors a clock from L1, one from L2
    sizes = _cache_sizes()
    return replace(
        generic,
        chip=_chip(flags),
        description=f"{_model()}, {cores} cores",
        units=cores,
        clock_ghz=round(clock, 3),
        features=tuple(sorted(flags & {"fma", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "sve"})),
        dram=replace(generic.dram, bytes=_memory_bytes() or generic.dram.bytes),
        l1=_level(generic.l1, sizes.get(1), loads, cores),
        l2=_level(generic.l2, sizes.get(2), loads / 2, cores),
        l3=_level(generic.l3, sizes.get(3), loads / 4, cores) if generic.l3 and (3 in sizes or not sizes) else None,
        fma={"f32": round(peak, 6), "f64": round(peak / 2, 6)},
        tensor=_matrix_units(flags, 1e-3 * cores * clock, peak),
        rates=replace(
            generic.rates,
            special=core.fma_units * core.simd_bytes / 80,
            integer=core.fma_units * core.simd_bytes / 4,
        ),
        core=core,
        fitted=generic.fitted.inherited(generic.name),
        note="estimated from the system; `tilec doctor --calibrate` measures it",
    )


def _matrix_units(flags: set[str], clocks: float, peak: float) -> dict[str, dict[str, float]]:
    """TFLOP/s of instructions that add products of bf16 to f32, of all cores. `peak`: that of f32, whose vectors have half as many
    numbers. Intel's vectors of pairs take twice a clock (Fog, "Instruction tables")."""
    pairs = peak * (2 if _cpuinfo("vendor_id") == "AuthenticAMD" else 1)
    found = {"amx": ("amx_bf16", clocks * AMX_OPERATIONS), "dot": ("avx512_bf16", pairs)}
    units = {unit: round(rate, 6) for unit, (flag, rate) in found.items() if flag in flags}
    return {"bf16": units} if units else {}


@cache
def permit_amx() -> bool:
    """Asks Linux for this process to use AMX, whose registers are more than a thread's state has room for before."""
    import ctypes

    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def available_cores() -> int:
    """Cores that this process may use: its affinity, hyperthreads once, within a cgroup's quota."""
    if not hasattr(os, "sched_getaffinity"):
        return int(_sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu") or os.cpu_count() or 1)
    mine = os.sched_getaffinity(0)
    siblings = {_text(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list") or str(c) for c in mine}
    return min(len(siblings), cpu_quota() or len(siblings))


def available_threads() -> int:
    """Logical processors that this process may use: its affinity, within its cgroups' quotas."""
    return min(processors(), cpu_quota() or processors())


def processors() -> int:
    """Logical processors of the process's affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def cpu_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Processors that the process's cgroups, of version 1 or 2, give it the time of, rounded up; None where they do not limit it.
    A group's parents limit it, too. In a container, its own group may be the root that it sees."""
    folders = {root, root / "cpu", root / "cpu,cpuacct"}
    for line in _text(own).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        tops = [root / "cpu", root / controllers] if "cpu" in controllers.split(",") else [root] if not controllers else []
        for top in tops:
            inside = top / path.strip("/")
            folders |= {inside, *(parent for parent in inside.parents if parent.is_relative_to(top))}
    found = [limit for folder in folders for limit in _quotas(folder)]
    return min(found, default=None)


def _quotas(folder: Path) -> Iterator[int]:
    first = _text(folder / "cpu.max").split()
    second = [_text(folder / f"cpu.cfs_{word}_us") for word in ("quota", "period")]
    for words in (first, second):
        if len(words) == 2 and all(w.isdigit() and int(w) for w in words):  # not `max`, not -1
            yield max(1, -(-int(words[0]) // int(words[1])))


def _level(generic: Level, size: tuple[int, int, bool] | None, unit_gbs: float, cores: int) -> Level:
    """A cache with the system's size, ways and sharing, at `unit_gbs` a core."""
    bytes_, ways, private = size or (generic.bytes, generic.ways, generic.private)
    return replace(
        generic,
        bytes=bytes_,
        ways=ways,
        private=private or cores == 1,
        unit_gbs=round(unit_gbs, 1),
        bandwidth_gbs=round(unit_gbs * cores, 1),
    )


def _core(flags: set[str], generic: Core) -> Core:
    """Vector width and registers of the instruction set; two FMA units, four on Apple's cores."""
    if "avx512f" in flags:
        narrow = _cpuinfo("vendor_id") == "AuthenticAMD" and int(_cpuinfo("cpu family") or 0) < 26  # before Zen 5
        return replace(generic, simd_bytes=64, vector_registers=32, fma_units=1 if narrow else 2)
    if "neon" in flags:
        return replace(generic, simd_bytes=16, vector_registers=32, fma_units=4 if _is_mac() else 2)
    return replace(generic, simd_bytes=32 if "avx" in flags else 16)


def _chip(flags: set[str]) -> str:
    best = next((f for f in ("avx512f", "avx2", "neon") if f in flags), "generic")
    return f"{platform.machine().lower() or 'unknown'}-{best}"


def _flags() -> set[str]:
    """Instruction set extensions, as Linux names them."""
    if platform.machine().lower() in ("arm64", "aarch64"):
        return {"neon", "fma"} | set(_cpuinfo("Features").split()) & {"sve"}
    if _is_mac():
        words = f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}".lower()
        return {"avx" if w == "avx1.0" else w for w in words.split()}
    flags = set(_cpuinfo("flags").split()) or {"sse2"}
    return flags if "amx_tile" in flags and permit_amx() else {f for f in flags if not f.startswith("amx")}


def _clock_ghz() -> float:
    """The highest clock the system admits to, in GHz; 0 where it does not. It is the same in every process: keys of the cache have
    the target. Processors that count their clocks (`aperfmperf`) tell the clock of the moment, so that their name's is taken."""
    if khz := _text("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"):
        return int(khz) / 1e6
    if "aperfmperf" in _cpuinfo("flags").split():
        nominal = re.search(r"@ ([\d.]+)\s?GHz", _cpuinfo("model name"))
        return float(nominal[1]) if nominal else 0.0
    mhz = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _text("/proc/cpuinfo"), re.MULTILINE)
    return max(map(float, mhz)) / 1e3 if mhz else int(_sysctl("hw.cpufrequency_max") or 0) / 1e9


def _cache_sizes() -> dict[int, tuple[int, int, bool]]:
    """By level: bytes, ways, and whether one core has it for itself (hyperthreads of it aside)."""
    found: dict[int, tuple[int, int, bool]] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_text(index / f) for f in ("level", "type", "size"))
        if kind != "Instruction" and (match := re.fullmatch(r"(\d+)([KM]?)", size)) and level.isdigit():
            scale = {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]]
            ways = _text(index / "ways_of_associativity")
            shared = _text(index / "shared_cpu_list")
            siblings = _text("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
            found[int(level)] = (
                int(match[1]) * scale,
                int(ways) if ways.isdigit() else 8,
                shared in ("0", siblings),
            )
    for number, name in ((1, "l1dcachesize"), (2, "l2cachesize"), (3, "l3cachesize")):
        size = _sysctl(f"hw.perflevel0.{name}") or _sysctl(f"hw.{name}")
        if number not in found and size.isdigit():
            found[number] = (int(size), 8, number == 1)
    return {number: cache for number, cache in found.items() if cache[0]}


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _model() -> str:
    return _cpuinfo("model name") or _sysctl("machdep.cpu.brand_string") or platform.machine() or "CPU"


@cache
def _cpuinfo(key: str) -> str:
    match = re.search(rf"^{key}\s*:\s*(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else ""


def _text(path: str | Path) -> str:
    """A file's text without the line end; "" where there is none."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_mac() -> bool:
    return platform.system() == "Darwin"


def _sysctl(name: str) -> str:
    if not _is_mac():
        return ""
    import subprocess

    result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return result.stdout.strip()

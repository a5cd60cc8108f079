"""`tilec doctor`: reports this machine's hardware and software, and the commands that install missing parts."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, TypeAlias

from tilec.cli.common import note, show, working
from tilec.cli.json_output import show_json
from tilec.cli.records import Examined, facts

Row: TypeAlias = tuple[str, str]  # a label, and a text

_LABEL = 18
_GPU = ("cuda-core",)
_TOOLKIT = {
    "nvidia-cuda-nvcc": "ptxas",
    "nvidia-nvvm": "nvvm",
    "nvidia-cuda-nvrtc": "nvrtc",
    "nvidia-nvjitlink": "nvJitLink",
}
"""Packages, and the program or library of each."""
_OPTIONAL = ("torch", "cupy-cuda13x", "cupy-cuda12x", "matplotlib")


def doctor(args: argparse.Namespace) -> int:
    if args.calibrate:
        _calibrate()
    problems, gpu_problem = list(_problems()), _no_compiler()
    sections = {"software": list(_python()), "CPU": list(_cpu()), "GPU": list(_gpu()), "cache": list(_cache())}
    if args.json:
        found = map(facts, sections.values())
        show_json(Examined(problems, gpu_problem, *found))
        return 1 if problems else 0
    parts = ["\n".join(f"problem: {p}" for p in (*problems, *filter(None, (gpu_problem,))))]
    parts += ["\n".join([name, *(f"  {label:<{_LABEL}} {text}" for label, text in rows)]) for name, rows in sections.items()]
    parts.append("parts that the CPU needs are missing: see above" if problems else "nothing is missing for the CPU")
    show("\n\n".join(filter(None, parts)), [(r"^\w[^:\n]*$", "bold"), (r"\bmissing: .*$|^problem:", "yellow")])
    return 1 if problems else 0


def _no_compiler() -> str | None:
    """What GPU targets lack; None where they lack nothing."""
    from tilec.runtime.cuda.toolkit import missing, reported

    return reported(parts) if (parts := missing()) else None


def _calibrate() -> None:
    from tilec.core.targets import calibrated_path
    from tilec.driver.calibrate import calibrate

    with working("measuring this CPU for five seconds; other programs should be idle"):
        calibrate(report=note)
    note(f"wrote {calibrated_path()}", kind="")


def _python() -> Iterator[Row]:
    from tilec.version import VERSION

    yield ("tilec", VERSION)
    yield ("Python", f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}")
    yield ("calls", _calls())
    yield ("system", f"{platform.platform()}, {platform.machine()}")
    for name in _required():
        yield (name, _version(name) or f"missing: pip install {name}")
    for name in _OPTIONAL:
        if found := _version(name):
            yield (name, f"{found} (optional)")


def _calls() -> str:
    from tilec.runtime.native.tables import VARIABLE, native_calls

    return "by machine code" if native_calls() else f"by Python ({VARIABLE} is 0, or this is not CPython)"


def _required() -> list[str]:
    """The dependencies that tilec's own metadata names, extras left out."""
    import re

    try:
        found = requires("tilec") or []
    except PackageNotFoundError:
        return [
            "lark", "numba", "llvmlite", "numba-cuda-mlir", "cuda-bindings", "numpy", "ml_dtypes", "rich", "pygments",
            "platformdirs", "tomlkit",
        ]  # fmt: skip
    return [name for r in found if "extra ==" not in r for name in re.findall(r"^[\w.-]+", r)]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> Iterator[Row]:
    from tilec.core.targets import calibrated_path, load

    target = load("cpu")
    yield ("model", str(target))
    yield ("chip", f"{target.chip} ({', '.join(target.features)})")
    caches = ((n, getattr(target, n)) for n in ("l1", "l2", "l3"))
    yield ("caches", ", ".join(f"{n.upper()} {size_text(c.bytes)}" for n, c in caches if c))
    yield ("peak", f"{1e3 * target.fma['f32']:.0f} GFLOP/s f32, memory {target.dram.bandwidth_gbs:.0f} GB/s")
    measured = calibrated_path().is_file() and not target.note
    figures = f"measured ({calibrated_path()})" if measured else target.note or "estimated"
    yield ("figures", figures)
    if target.fitted.sources:
        yield ("fitted", str(target.fitted))
    yield ("threads", _threads())


def _threads() -> str:
    """What kernels run on."""
    from tilec.runtime.cpu.threads import get_threads

    try:
        import numba  # noqa: F401 - whose pool it is
    except ImportError as error:
        return f"missing: {error}"
    return f"{get_threads()}, of {os.cpu_count()} logical processors"


def _gpu() -> Iterator[Row]:
    info = _gpu_info()
    if isinstance(info, str):
        yield ("driver", f"missing: {info}")
        return
    for d in info.devices:
        yield (f"device {d.index}", f"{d.name}, {d.chip}, {d.multiprocessors} SMs, {size_text(d.memory)}")
    yield ("driver", info.driver or f"missing: {info.problem}")
    for name in _GPU:
        yield (name, _version(name) or "missing")
    for name, part in _TOOLKIT.items():
        yield (name, _version(name) or _elsewhere(part) or "missing")
    yield ("assembler", info.assembler)
    if info.driver and info.problem:
        yield ("problem", info.problem)


def _elsewhere(part: str) -> str | None:
    """Where a part of the toolkit is that did not come as a wheel."""
    from tilec.runtime.cuda.toolkit import ptxas_path, toolkit_library

    found = ptxas_path() if part == "ptxas" else toolkit_library(part)
    return f"no wheel; found {found}" if found else None


def _gpu_info() -> Any:
    """The driver's `SystemInfo`, or why it cannot be asked."""
    try:
        from tilec.runtime.cuda.driver import device_info

        return device_info()
    except Exception as error:  # the user came to read any error of a broken installation
        return f"{type(error).__name__}: {error}"


def _cache() -> Iterator[Row]:
    import warnings

    from tilec.runtime import cache

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = cache.directory()
    if folder is None:
        reported = str(caught[0].message) if caught else f"off: {cache.VARIABLE} is empty, or the directory was refused"
        yield ("directory", reported)
        return
    files, size = cache.usage()
    yield ("directory", f"{folder} ({'writable' if os.access(folder, os.W_OK) else 'read-only'})")
    yield ("content", f"{files} files, {size_text(size)}; {cache.VARIABLE} names another directory")


def _problems() -> Iterator[str]:
    """Reasons why programs cannot compile for the CPU; a missing GPU is not among them."""
    for name in _required():
        if _version(name) is None:
            yield f"{name} is not installed: pip install {name}"
    try:
        from tilec.core import mlir

        mlir.context()
    except Exception as error:
        yield f"the MLIR bindings do not load: {error}"


def size_text(n: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if n >= 10 or unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return ""

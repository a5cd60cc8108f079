"""Where a benchmark ran, and with what: facts for the JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHIVED = "$Format:%h$"  # `git archive`, and whoever downloads one, gets the commit's name here (see .gitattributes)
PACKAGES = (
    "tilec", "numpy", "numba", "numba-cuda-mlir", "cuda-core", "cuda-bindings", "torch", "triton", "jax",
    "transformers", "timm",
)  # fmt: skip


def _first(pattern: str, path: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


@cache
def gpu() -> str:
    """The first GPU's name, or nothing."""
    try:
        command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return ""
    return lines[0].strip() if lines else ""


def machine() -> dict:
    from tilec.core.host import available_cores

    return {
        "cpu": _first(r"^model name\s*:\s*(.*)", "/proc/cpuinfo") or platform.processor(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": gpu(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


ON_GPUS = ("gpu", "memory", "models", "cuda-audit", "cuda-edits", "matrix-audit", "cuda-numerics", "cuda-sizes")


def short_name(suite: str, facts: dict | None = None) -> str:
    """For file names: the GPU of this machine, or of another's facts, or the architecture and the number of cores."""
    facts = facts or machine()
    if suite in ON_GPUS or suite.startswith("kernelbench") or (suite == "calls" and facts["gpu"]):
        name = facts["gpu"].split(",")[0].lower().removeprefix("nvidia ")
        return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "gpu"
    return f"{facts['system'].split()[-1]}-{facts['cores']}cores"


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | compilers() | {"commit": commit()}


def compilers() -> dict[str, str]:
    """The compilers below tilec: LLVM, which makes machine code for CPUs, NVVM and ptxas, which make it for GPUs."""
    import llvmlite.binding

    found = {"llvm": ".".join(map(str, llvmlite.binding.llvm_version_info))}
    for name, package in (("nvvm", "nvidia-nvvm"), ("ptxas", "nvidia-cuda-nvcc"), ("nvjitlink", "nvidia-nvjitlink")):
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found |= {name: version} if (version := _toolkit(name)) else {}
    return found


def _toolkit(name: str) -> str:
    """The CUDA toolkit that one of its compilers lies in, where no package brought it: they do not all tell their version."""
    from tilec.runtime.cuda.assemble import ptxas_path

    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = ptxas_path() if name == "ptxas" else load_nvidia_dynamic_lib(name).abs_path
    except (ImportError, RuntimeError):
        return ""
    toolkit = re.search(r"cuda-(\d+\.\d+)", os.path.realpath(path)) if path else None
    return f"of CUDA {toolkit[1]}" if toolkit else ""


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """What is checked out, with `+` where files differ from it; or what an archive was made of."""
    if not ARCHIVED.startswith("$"):
        return ARCHIVED
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def has(module: str) -> bool:
    """Whether a peer can be imported here."""
    try:
        importlib.import_module(module)
    except Exception:
        return False
    return True

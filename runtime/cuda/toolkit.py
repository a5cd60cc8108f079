"""The parts of NVIDIA's CUDA toolkit that compile kernels: their places, and the message for a missing part.

They come with the `cuda` extra, from conda, or from a toolkit of the system. Nothing here is searched before a
compilation has failed, except `ptxas`, which is a program.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlparse

from tilec.core.diagnostics import CallError

_MODULES = ("numba_cuda_mlir", "cuda.bindings", "cuda.core", "cuda.pathfinder")
_LIBRARIES = ("nvvm", "nvrtc")


class NoCompiler(CallError):
    """A part of the GPU compiler is not installed. The message is one line with the command that installs it."""


def refuse_if_missing(error: Exception) -> None:
    """Raises `NoCompiler` where compiling failed with `error` for want of a part."""
    if parts := missing():
        raise NoCompiler(reported(parts)) from error


def reported(parts: tuple[str, ...]) -> str:
    """The missing part, and the command that installs it, in one line."""
    return f"the compiler for GPUs is not installed (missing: {', '.join(parts)}); install it by: {install_command()}"


def missing() -> tuple[str, ...]:
    """The parts that compiling to a cubin takes and that are not to be found: modules, libraries, an assembler."""
    modules = tuple(name for name in _MODULES if not _is_module(name))
    libraries = tuple(name for name in _LIBRARIES if toolkit_library(name) is None)
    assembler = () if ptxas_path() or toolkit_library("nvJitLink") else ("ptxas",)
    return (*modules, *libraries, *assembler)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # its package is missing, or hidden
        return False


def ptxas_path() -> str | None:
    """The toolkit's assembler."""
    return tool_path("ptxas")


@cache
def tool_path(name: str) -> str | None:
    """A program of the toolkit: of the `cuda` extra, of conda, or of CUDA_HOME."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return _in_toolkit(name)
    return find_nvidia_binary_utility(name) or _in_toolkit(name)


def _in_toolkit(name: str) -> str | None:
    """On the path, or where NVIDIA's packages put a toolkit that is not on it."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def toolkit_library(name: str) -> str | None:
    """Where a library of the toolkit ("nvvm", "nvJitLink") is: in the `cuda` extra's wheels, conda, or CUDA_HOME."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return load_nvidia_dynamic_lib(name).abs_path
    except (ImportError, RuntimeError, OSError):  # pathfinder's own error is a RuntimeError
        return None


def install_command() -> str:
    """The command that installs the `cuda` extra into this Python, from where tilec itself came."""
    return f"{_pip()} install {_requirement()}"


def _pip() -> str:
    """`pip` where a shell would find this Python's."""
    found = shutil.which("pip")
    ours = found and os.path.realpath(Path(found).parent) == os.path.realpath(Path(sys.executable).parent)
    return "pip" if ours else f"{shlex.quote(sys.executable)} -m pip"


def _requirement() -> str:
    """What pip calls it: a folder where tilec was installed from one, else its name."""
    try:
        origin = json.loads(distribution("tilec").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = urlparse(origin.get("url", ""))
    if url.scheme != "file":
        return "'tilec[cuda]'"
    folder = unquote(url.path)
    folder = "." if os.path.realpath(folder) == os.path.realpath(os.curdir) else folder
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return editable + _quoted(f"{folder}[cuda]")


def _quoted(text: str) -> str:
    """For a shell, which takes brackets for a pattern."""
    return f"'{text}'" if "'" not in text else shlex.quote(text)

"""SASS of a cubin, the instructions of the chip: by `nvdisasm`, which only a whole CUDA toolkit has."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tilec.runtime.cuda.toolkit import tool_path


def sass(image: bytes) -> str | None:
    """The instructions of a cubin as text; None where there is no `nvdisasm`, or where it does not know the chip."""
    if (tool := tool_path("nvdisasm")) is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        done = subprocess.run([tool, "--print-code", str(path)], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None

"""Assembles PTX to a cubin and reads its resources: registers, stack, spills, warnings.

By the `ptxas` program where the toolkit has one, else by the nvJitLink library. Both come with the `cuda`
extra. nvJitLink compiles PTX as for later linking, where `setmaxnreg` is ignored (C7504) and 1 KiB of shared
memory is set aside.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilec.runtime.cuda.ptx_faults import without_faults
from tilec.runtime.cuda.toolkit import ptxas_path, refuse_if_missing
from tilec.runtime.program import Cubin

FRUGAL = ("--register-usage-level=0",)  # of 10; 5 is what ptxas takes unasked


class ResourceError(Exception):
    """The kernel compiles, but spills, has a stack frame or drew a warning. `cubin` has the numbers."""

    def __init__(self, cubin: Cubin):
        parts = [f"{cubin.entry} for {cubin.chip}: {cubin.registers} registers"]
        parts += [f"{cubin.spills} bytes of spills"] if cubin.spills else []
        parts += [f"a stack frame of {cubin.stack} bytes"] if cubin.stack else []
        super().__init__("\n".join([", ".join(parts), *cubin.warnings]))
        self.cubin = cubin


class CompileError(Exception):
    """The printed source or its PTX does not compile. `source` is the text, `log` the assembler's output."""

    def __init__(self, message: str, source: str, log: str = ""):
        super().__init__(message)
        self.source, self.log = source, log


def assemble(
    ptx: str,
    entry: str,
    chip: str,
    *,
    max_registers: int | None = None,
    frugal: bool = False,
    source: str = "",
    begin: float | None = None,
) -> Cubin:
    """Assembles PTX text, which may be one that a person has edited. `frugal` leaves out optimisations that take registers.
    `begin` is when the work on it began."""
    begin = time.perf_counter() if begin is None else begin
    ptx = without_faults(ptx)
    if max_registers:  # ptxas's own option gives way to launch bounds, this directive does not
        ptx = re.sub(r"^(\.maxntid [^\n]*)$", rf"\1\n.maxnreg {max_registers}", ptx, flags=re.MULTILINE)
    try:
        image, log = _image(ptx, chip, FRUGAL if frugal else ())
    except _Refused as error:
        raise CompileError(f"{entry} for {chip} does not assemble:\n{error}", source or ptx, str(error)) from None
    return Cubin(image, ptx, entry, chip, **_usage(log, entry), seconds=round(time.perf_counter() - begin, 4))


class _Refused(Exception):
    """The assembler's log."""


def _image(ptx: str, chip: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    if ptxas_path() is None:
        return _nvjitlink(ptx, chip, options)
    try:
        return _ptxas(ptx, chip, options)
    except _Refused as error:
        if "Unsupported .version" in str(error):  # a ptxas of an older toolkit than the PTX's
            return _nvjitlink(ptx, chip, options)
        raise


def _ptxas(ptx: str, chip: str, options: Sequence[str]) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
        target = Path(folder) / "kernel.cubin"
        command = [ptxas_path() or "ptxas", f"-arch={chip}", "-v", *options, "-", "-o", str(target)]
        done = subprocess.run(command, input=ptx, capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        if done.returncode:
            raise _Refused(log)
        return target.read_bytes(), log


def _nvjitlink(ptx: str, chip: str, options: Sequence[str]) -> tuple[bytes, str]:
    linker = None
    try:
        from cuda.core import Linker, LinkerOptions, ObjectCode

        wanted = LinkerOptions(arch=chip, verbose=True, optimization_level=3, ptxas_options=[*options])
        linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=wanted)
        image = bytes(linker.link("cubin").code)
    except Exception as error:
        refuse_if_missing(error)
        raise _Refused(f"{error}\n{linker.get_error_log() if linker else ''}") from error
    return image, linker.get_info_log() + "\n" + linker.get_error_log()


def _usage(log: str, entry: str) -> dict[str, Any]:
    """Reads ptxas's verbose log: the part about `entry`, and warnings about anything."""
    parts = re.split(r"^.*Compiling entry function '([^']+)'.*$", log, flags=re.MULTILINE)
    own = next((body for name, body in zip(parts[1::2], parts[2::2]) if name == entry), log)

    def number(pattern: str) -> int:
        found = re.search(pattern, own)
        return int(found[1]) if found else 0

    warned = [line.strip() for line in log.splitlines() if re.search(r"\bC7\d{3}\b|warning", line, re.IGNORECASE)]
    return {
        "registers": number(r"Used (\d+) registers"),
        "stack": number(r"(\d+) bytes stack frame"),
        "spills": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        "shared": number(r"(\d+) bytes smem"),
        "barriers": number(r"used (\d+) barriers"),
        "warnings": tuple(dict.fromkeys(warned)),
    }

"""Programs compiled by a process of low priority (`tilec/process/compile_server.py`), for sizes that are met often.

It is apart from the processes that calls wait for. It compiles kernels for the CPU, too, and leaves them in the disk cache, so that
they take nothing of Python's global lock in the process that calls.
"""

from __future__ import annotations

import os
from contextlib import suppress

from tilec.driver import program_compiler
from tilec.runtime.cpu import compile as cpu_compiler
from tilec.runtime.cpu.objects import load_program
from tilec.runtime.program import Emitted

NICE = 10  # the calls come first


def prepare() -> None:
    """For `compile_server`: loads what planning and compiling take."""
    os.nice(NICE)
    program_compiler.prepare()
    cpu_compiler.prepare()


def answer(wanted: dict[str, str], on_part: object = None) -> dict[str, object]:
    """The reply of `compile_server`: as that of `program_compiler`."""
    reply = program_compiler.answer(wanted)
    if "program" in reply and wanted["kind"] == "cpu":
        with suppress(Exception):  # who asked finds nothing in the cache, compiles them, and has the error
            load_program(Emitted.from_json(reply["program"]["emitted"]))
    return reply

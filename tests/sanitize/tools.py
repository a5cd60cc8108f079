"""The tools of NVIDIA's Compute Sanitizer: how each is run, and what its output says."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

TOOLS: dict[str, tuple[str, ...]] = {
    # Padding, or what lies behind an array is the next array. What calls of the driver return is not asked for: tilec
    # counts a kernel's parameters by asking until there is none, and raises what it does not expect.
    "memcheck": ("--tool", "memcheck", "--padding", "4096", "--report-api-errors", "no"),
    "racecheck": ("--tool", "racecheck", "--racecheck-report", "analysis"),
    "synccheck": ("--tool", "synccheck"),
    "initcheck": ("--tool", "initcheck"),
}
EVERY = (
    "--destroy-on-device-error", "kernel", "--error-exitcode", "86", "--print-limit", "30", "--show-backtrace", "no",
    "--max-connections", "64",
)  # fmt: skip
MARK = "sanitize:"
"""Begins the lines of the program that runs under a tool: `case NAME` and `done NAME`."""
_PREFIX = re.compile(r"^={9} ?")
_SUMMARY = re.compile(r"^(ERROR|RACECHECK|LEAK) SUMMARY: ")
_TALK = re.compile(r"^(COMPUTE-SANITIZER|Target application returned|Error: process didn't terminate)")
UNSUPPORTED = "compute-sanitizer does not support this machine's GPU, or its virtual machine"
_NO_DEVICE = re.compile(r"device not supported|not supported on this (device|system|platform)", re.IGNORECASE)


LOST = (16, 4)
"""Blocks of a cluster and clusters of a kernel, from which on synccheck (2025.3) ends with an illegal address where blocks
send each other words by `st.async`: in a kernel of twenty lines, too, whose clusters meet at its begin and its end."""


def runs(tool: str, case: Path) -> bool:
    """Whether a tool can run the kernels of a prepared case."""
    clusters = json.loads((case / "case.json").read_text())["clusters"]
    return tool != "synccheck" or not any(size >= LOST[0] and count >= LOST[1] for size, count in clusters)


@dataclass(frozen=True)
class Report:
    """What a tool complains about. `case` is what was running."""

    case: str
    text: str

    @property
    def kind(self) -> str:
        """What reports of one defect have in common."""
        first = self.text.partition("\n")[0]
        return re.sub(r"\+0x[0-9a-f]+|\d+ hazards?|0x[0-9a-f]+|\d+", "#", first)


@dataclass(frozen=True)
class Outcome:
    """What came of one run of a tool: the cases that ended, the reports, and why it says nothing where it does not."""

    ended: tuple[str, ...]
    reports: tuple[Report, ...]
    problem: str = ""


def find() -> str | None:
    """The program, which comes with the CUDA toolkit."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [str(Path(home) / "bin") for home in homes if home]
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def read(output: str, status: int) -> Outcome:
    """Reads what a tool and the program under it printed, and the status with which they ended."""
    case, ended, reports, block, summary = "", [], [], [], False
    for line in output.splitlines():
        if line.startswith(MARK):
            word, _, name = line.removeprefix(MARK).strip().partition(" ")
            if word == "done":
                ended.append(name)
            else:
                case = name
            continue
        if not (found := _PREFIX.match(line)):
            continue
        text = line[found.end() :]
        if _SUMMARY.match(text):
            summary, block = True, []
        elif text.startswith(" ") and block:
            block.append(text)
            reports[-1] = Report(reports[-1].case, "\n".join(block))
        elif not text.strip() or text.startswith(" ") or _TALK.match(text):
            block = []
        else:
            block = [text]
            reports.append(Report(case, text))
    problem = ""
    if _NO_DEVICE.search(output):
        problem = UNSUPPORTED
        reports = [r for r in reports if not _NO_DEVICE.search(r.text)]
    elif not summary:
        problem = "the tool gave no summary: it, or the program, was killed"
    elif status and not reports:
        problem = f"the program failed, status {status}"
    return Outcome(tuple(ended), tuple(reports), problem)

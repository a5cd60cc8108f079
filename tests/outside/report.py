"""Counts into docs/outside.md, between the markers of each suite."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from tests.outside.common import Report

PAGE = Path(__file__).parents[2] / "docs" / "outside.md"
PACKAGES = {"einsum": ("numpy", "opt_einsum"), "onnx": ("onnx",), "torch": ("torch",)}


def write(reports: list[Report]) -> None:
    for report in reports:
        replace_section(report.suite, section(report))


def replace_section(name: str, section: str) -> None:
    """Writes a section of docs/outside.md between its markers."""
    text = PAGE.read_text(encoding="utf-8")
    start, end = f"<!-- outside: {name} -->\n", "<!-- end -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    assert pattern.search(text), f"docs/outside.md has no place for {name}"
    PAGE.write_text(pattern.sub(lambda _: start + section + end, text), encoding="utf-8")


def section(report: Report) -> str:
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES[report.suite])
    counts = " | ".join(str(report.count(v)) for v in ("passed", "refused", "failed"))
    part = f", one case of {report.every}" if report.every > 1 else ""
    lines = [f"With {versions}{part}:", "", "| cases | passed | refused | failed |", "| ---: | ---: | ---: | ---: |"]
    lines += [f"| {len(report.outcomes)} | {counts} |", "", "| refused | because |", "| ---: | --- |"]
    lines += [
        f"| {count} | {reason.replace('|', chr(92) + '|')} |"
        for reason, count in report.reasons("refused").most_common()
    ]
    return "\n".join(lines) + "\n"

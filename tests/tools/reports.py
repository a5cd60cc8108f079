"""Reads reports of `explain` for what contradicts itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

REGIMES = {
    "compute": {"float arithmetic", "matrix units", "special functions", "integer arithmetic", "innermost loops"},
    "memory": {"DRAM", "L3 cache", "L2 cache", "L1 cache", "shared memory"},
    "overhead": {"launch", "pipeline waits", "block starts"},
}


def kernels(text: str) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """The heading of each kernel, its rows by label, and the bars of its times by resource."""
    for part in re.split(r"\n(?=kernel |launch |copy of |decisions)", text):
        lines = part.split("\n")
        if not lines[0].startswith("kernel "):
            continue
        rows = {line[2:20].strip(): line[20:] for line in lines[1:] if line[2:20].strip()}
        bars = re.finditer(r"^(?:  time {14}| {20})(\S.{17}) *([\d.]+ \w+)  #+$", part, re.MULTILINE)
        times = {m[1].strip(): m[2] for m in bars}
        yield lines[0], rows, times


def microseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def contradictions(text: str) -> list[str]:
    """Each sentence of a report that another one denies."""
    wrong = []
    sections = re.findall(r"^(?:kernel|launch|copy of) (.*?): ([\d.]+ \w+) predicted", text, re.MULTILINE)
    together = {name for names in re.findall(r"^launch .*\n  kernels +(.*)$", text, re.MULTILINE) for name in names.split(", ")}
    sum_ = sum(microseconds(us) for name, us in sections if name not in together)
    whole = microseconds(re.search(r"^  time +([\d.]+ \w+) predicted", text, re.MULTILINE)[1])
    if abs(sum_ - whole) > 0.06 * (len(sections) + 1) + 0.006 * whole:  # of one digit each, or of three
        wrong.append(f"{whole} us in all, and {sum_} by parts")
    for heading, rows, times in kernels(text):
        took, regime, resource = re.match(r"kernel \S+ ([\d.]+ \w+) predicted.*, bound by (\w+) \((.+)\)$", heading).groups()
        most = max(map(microseconds, times.values()), default=0.0)
        if resource not in REGIMES[regime]:
            wrong.append(f"{heading}: {resource} is no {regime}")
        if microseconds(times.get(resource, "0 us")) < most:
            wrong.append(f"{heading}: another time is longer: {times}")
        if most > 1.06 * microseconds(took):  # of one digit each
            wrong.append(f"{heading}: a part takes longer than the whole: {times}")
        intensity = rows.get("intensity", "")
        if side := re.match(r"([\d.]+) operations .* is at ([\d.]+): (below|above) the ridge(.*)", intensity):
            if side[1] == side[2] or (float(side[1]) < float(side[2])) != (side[3] == "below"):
                wrong.append(f"{heading}: {intensity}")
            verdict = re.search(r"so bound by (\w+)", side[4])
            if verdict and verdict[1] != regime:
                wrong.append(f"{heading}: {intensity}")
            if not verdict and resource not in side[4] and "take" not in side[4]:
                wrong.append(f"{heading}: {intensity}")
        if (share := re.match(r"([\d.]+)%", rows.get("roofline", ""))) is None or float(share[1]) > 100:
            wrong.append(f"{heading}: roofline {rows.get('roofline')}")
        a_block = re.search(r"(\d+) a block", rows.get("threads", ""))
        on_an_sm = re.search(r"of (\d+) threads?\b", rows.get("occupancy", ""))
        if a_block and on_an_sm and a_block[1] != on_an_sm[1]:
            wrong.append(f"{heading}: threads {rows['threads']}; occupancy {rows['occupancy']}")
        for percent in re.findall(r"([\d.]+)%", " ".join(rows.values())):
            if float(percent) > 100:
                wrong.append(f"{heading}: {percent}%")
    return wrong

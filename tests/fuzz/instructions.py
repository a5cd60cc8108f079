"""Looking for faults of ptxas itself: kernels of drawn instructions, run on a GPU and held to what PTX's manual says.

    cd tests; python -m fuzz.instructions --minutes 5 --jobs 16 [--seed 0] [--first 0] [--kernels 1000] [--expressions 150]
        [--out DIR] [--result FILE] [--raw] [--ptxas PATH] [--assemble-only [CHIP]]

A whole program holds few instructions and takes much to compile; a kernel here is hundreds of small expressions. `--raw` leaves out
`runtime/cuda/ptx_faults.py`: the faults that are known must then show. `--assemble-only` takes no GPU, and compares nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from fuzz.counts import Counts
from fuzz.instruction_kernels import THREADS, Draw, Input, Node, Part, evaluate, expression, parts, read, same, written
from fuzz.result import facts
from tilec.runtime.cuda import assemble
from tilec.runtime.cuda.assemble import CompileError

Run = Callable[[list[Part]], list[np.ndarray]]
LATE = 8.0
"""Seconds that processes have for what they are at when the time is up, of which reducing a failure takes half."""
REDUCING = 20.0


# ---- one kernel --------------------------------------------------------------------------------------------------------


def image_of(ptx: str, chip: str, raw: bool) -> bytes:
    if not raw:
        return assemble.assemble(ptx, "k", chip).image
    try:
        return assemble._image(ptx, chip)[0]
    except assemble._Refused as error:
        raise CompileError("k does not assemble", ptx, str(error)) from None


class Gpu:
    """Runs kernels on the first GPU of this machine."""

    SPACE = 1 << 20

    def __init__(self, raw: bool):
        from tilec.runtime.cuda import driver

        self.driver, self.raw = driver, raw
        driver.use_device(0)
        self.chip = driver.chip_of()
        self.arrays = [driver.allocate(self.SPACE) for _ in range(2)]

    def __call__(self, roots: list[Part]) -> list[np.ndarray]:
        from tilec.runtime.cuda.launch import Kernel, Launcher

        ptx, memory = written(roots, self.chip)
        kernel = Kernel(image_of(ptx, self.chip, self.raw), "k", ["u64", "u64"])
        call, (source, target), size = self.driver.call, self.arrays, 8 * THREADS * len(roots)
        assert len(memory) <= self.SPACE and size <= self.SPACE
        if memory:
            call("cuMemcpyHtoD", source, memory, len(memory))
        call("cuMemsetD8", target, 0xAB, size)
        Launcher(kernel, (1, 1, 1), (THREADS, 1, 1)).launch(0, source, target)
        found = bytearray(size)
        call("cuMemcpyDtoH", found, target, size)  # after the kernel: both are on the default stream
        call("cuLibraryUnload", kernel._library)
        return read(roots, bytes(found))


@dataclass
class Assembler:
    """Stands for a GPU where there is none: whatever it is asked is right, once it assembles."""

    chip: str
    raw: bool

    def __call__(self, roots: list[Part]) -> list[np.ndarray]:
        image_of(written(roots, self.chip)[0], self.chip, self.raw)
        values = evaluate(roots)
        return [values[r] for r in roots]


def wrong(roots: list[Part], run: Run) -> list[int] | str:
    """The roots of which a thread has another result than it should, or why the kernel does not assemble."""
    try:
        found = run(roots)
    except CompileError as error:
        return error.log or str(error)
    values = evaluate(roots)
    return [i for i, root in enumerate(roots) if not same(found[i], values[root]).all()]


# ---- reducing ----------------------------------------------------------------------------------------------------------


def reduced(roots: list[Part], run: Run, until: float = float("inf")) -> list[Part]:
    """The fewest expressions, of the fewest instructions, that fail alike."""
    symptom = wrong(roots, run)
    if not symptom:
        return roots

    def fails(candidate: list[Part]) -> bool:
        found = wrong(candidate, run)
        return bool(found) and type(found) is type(symptom)

    alone = [[roots[i]] for i in symptom] if isinstance(symptom, list) else [[r] for r in roots]
    alone.sort(key=lambda state: len(parts(state)))
    roots = next((state for state in alone[:20] if time.monotonic() < until and fails(state)), roots)
    step = len(roots) // 2
    while step and time.monotonic() < until:
        at = 0
        while at < len(roots) and len(roots) > 1 and time.monotonic() < until:
            rest = roots[:at] + roots[at + step :]
            if rest and fails(rest):
                roots = rest
            else:
                at += step
        step //= 2
    while time.monotonic() < until:
        for candidate in _smaller(roots):
            if time.monotonic() > until:
                return roots
            if fails(candidate):
                roots = candidate
                break
        else:
            return roots
    return roots


def _smaller(roots: list[Part]) -> Iterator[list[Part]]:
    """Parts replaced by inputs with their values, from the largest on; roots by what they are made of; parts by their own parts."""
    values, nodes = evaluate(roots), [p for p in reversed(parts(roots)) if isinstance(p, Node)]
    for node in nodes:
        if node not in roots:
            loaded = "u8" if node.kind == "pred" else node.kind
            yield _with(roots, node, Input(node.kind, loaded, values[node]))
    for i, root in enumerate(roots):
        if isinstance(root, Node):
            yield from ([*roots[:i], o, *roots[i + 1 :]] for o in root.operands if isinstance(o, Node))
    for node in nodes:
        yield from (_with(roots, node, o) for o in node.operands if isinstance(o, Node | Input) and o.kind == node.kind)


def _with(roots: list[Part], old: Part, new: Part) -> list[Part]:
    made = {old: new}
    for part in parts(roots):
        if part not in made:
            changed = isinstance(part, Node) and any(made[o] is not o for o in part.operands)
            made[part] = Node(part.op, tuple(made[o] for o in part.operands)) if changed else part
    return [made[r] for r in roots]


def opcodes(roots: list[Part]) -> frozenset[str]:
    return frozenset(p.op.name for p in parts(roots) if isinstance(p, Node))


def report(roots: list[Part], run: Run) -> str:
    """The expressions, and the first threads whose results are wrong, with their inputs."""
    names = {}
    for part in parts(roots):
        if isinstance(part, Input):
            names[part] = f"in{len(names)}:{part.loaded}"
    lines = [f"out{i}:{root.kind} = {expression(root, names)}" for i, root in enumerate(roots)]
    try:
        found, values = run(roots), evaluate(roots)
    except CompileError as error:
        return "\n".join([*lines, "", error.log, ""])
    for i, root in enumerate(roots):
        off = np.flatnonzero(~same(found[i], values[root]))
        lines += ["", f"out{i}: {len(off)} of {THREADS} threads"] if len(off) else []
        for thread in off[:8]:
            given = ", ".join(f"{name} = {_shown(part.values[thread])}" for part, name in names.items())
            result = f"expected {_shown(values[root][thread])}, found {_shown(found[i][thread])}"
            lines.append(f"  thread {thread}: {given}: {result}")
    return "\n".join([*lines, ""])


def _shown(x: np.generic) -> str:
    if x.dtype.kind == "u":
        return f"{int(x)} (0x{int(x):x}, signed {int(x.view(f'i{x.dtype.itemsize}'))})"
    return f"{x} (0x{int(x.view(f'u{x.dtype.itemsize}')):x})" if x.dtype.kind == "f" else str(x)


# ---- many kernels ------------------------------------------------------------------------------------------------------


@dataclass
class Failure:
    """A kind of failure: the instructions of the first one, when it was reduced."""

    kind: str
    name: str
    times: int = 0
    way: str = "instructions"


@dataclass
class Hunt:
    options: argparse.Namespace
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    found: dict[str, Failure] = field(default_factory=dict)

    def run(self) -> None:
        context = multiprocessing.get_context("fork")  # this process has no GPU's context
        message, begin = context.Queue(), time.monotonic()
        end = begin + 60 * self.options.minutes if self.options.minutes is not None else float("inf")
        with context.Manager() as manager:
            known = manager.list()
            workers = [
                context.Process(target=work, args=(self.options, j, end, known, message), daemon=True)
                for j in range(self.options.jobs)
            ]
            for worker in workers:
                worker.start()
            while time.monotonic() < end + LATE:
                try:
                    self._heard(*message.get(timeout=0.2))
                except queue.Empty:
                    if not any(worker.is_alive() for worker in workers):
                        break
            for j, worker in enumerate(workers):
                if worker.is_alive() or worker.exitcode:
                    print(
                        f"process {j} " + ("is late" if worker.is_alive() else f"ended with status {worker.exitcode}")
                    )
                    worker.kill()
        self.seconds = time.monotonic() - begin

    def _heard(self, kernel: int, expressions: int, failed: int, kind: str, files: dict[str, str]) -> None:
        """`kind` is that of one failure of the kernel's; `files` are of a new one."""
        self.counts.add({"tried": 1, "statements": expressions, "compared": expressions, "failed": failed})
        if not kind:
            return
        new = kind not in self.found
        found = self.found.setdefault(kind, Failure(kind, str(kernel)))
        found.times += 1
        if new and files:
            folder = self.options.out / (re.sub(r"[^\w.]+", "-", kind)[:80] + f"-{self.options.seed}-{kernel}")
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text)
            first = files["report.txt"].split("\n", 1)[0]
            print(f"kernel {kernel}: {kind}: {first[:300]} ({folder})", flush=True)

    @property
    def summary(self) -> str:
        c, rate = self.counts, self.counts.statements / max(self.seconds, 0.1)
        lines = [f"{f.kind}: {f.times} times, first in kernel {f.name}" for f in self.found.values()]
        reported = f"{c.tried:,} kernels, {c.statements:,} expressions ({rate:,.0f} a second), {c.failed:,} wrong"
        return "\n".join([*lines, f"{reported}, {len(self.found)} kinds of failure in {self.seconds:,.0f} s"])


def work(options: argparse.Namespace, job: int, end: float, known, message) -> None:
    """One process: draws, assembles, runs, compares, and reduces one failure of a kernel that has an unknown one."""
    if options.ptxas:
        assemble.ptxas_path = lambda: options.ptxas
    run = Assembler(options.assemble_only, options.raw) if options.assemble_only else Gpu(options.raw)
    kernel = options.first + job
    while time.monotonic() < end and (options.kernels is None or kernel < options.first + options.kernels):
        try:
            message.put(attempt(options, kernel, run, end, known))
        except Exception as error:
            files = {"report.txt": traceback.format_exc()}
            message.put((kernel, 0, 1, f"{type(error).__name__}: {str(error)[:200]}", files))
            if not options.assemble_only and not isinstance(error, AssertionError):
                raise  # the GPU may be of no more use to this process
        kernel += options.jobs


def attempt(options, kernel: int, run: Run, end: float, known) -> tuple[int, int, int, str, dict[str, str]]:
    """What `Hunt._heard` takes."""
    roots = Draw(f"{options.seed} {kernel}").kernel(options.expressions)
    failed = wrong(roots, run)
    if not failed:
        return kernel, len(roots), 0, "", {}
    kinds = [frozenset(k) for k in known]
    suspects = failed if isinstance(failed, list) else range(len(roots))
    new = [i for i in suspects if not any(k <= opcodes([roots[i]]) for k in kinds)]
    count = len(suspects) if isinstance(failed, list) else 1
    if not new:
        held = next(k for k in kinds if k <= opcodes([roots[suspects[0]]]))
        return kernel, len(roots), count, " ".join(sorted(held)), {}
    state = _first(roots, new, failed)
    state = state if wrong(state, run) else roots
    small = reduced(state, run, min(time.monotonic() + REDUCING, end + LATE / 2))
    codes = opcodes(small)
    kind = " ".join(sorted(codes)) or "loads and stores"
    if len(codes) > 12:  # there was no time, or it does not fail again
        kind = f"not reduced, kernel {kernel}"
    elif codes and codes not in kinds:
        known.append(sorted(codes))
    ptx, memory = written(small, getattr(run, "chip", "sm_90a"))
    command = f"python -m fuzz.instructions --seed {options.seed} --first {kernel} --kernels 1"
    command += f" --expressions {options.expressions}" + " --raw" * options.raw
    files = {"report.txt": report(small, run) + f"\n{command}\n", "kernel.ptx": ptx, "input.hex": memory.hex()}
    return kernel, len(roots), count, kind, files


def _first(roots: list[Part], new: list[int], failed: list[int] | str) -> list[Part]:
    """Without what fails in a way that is known, which would be found again."""
    known = set(failed) - set(new) if isinstance(failed, list) else set()
    return [r for i, r in enumerate(roots) if i not in known]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.instructions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--kernels", type=int)
    parser.add_argument("--expressions", type=int, default=150, help="of a kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first kernel")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz-found/ptxas"))
    parser.add_argument("--result", type=Path, help="writes what was hunted as JSON")
    parser.add_argument("--raw", action="store_true", help="without runtime/cuda/ptx_faults.py")
    parser.add_argument("--ptxas", help="another than the one that kernels are assembled by")
    parser.add_argument("--assemble-only", nargs="?", const="sm_90a", metavar="CHIP", help="takes no GPU")
    options = parser.parse_args(arguments)
    if options.minutes is None and options.kernels is None:
        options.minutes = 1.0
    hunt = Hunt(options)
    hunt.run()
    print(hunt.summary)
    if options.result:
        reported = facts(SimpleNamespace(
            seed=options.seed, begin=options.first, jobs=options.jobs, seconds=hunt.seconds,
            counts={"instructions": hunt.counts}, found=hunt.found,
        ))  # fmt: skip
        asked = [options.ptxas or assemble.ptxas_path() or "ptxas", "--version"]
        version = re.search(r"V[\d.]+", subprocess.run(asked, capture_output=True, text=True, check=False).stdout)
        reported |= {"ptxas": version[0] if version else "", "raw": options.raw, "assemble_only": options.assemble_only}
        options.result.write_text(json.dumps(reported, indent=1))
    return 1 if hunt.found else 0 if hunt.counts.tried else 2


if __name__ == "__main__":
    sys.exit(main())

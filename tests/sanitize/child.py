"""What runs under a tool: prepared cases, one after another, through tilec and the driver alone.

    python -m sanitize.child FOLDER...           cases that `sanitize.cases` prepared
    python -m sanitize.child --planted NAME      a kernel with a fault

Kernels come from the disk cache, where preparing put them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from sanitize.planted import run_planted
from sanitize.tools import MARK
from tilec.core.dtypes import DTYPES
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver.executable import Executable
from tilec.driver.executables import build_executable
from tilec.driver.frontend import read_program
from tilec.driver.recipe import Recipe


def executable(folder: Path, target: str = "cuda") -> Executable:
    """The compiled program of a prepared case."""
    facts = json.loads((folder / "case.json").read_text())
    source = Path(facts["path"]) if facts["path"] else (folder / "program.tile").read_text()
    schedule = folder / "program.sched.toml"
    program = read_program(read_source(source))
    op = program.op(facts["op"]).name
    inputs = facts["inputs"] and tuple((DTYPES[name], tuple(shape)) for name, shape in facts["inputs"])
    return build_executable(
        Recipe(program, op, inputs, facts["sizes"], load(target), schedule if schedule.exists() else None)
    )


def run(folder: Path) -> None:
    from tilec.driver.devices import open_device

    built, raw = executable(folder), np.load(folder / "inputs.npz")
    inputs = {n: raw[n].view(dtype.numpy).reshape(shape) for n, dtype, shape in built.compiled.inputs}
    with open_device("cuda", inputs, built.outputs) as device:
        device.run(built)
        device.results()  # every element of them is read: initcheck sees what no kernel wrote


def main(arguments: list[str]) -> int:
    planted = arguments[0] == "--planted"
    for argument in arguments[planted:]:
        name = argument if planted else Path(argument).name
        print(f"{MARK} case {name}", flush=True)
        if planted:
            run_planted(argument)
        else:
            run(Path(argument))
        print(f"{MARK} done {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

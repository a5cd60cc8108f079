"""What a page is about: a program's plan and IR, and what was compiled and measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilec.driver.lowering import Lowered
from tilec.dsl.specialise import Specialised
from tilec.plan.model import Plan
from tilec.runtime.program import Emitted

if TYPE_CHECKING:
    from tilec.runtime.program import Cubin


@dataclass(frozen=True)
class Subject:
    """`code`: by the plan's name of a kernel, texts of its machine code by their kind ("PTX", "SASS"); `missing`: why there are
    none. `measured`: microseconds by kernel name, and those of the whole program under its own. `registers`: of a thread of each
    compiled kernel."""

    specialised: Specialised
    lowered: Lowered
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    missing: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)
    registers: Mapping[str, int] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        assert self.lowered.plan is not None, "a page shows all stages"
        return self.lowered.plan


def compiled_subject(
    specialised: Specialised, lowered: Lowered, measured: Mapping[str, float] | None = None, compile: bool = True
) -> Subject:
    """The subject with the machine code of a GPU's kernels, which are compiled unless the cache has them. Where the compiler is not
    installed, the page says so. Raises InternalError for a kernel that does not compile."""
    subject = Subject(specialised, lowered, measured=measured or {})
    plan, emitted = subject.plan, lowered.emitted
    if plan.target.kind != "cuda" or emitted is None or not compile:
        return subject
    from tilec.core.diagnostics import InternalError
    from tilec.runtime.cuda.compile import CompileError, ResourceError
    from tilec.runtime.cuda.cubins import program_cubins
    from tilec.runtime.cuda.toolkit import NoCompiler

    try:
        cubins = program_cubins(emitted, plan.target.chip, plan.registers)
    except NoCompiler as error:
        return Subject(specialised, lowered, missing=f"There is no machine code: {error}.", measured=subject.measured)
    except (CompileError, ResourceError) as error:
        raise InternalError(str(error), "emit", lowered.texts["map"]) from error
    code, missing = _texts(emitted, cubins)
    registers = {name: cubins[k.name].registers for name, k in emitted.launched.items()}
    return Subject(specialised, lowered, code, missing, subject.measured, registers)


def _texts(emitted: Emitted, cubins: Mapping[str, Cubin]) -> tuple[dict[str, dict[str, str]], str]:
    """The machine code of each launch's kernel, and why a form of it is missing."""
    from tilec.runtime.cuda.disassemble import sass

    found: dict[str, dict[str, str]] = {}
    instructions = {name: sass(cubin.image) for name, cubin in cubins.items()}
    for name, kernel in emitted.launched.items():
        found[name] = {"PTX": cubins[kernel.name].ptx}
        if (text := instructions[kernel.name]) is not None:
            found[name]["SASS"] = text
    lacking = None in instructions.values()
    return found, "SASS is shown where `nvdisasm` of the CUDA toolkit is on the path." if lacking else ""

"""One drawn case, from choices to a verdict: what every process of a hunt does."""

from __future__ import annotations

import re
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from fuzz import by_class
from fuzz.by_class import check_sized
from fuzz.choices import Choices
from fuzz.compare import WAYS, Verdict, check, specialised
from fuzz.counts import Counts
from fuzz.edited_programs import PROGRAMS
from fuzz.edits import check_edit, drawn_edit, own
from fuzz.files import AGAIN, SORTS
from fuzz.matrix import MACHINES, check_matrix, drawn_matrix_case, machine
from fuzz.programs import Case, drawn_case
from fuzz.schedules import TARGETS, drawn_schedule
from fuzz.sized import Sized, drawn_sized
from fuzz.text import limited
from tilec.core.diagnostics import CallError
from tilec.dsl.specialise import Specialised
from tilec.runtime.cuda.driver import KernelFault
from tilec.semantics.inputs import npz

SMALL = [2, 3, 1, 4, 5, 0, 8]
"""Sizes for what runs in Python alone."""
EVERY = (*WAYS, *by_class.WAYS, "edits", "matrix", *SORTS)
SPOILING = (KernelFault,)
"""Errors after which a process's GPU does nothing more."""
SCHEDULED = 15
"""Percent of programs that have a schedule."""
MULTIPLIED = {"cpu": 10, "gpu": 30, "matrix": 100}
"""Percent of programs that matrix units multiply."""


@dataclass
class Drawn:
    """What a row of choices makes: a program with its inputs and perhaps a schedule, or another text."""

    way: str
    case: Case | None = None
    schedule: str | None = None
    text: str = ""
    special: Specialised | None = None
    """The program, where drawing a schedule took it."""
    edited: str = ""
    """The name of the program in `fuzz.edits` whose schedule was edited."""
    unit: str = ""
    """The matrix instruction that the program is compiled for, where its kernels are interpreted."""
    sized: Sized | None = None
    """A program whose sizes vary."""


def draw(way: str, choices: Choices, counts: Counts) -> Drawn:
    """A case for a way. Raises what planning a drawn schedule raises."""
    counts.tried += 1
    if way in SORTS:
        return Drawn(way, text=SORTS[way][0](choices))
    if way == "edits":
        name, schedule = drawn_edit(choices)
        counts.scheduled += 1
        return Drawn(way, own(name).case, schedule, edited=name)
    if way in by_class.WAYS:
        sized = drawn_sized(choices, small=way in ("sizes-stages", "sizes-emulator"))
        return told(Drawn(way, sized.at(sized.calls[0]), sized=sized), counts)
    if choices.chance(MULTIPLIED.get(way, 0)):
        case = drawn_matrix_case(choices, large=way == "gpu")
    else:
        case = drawn_case(choices, **({} if way in ("cpu", "gpu") else {"sizes": SMALL}))
    made = told(Drawn(way, case, unit=choices.pick(*MACHINES) if way == "matrix" else ""), counts)
    if way in TARGETS and choices.chance(SCHEDULED):
        with suppress(CallError):
            made.special = specialised(case)
            made.schedule = drawn_schedule(choices, made.special, TARGETS[way])
            counts.scheduled += 1
        counts.refused += made.schedule is None
    return made


def told(drawn: Drawn, counts: Counts) -> Drawn:
    """The drawn program, after its parts are counted."""
    assert drawn.case is not None
    counts.statements += drawn.case.text.count(" = ")
    counts.constructs.update(constructs(drawn.case.text))
    return drawn


def run(drawn: Drawn, counts: Counts) -> None:
    """Raises what is wrong."""
    if drawn.case is None:
        with limited():
            counts.refused += bool(SORTS[drawn.way][1](drawn.text))
        return
    if drawn.sized:
        verdict, refused = check_sized(drawn.sized, drawn.way)
        counts.reasons.update(refused)
        judged(verdict, counts)
        return
    if drawn.edited:
        verdict = check_edit(drawn.edited, drawn.schedule or "")
        counts.refused += verdict is None
        judged(verdict or Verdict(), counts)
        return
    if drawn.unit:
        judged(check_matrix(drawn.case, drawn.unit), counts)
        return
    judged(check(drawn.case, drawn.way, drawn.schedule), counts)


def judged(verdict: Verdict, counts: Counts) -> None:
    counts.compared += verdict.compared
    counts.unbounded += verdict.unbounded


WORDS = re.compile(
    r"\b(sum|prod|max|min|any|all|mean|argmin|argmax|logsumexp|cum\w+|softmax|log_softmax|pad|rand|exp|log|sin|def|op g|"
    r"using \w+|in f64|clamp|round|floor|"
    r"trunc|sign|fmod|copysign|atan2|a?sinh?|a?cosh?|a?tanh?|erfc|"
    r"u?i\d+|b?f\d+\w*|bool|nan|inf)\b|\*\*|//|%|[&|^~]|<<|>>|(?<= )/(?= )| if |-f?\d"
)
OPERATORS = {"**": "power", "//": "floor division", "%": "remainder", "/": "division", "if": "conditional"}
OPERATORS |= dict.fromkeys(("&", "|", "^", "~", "<<", ">>"), "bits")


def constructs(text: str) -> set[str]:
    """What a program contains, as the language names it."""
    found = {m[0].strip() for m in WORDS.finditer(text)}
    gather = {"gather"} if re.search(r"\[[^\]]*\b[nxy]\d+\[", text) else set()
    return gather | {OPERATORS.get(w, "negative number" if w.startswith("-") else w) for w in found}


def kind_of(error: BaseException) -> str:
    """What failures of one defect have in common: the error's type, the place that raised it, its words."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
        frames += traceback.extract_tb(cause.__traceback__)
    words = re.sub(r"[\d.]+|`[^`]*`|\[.*?\]|\b[xyn]\d+\b|e[+-]\d+|0x\w+", "", str(cause).partition("\n")[0])
    place = frames[-1].name if frames and "<kernels>" not in frames[-1].filename else "kernel"
    return f"{type(cause).__name__} in {place}: {words.strip()[-80:]}"


BATCHES = ("cpu", "sizes-cpu")
"""Ways whose programs are compiled several at once."""


def write(drawn: Drawn, folder: Path) -> str:
    """Writes a case to a folder, in place of what it held; returns the command that runs it again."""
    for path in (folder / "program.tile", folder / "program.sched.toml", *folder.glob("inputs*.npz")):
        path.unlink(missing_ok=True)
    if drawn.case is None:
        name, command = AGAIN[drawn.way]
        (folder / name).write_text(drawn.text, errors="surrogatepass")
        return command.format(folder / name)
    case, path = drawn.case, folder / "program.tile"
    path.write_text(case.text)
    if drawn.sized is not None:
        path.write_text("".join(f"// {line}\n" for line in drawn.sized.called) + case.text)
        for number, chosen in enumerate(drawn.sized.calls):
            (folder / f"inputs-{number}.npz").write_bytes(npz(drawn.sized.inputs(chosen)))
        return f"PYTHONPATH=tests python -m fuzz --target {drawn.way} --choices {folder / 'choices.json'}"
    if case.inputs:
        (folder / "inputs.npz").write_bytes(npz(case.inputs))
    if drawn.schedule:
        (folder / "program.sched.toml").write_text(drawn.schedule)
    given = f" --input {folder / 'inputs.npz'}" if case.inputs else ""
    if drawn.edited or drawn.unit:
        target = PROGRAMS[drawn.edited].machine if drawn.edited else machine(drawn.unit)
        (folder / "target.toml").write_text(tomlkit.dumps(target.to_dict()))
        sizes = " ".join(f"-D {name}={value}" for name, value in case.sizes.items())
        return f"tilec verify {path} {sizes} --target {folder / 'target.toml'}"
    sizes = "".join(f" -D {name}={value}" for name, value in case.sizes.items())
    target = " --target cuda" if drawn.way in ("gpu", "emulator") else ""
    op = f" --op {case.op}" if case.op else ""
    return f"tilec run {path}{op}{sizes}{given} --check{target}"

"""The generated parts of README.md and docs/: text that follows from code or measurements, written between markers; and schemas.

    <!-- generated: stages -->
    ...
    <!-- end -->

`python -m benchmarks docs` rewrites the sections, and the grammar of editors (`textmate.py`); tests/repository/test_docs.py fails
where a section is not current.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

from benchmarks import hunts, result_tables, schemas
from benchmarks.files import listing
from benchmarks.report import table

ROOT = Path(__file__).parents[1]
PAGES = "language architecture cli json numerics performance pytorch reliability targets varying_sizes"
FILES = ["README.md", *(f"docs/{n}.md" for n in PAGES.split())]
SECTION = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write() -> int:
    """Rewrites every section of every file, and says which files changed."""
    for name, text, current in pages():
        if text != current:
            (ROOT / name).parent.mkdir(exist_ok=True)
            (ROOT / name).write_text(current, encoding="utf-8")
            print(f"rewrote {name}")
    from benchmarks import plots, textmate

    if textmate.write():
        print(f"rewrote {textmate.PATH.relative_to(ROOT)}")
    for path in plots.write(result_tables.newest):
        print(f"drew {path.relative_to(ROOT)}")
    return 0


def pages() -> Iterable[tuple[str, str, str]]:
    """Each file's name, its text, and the text that it should have."""
    for name in FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        yield name, text, SECTION.sub(lambda found: found[1] + GENERATORS[found[2]]().strip() + "\n" + found[3], text)
    yield from schemas.stale()


# ---- what the code says ----------------------------------------------------------------------------------------------


def stages() -> str:
    from tilec.passes import NAMES
    from tilec.passes import stages as of
    from tilec.plan.planner import make_plan as plan

    listed = {s.name: s for s in of(plan)}
    assert ("build", *listed) == NAMES
    rows = [["`build`", "the syntax tree becomes MLIR: `linalg` on tensors, with locations", "`dsl/build.py`"]]
    for stage in listed.values():
        steps = [s if isinstance(s, str) else f"`{s.__module__.rpartition('.')[2]}.{s.__name__}`" for s in stage.steps]
        rows.append([f"`{stage.name}`", stage.summary, ", ".join(steps)])
    rows.append(["`emit`", "prints Numba kernels and the order of their launches", "`runtime/emit/printer.py`"])
    return table(["stage", "what it does", "steps"], rows)


def attributes() -> str:
    from tilec.kernels.attributes import PREFIX, TABLE

    rows = []
    for a in TABLE:
        places = " or ".join(f"`{n}`" if "." in n else n for n in a.on)
        rows.append([f"`{PREFIX}{a.name}`", places, a.type.text, f"`{a.first}`", f"`{a.last}`", a.meaning])
    return table(["attribute", "on", "type", "from", "until", "meaning"], rows)


def functions() -> str:
    from tilec.core.functions import FUNCTIONS, POWER

    rows = [
        [
            f"`{f.name}`",
            str(f.arity),
            *map(result_tables.ulp_text, (*f.ulp, *f.cuda_ulp)),
            f.expansion and f"`{f.expansion}`",
        ]
        for f in (*FUNCTIONS.values(), POWER)
    ]
    columns = ["CPU, f32", "CPU, f64", "CUDA, f32", "CUDA, f64"]
    return table(["function", "arguments", *columns, "computed as"], rows, (2, 3, 4, 5))


def types() -> str:
    from tilec.core.dtypes import DTYPES, compute_type
    from tilec.dsl.check_types import accumulator_of

    rows = [
        [
            f"`{t}`",
            f"{t.bytes}",
            f"`{compute_type(t)}`",
            f"`{accumulator_of(t)}`",
            f"2^-{t.mantissa}" if t.mantissa else "",
        ]
        for t in DTYPES.values()
    ]
    return table(["type", "bytes", "computed in", "sums accumulate in", "unit roundoff"], rows, (1,))


def library() -> str:
    from tilec.dsl import std

    text = (Path(std.__file__).parent / "std.tile").read_text(encoding="utf-8")
    names = re.findall(r"^def (\w+(?:\[\w+\])?)\(([^)]*)\)", text, re.MULTILINE)
    return ", ".join(f"`{name}({arguments})`" for name, arguments in names) + "."


def reductions() -> str:
    from tilec.core.dtypes import F32
    from tilec.core.reductions import REDUCTIONS, SCANS

    def nothing(r) -> str:
        if r.is_arg:
            return "an error"
        value = r.identity(F32) if r.name not in ("any", "all") else r.name == "all"
        return str(value).lower() if isinstance(value, bool) else f"{value:g}"

    rows = [
        [f"`{r.name}`", nothing(r), f"`cum{r.name}`" if f"cum{r.name}" in SCANS else ""] for r in REDUCTIONS.values()
    ]
    return table(["reduction", "of nothing", "scan"], [*rows, ["`mean`", "nan", ""], ["`logsumexp`", "-inf", ""]])


def hunted() -> str:
    return f"{table(hunts.HEADINGS, hunts.rows(), hunts.COUNTS)}\n\nThe compilers below tilec were {hunts.compilers()}."


def kernel_families() -> str:
    """The kernel families with their options in schedule files. An option of several families stands at the first of them."""
    from tilec.kernels import FAMILIES

    parts, reported = [], set()
    for name, family in FAMILIES.items():
        rows = []
        for field in fields(family):
            home = next(c for c in family.__mro__ if field.name in inspect.get_annotations(c))
            if not field.metadata["fixed"] and home not in reported:
                rows.append([f"`{field.name}`", field.metadata["meaning"]])
        reported |= set(family.__mro__)
        summary = f"`{name}` ({family.backend}): {' '.join((family.__doc__ or '').split())}"
        parts.append(f"{summary}\n\n{table(['option', 'meaning'], rows)}" if rows else summary)
    return "\n\n".join(parts)


def fitted() -> str:
    """The numbers of target files that were fitted to measurements, by group, with their values, evidence, and what they decide."""
    from benchmarks.sensitivity import evidence
    from tilec.core.fitted import GROUPS
    from tilec.core.target import built_in

    parts, decided, counts = [], evidence(), Counter[str]()
    for name, group in GROUPS.items():
        values, rows = built_in("cpu" if group.kind == "cpu" else "h200").fit(group), []
        for f in (f for f in fields(group) if f.metadata):
            kind, text = decided[f"{name}.{f.name}"]
            counts[kind] += 1
            rows.append([f"`{f.name}`", f"{getattr(values, f.name):g}", f.metadata["meaning"], text])
        title = f"`[fitted.{name}]` ({group.kind}): {' '.join((group.__doc__ or '').split())}"
        reported = f"Fitted to: {' '.join(values.fitted_to.split())}."
        parts.append(f"{title}\n\n{table(['number', 'value', 'meaning', 'changes the plan of'], rows, (1,))}\n\n{reported}")
    what = {
        "moved": "change plans when they are moved by 30 %", "without": "change plans only when their term goes",
        "measured": "are quantities that were measured, and no fits", "reported": "change predicted times alone",
        "new": "have not been moved yet",
    }  # fmt: skip
    counted = " ".join(f"{counts[kind]} {text}." for kind, text in what.items() if counts[kind])
    return "\n\n".join([f"There are {counts.total()} numbers. {counted}", *parts])


GENERATORS: dict[str, Callable[[], str]] = {
    "headlines": result_tables.headlines,
    "cpu results": lambda: result_tables.results("cpu"),
    "gpu results": lambda: result_tables.results("gpu"),
    "gpu forms": result_tables.forms,
    "gpu forms missed": result_tables.forms_missed,
    "compile results": result_tables.compile_results,
    "memory run": result_tables.memory_run,
    "memory kinds": result_tables.memory_kinds,
    "memory missed": result_tables.memory_missed,
    "audit": result_tables.audits,
    "matrix audit": result_tables.matrix_audit,
    "edits": result_tables.edits,
    "kernelbench": result_tables.kernelbench,
    "models": result_tables.models,
    "models cold": result_tables.models_cold,
    "calls": result_tables.calls,
    "sizes": result_tables.sizes,
    "stages": stages,
    "attributes": attributes,
    "functions": functions,
    "errors measured": result_tables.numerics,
    "types": types,
    "library": library,
    "reductions": reductions,
    "hunts": hunted,
    "kernels": kernel_families,
    "files": listing,
    "fitted": fitted,
    "records": schemas.tables,
}

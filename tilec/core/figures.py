"""Figures of a target by their keys in its file: a target with other ones."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilec.core.diagnostics import CallError
from tilec.core.target import Target, from_dict

UNITS = ("gbs", "bytes", "us", "ns", "ghz")
MEMORY = "dram"  # the table that a key of several levels of memory is taken from

Path = tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A figure with its values. `key`: as in the target file, `dram.bandwidth_gbs`."""

    key: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.key} {self.before:g} -> {self.after:g}"


def has_figure(target: Target, name: str) -> bool:
    """Whether `changed` finds the figure."""
    return bool(_named(target, name))


def figure_names(target: Target) -> list[str]:
    """The keys of all figures, with and without their tables."""
    keys = [".".join(path) for path in _figures(target)]
    return list(dict.fromkeys([*keys, *(key.rpartition(".")[2] for key in keys)]))


def changed(target: Target, name: str, change: Callable[[float], float]) -> tuple[Target, list[Change]]:
    """The target with other values of a figure, or of all rates of a table such as `tensor`.

    `name`: the key in the target file. Its unit and its table may be left out; of several levels of memory, DRAM is meant. Raises
    CallError where there is no such figure, or where a file could not have the value."""
    known = _figures(target)
    paths = _named(target, name)
    if not paths:
        close = difflib.get_close_matches(name, figure_names(target), 1)
        hint = f"did you mean `{close[0]}`?" if close else None
        raise CallError(f"the target {target.name} has no figure `{name}`", hint=hint)
    tables = {path[:-1] for path in paths}
    if len(tables) > 1 and not all(path[0] == paths[0][0] for path in paths):
        raise CallError(f"`{name}` is a figure of several tables", hint="write " + " or ".join(f"`{'.'.join(p)}`" for p in paths))
    values = _table(target)
    changes = []
    for path in paths:
        *inside, key = path
        table = values
        for part in inside:
            found = table[part]
            assert isinstance(found, dict)
            table = found
        before = known[path]
        after = change(before)
        table[key] = round(after) if isinstance(before, int) else float(after)
        changes.append(Change(".".join(path), before, after))
    made = from_dict(values, f"`{name}`")
    return replace(made, fitted=target.fitted, description=target.description, note=target.note), changes


def _table(target: Target) -> dict[str, object]:
    """As its file has it, without the numbers that were fitted."""
    found: dict[str, object] = json.loads(json.dumps(target.to_dict()))
    return {key: value for key, value in found.items() if key != "fitted"}


def _figures(target: Target) -> dict[Path, float]:
    return dict(_numbers(_table(target), ()))


def _numbers(table: Mapping[str, object], at: Path) -> Iterator[tuple[Path, float]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _numbers(value, (*at, key))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield (*at, key), value


def _named(target: Target, name: str) -> list[Path]:
    """The figures of a name: one with this key, those of a table of rates, or one whose key ends so."""
    known = _figures(target)
    if isinstance(getattr(target, name.partition(".")[0], None), dict) and (
        inside := [path for path in known if ".".join(path).startswith(f"{name}.")]
    ):
        return inside
    names = {name, *(f"{name}_{unit}" for unit in UNITS)}
    whole = [path for path in known if ".".join(path) in names]
    ends = whole or [path for path in known if any(".".join(path).endswith(f".{n}") for n in names)]
    return [path for path in ends if path[0] == MEMORY] or ends

"""The options of `torch.compile(model, backend="tilec", mode=..., options=...)`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tilec.core.diagnostics import CallError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Options:
    """`target`: what to compile for, as for `tilec.compile`; by default the device of the tensors. `schedule`: a folder of
    programs with schedule files beside them; a partition whose text is one of these obeys its schedule. `strict`: whether an
    operation that PyTorch runs is an error. `background`: whether PyTorch runs a partition until it is compiled.
    `fallback_random`: whether random numbers are those that PyTorch's own kernels draw. `mode`: one of MODES."""

    target: str | None = None
    schedule: Path | None = None
    strict: bool = False
    background: bool = False
    fallback_random: bool = False
    mode: str = "default"

    @property
    def replays(self) -> bool:
        """Whether CUDA graphs replay the kernels of a graph."""
        return self.mode in ("reduce-overhead", "max-autotune")

    @property
    def measures(self) -> bool:
        """Whether the plans of programs are the fastest of some that are measured."""
        return self.mode in ("max-autotune", "max-autotune-no-cudagraphs")


def read(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """Raises CallError for a mode or an option that there is not, with those that there are."""
    given = dict(options or {})
    known = [f.name for f in fields(Options)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{close[0]}'?" if close else None
            raise CallError(f"the back end tilec has no option '{name}'; it has {', '.join(known)}", hint=hint)
    if mode is not None and given.get("mode") not in (None, mode):
        raise CallError(f"mode={mode!r} and options={{'mode': {given['mode']!r}}} differ")
    given["mode"] = mode or given.get("mode") or "default"
    if given["mode"] not in MODES:
        raise CallError(f"the back end tilec has no mode '{given['mode']}'; it has {', '.join(MODES)}")
    for name in ("strict", "background", "fallback_random"):
        if not isinstance(given.get(name, False), bool):
            raise CallError(f"the option '{name}' must be True or False, not {given[name]!r}")
    if (target := given.get("target")) is not None:
        from tilec.core.targets import load

        load(target)  # raises its mistakes
    if (folder := given.get("schedule")) is not None:
        given["schedule"] = Path(folder)
        if not given["schedule"].is_dir():
            raise CallError(f"the option 'schedule' must be a folder, and {folder} is none")
    return Options(**given)

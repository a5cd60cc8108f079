"""Targets by name: this host, the GPU here, built-in models and chips, and files of the user's."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import replace
from pathlib import Path

from tilec.core.diagnostics import CallError
from tilec.core.host import estimate
from tilec.core.target import CHIPS, Target, built_in, models, read

DEFAULT_CUDA = "h200"


def names() -> tuple[str, ...]:
    """Every name that `load` knows."""
    return ("cpu", "cuda", *models(), *sorted(CHIPS))


def load(name: str | Path) -> Target:
    """The target called `name`: "cpu" (this host), "cuda" (the GPU here), a model, a chip, or a TOML file."""
    text = str(name)
    if text.endswith(".toml"):
        return read(Path(text))
    match text.lower():
        case "cpu":
            return _host()
        case "cuda":
            return _device() or replace(
                built_in(DEFAULT_CUDA),
                note=f"no CUDA device found: compiling for {DEFAULT_CUDA}, without running",
            )
        case chip if chip in CHIPS:
            return _for_chip(chip)
        case model if model in models():
            return built_in(model)
    guess = next((f"did you mean '{n}'? " for n in difflib.get_close_matches(text.lower(), names(), 1)), "")
    if named := re.fullmatch(r"sm_(\d+)[a-z]?", text.lower()):  # near names are other chips
        guess = "sm_80 is the oldest chip that tilec compiles for; " if int(named[1]) < 80 else ""
    raise CallError(f"unknown target '{text}'", hint=f"{guess}known: {', '.join(names())}, or the path of a .toml file")


def kind_of(name: str | Path) -> str:
    """"cpu" or "cuda": the kind of the target that `load` would return, without starting the driver, which takes 0.2 s."""
    text = str(name).lower()
    return "cuda" if text != "cpu" and text in names() else load(name).kind


def _for_chip(chip: str) -> Target:
    """The card that stands for `chip`. Without its "a" it lacks wgmma and tcgen05, not being portable."""
    return _retargeted(built_in(CHIPS[chip]), chip, name=chip)


def _retargeted(target: Target, chip: str, name: str) -> Target:
    """`target` for another chip, with the figures that hold for both chips."""
    if target.chip == chip:
        return target
    special = {"wgmma", "tcgen05"}
    tensor = {t: {i: r for i, r in rates.items() if i not in special} for t, rates in target.tensor.items()}
    return replace(
        target,
        name=name,
        chip=chip,
        features=tuple(f for f in target.features if f not in special),
        tensor={t: rates for t, rates in tensor.items() if rates},
    )


def calibrated_path() -> Path:
    """Where `calibrate` keeps the measured host."""
    import platformdirs

    return Path(platformdirs.user_config_dir("tilec")) / "cpu.toml"


def _host() -> Target:
    """The calibrated host if there is one that still fits (same cores), else the system's description."""
    host, path = estimate(), calibrated_path()
    if os.access(path, os.R_OK):
        measured = read(path)
        if (measured.units, measured.chip) == (host.units, host.chip):
            return measured
        return replace(host, note=f"{path} was measured with other cores: run `tilec doctor --calibrate` again")
    return host


# CU_DEVICE_ATTRIBUTE_..., by the field of Target or Multiprocessor that it fills
_ATTRIBUTES = {
    "units": "MULTIPROCESSOR_COUNT", "major": "COMPUTE_CAPABILITY_MAJOR", "minor": "COMPUTE_CAPABILITY_MINOR",
    "l2_bytes": "L2_CACHE_SIZE", "shared_bytes": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "shared_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "registers": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "threads": "MAX_THREADS_PER_MULTIPROCESSOR", "threads_per_block": "MAX_THREADS_PER_BLOCK",
    "blocks": "MAX_BLOCKS_PER_MULTIPROCESSOR", "memory_khz": "MEMORY_CLOCK_RATE", "bus_bits": "GLOBAL_MEMORY_BUS_WIDTH",
}  # fmt: skip


def _device() -> Target | None:
    """The first GPU here: its file, or the nearest file, adjusted to the driver's figures."""
    if (found := _query_driver()) is None:
        return None
    name, a = found
    squeezed = name.lower().replace(" ", "")
    base = next((built_in(n) for n in models() if re.search(rf"{n}(?!\d)", squeezed)), None)
    if base and base.units == a["units"]:
        return base
    chips = sorted(CHIPS, key=lambda c: abs(int(c[3:].rstrip("a")) - 10 * a["major"] - a["minor"]))
    return _adjusted(base or built_in(CHIPS[chips[0]]), name, a)


def _adjusted(base: Target, name: str, a: dict[str, int]) -> Target:
    """`base` with the driver's figures; its peaks in proportion to the SMs."""
    share = a["units"] / base.units
    measured_gbs = 2e-6 * a["memory_khz"] * a["bus_bits"] / 8  # two transfers a clock; some drivers say 0
    chip = f"sm_{a['major']}{a['minor']}"
    base = base if base.chip.rstrip("a") == chip else _retargeted(base, chip, base.name)
    assert base.sm is not None
    sm = {f: a[f] for f in ("shared_bytes", "shared_per_block", "registers", "threads", "threads_per_block", "blocks")}
    return replace(
        base,
        name=name.lower().replace(" ", "-"),
        description=name,
        units=a["units"],
        sm=replace(base.sm, **sm, groups=tuple(max(1, round(share * g)) for g in base.sm.groups)),
        dram=replace(base.dram, bandwidth_gbs=measured_gbs or base.dram.bandwidth_gbs * min(1.0, share)),
        l2=replace(base.l2, bytes=a["l2_bytes"], bandwidth_gbs=base.l2.bandwidth_gbs * min(1.0, share)),
        fma={t: r * share for t, r in base.fma.items()},
        tensor={t: {i: r * share for i, r in rates.items()} for t, rates in base.tensor.items()},
        fitted=base.fitted.inherited(base.name),
        note=f"{name} has no file of its own: estimated from {base.name} and the driver's figures",
    )


def _query_driver() -> tuple[str, dict[str, int]] | None:
    """Name and attributes of device 0; None where there is no driver, or no device that it lets this process use."""
    from cuda.bindings import driver

    try:
        found = [driver.cuInit(0), driver.cuDeviceGetName(128, 0)]
    except RuntimeError:  # libcuda is not found
        return None
    kinds = driver.CUdevice_attribute
    found += [driver.cuDeviceGetAttribute(getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{n}"), 0) for n in _ATTRIBUTES.values()]
    if any(code for code, *_ in found):
        return None
    (_, name), *values = found[1:]
    return name.partition(b"\0")[0].decode().removeprefix("NVIDIA "), dict(zip(_ATTRIBUTES, (value for _, value in values)))

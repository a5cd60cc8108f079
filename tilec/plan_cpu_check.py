"""Whether what a schedule file makes of a CPU kernel's options can be carried out: the planner's own always can."""

from __future__ import annotations

from tilec.plan import KernelPlan

SIDES = (2, 4, 8, 16)  # of a tile that is turned in registers: `load_tile_2` and so on in `runtime/cpu_tile.py`
MOST_SUMS = 64  # vectors of sums: each is written out in a kernel


def refuse(kernel: KernelPlan, planned: KernelPlan) -> tuple[tuple[str, ...], str] | None:
    """Which key of the kernel's table is wrong and why, for a kernel that was `planned` otherwise; None where none is."""
    problem = _refuse_panels(kernel, planned) if "registers" in planned.options else _refuse_turn(kernel, planned)
    return problem and (("options", problem[0]), problem[1])


def _refuse_turn(kernel: KernelPlan, planned: KernelPlan) -> tuple[str, str] | None:
    options = kernel.options
    if "turn" not in options:
        return None
    if options["lanes"] not in SIDES:
        return "lanes", f"`lanes` is one of {_listed(SIDES)}, not {options['lanes']}: the side of a tile that is turned"
    if not set(options["turn"]) <= set(planned.options["turn"]):
        return "turn", f"`turn` can be {list(planned.options['turn'])}, or some of these dimensions"
    return None


def _refuse_panels(kernel: KernelPlan, planned: KernelPlan) -> tuple[str, str] | None:
    options, lanes = kernel.options, kernel.options["lanes"]
    for name in ("rows", "columns", "inner", "along"):
        if options[name] != planned.options[name]:
            return name, f"`{name}` follows from the program: {list(planned.options[name])}"
    if lanes not in SIDES:
        return "lanes", f"`lanes` is one of {_listed(SIDES)}, not {lanes}: the elements of a vector"
    registers = options["registers"]
    if len(registers) != 2 or min(registers) < 1 or registers[1] % lanes:
        return "registers", f"`registers` is rows and columns, the columns a multiple of `lanes`, {lanes}"
    if registers[0] * registers[1] // lanes > MOST_SUMS:
        return "registers", f"`registers` can hold at most {MOST_SUMS} vectors of sums"
    if len(options["depths"]) != len(options["inner"]) or min(options["depths"], default=1) < 1:
        return "depths", f"`depths` is a number of at least 1 for each of `inner`, {len(options['inner'])} in all"
    return None


def _listed(numbers: tuple[int, ...]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}"

"""The figures of docs/performance.md, from the newest results."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path

from benchmarks import audit_report, memory_report

FOLDER = Path(__file__).parents[1] / "docs" / "images"
LINES = {  # who: colour, marker, label
    "tilec": ("#c1272d", "o", "tilec"),
    "copy": ("#555555", "", "copy of the same bytes"),
    "torch.compile": ("#0072b2", "s", "torch.compile"),
    "triton": ("#009e73", "^", "plain Triton kernel"),
    "torch": ("#e69f00", "D", "PyTorch, eager"),
}
ODD = "tilec, rows of 1000, 4099, 50257"
KINDS = {"chain": "#0072b2", "transpose": "#009e73", "reduction": "#e69f00", "rows": "#c1272d", "other": "#7b3294",
         "small": "#888888"}  # fmt: skip
NAMES = {"chain": "chains", "transpose": "transposes", "reduction": "reductions", "rows": "rows", "other": "others",
         "small": "small"}  # fmt: skip

MATRIX_KINDS = {"products": "#0072b2", "batched products": "#56b4e9", "products with an epilogue": "#009e73", "few rows": "#888888",
                "f32 products": "#e69f00", "tf32 products": "#f0e442", "8-bit products": "#7b3294", "convolutions": "#8c510a",
                "attention": "#c1272d", "relatives of attention": "#ff7f7f", "reduced products": "#333333"}  # fmt: skip


def figure(columns: int, rows: int, size: tuple[float, float], **more):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#e5e5e5", "axes.axisbelow": True, "legend.frameon": False, "svg.hashsalt": "tilec",
    })  # fmt: skip
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **more)


def save(made, name: str) -> Path:
    from matplotlib import pyplot

    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.png"
    made.savefig(path, dpi=110, metadata={"Software": None})  # the same bytes for the same results
    pyplot.close(made)
    return path


def speed(row: dict, us: float) -> float:
    """TB/s of what has to be moved."""
    return row["bytes"] / us / 1e6


# ---- rows ------------------------------------------------------------------------------------------------------------


def row_lengths(rows: list[dict], dtype: str) -> Path | None:
    """A panel a program: speed over the length of a row."""
    found: dict[str, list[dict]] = {}
    for row in memory_report.timed(rows):
        if row["kind"] == "rows" and row["dtype"] == dtype and row["length"]:
            found.setdefault(row["program"], []).append(row)
    found = {program: sorted(r, key=lambda r: r["length"]) for program, r in found.items() if len(r) > 3}
    if not found:
        return None
    columns = 3
    made, axes = figure(columns, ceil(len(found) / columns), (10, 3.1 * ceil(len(found) / columns)), sharey=True)
    panels = list(axes.flat)
    for panel, (program, mine) in zip(panels, found.items()):
        even = [r for r in mine if r["length"] & (r["length"] - 1) == 0]
        for who, (colour, marker, label) in LINES.items():
            points = [(r["length"], speed(r, us)) for r in even if (us := _time(r, who))]
            if points:
                panel.plot(*zip(*points), color=colour, marker=marker, markersize=4, label=label, lw=2 if who == "tilec" else 1.3,
                           ls="--" if who == "copy" else "-", zorder=3 if who == "tilec" else 2)  # fmt: skip
        for r in mine:
            if r not in even:
                panel.plot(r["length"], speed(r, r["tilec_us"]), "o", color=LINES["tilec"][0], mfc="none", markersize=5,
                           label=ODD)  # fmt: skip
        panel.set_xscale("log", base=2)
        panel.set_xticks([r["length"] for r in even], [_length(r["length"]) for r in even])
        panel.minorticks_off()
        panel.set_title(program, fontsize=10)
        panel.set_ylim(0, 4.7)
    for panel in panels[len(found) :]:
        panel.axis("off")
    for line in axes:
        line[0].set_ylabel("TB/s")
    named = {label: handle for p in panels for handle, label in zip(*p.get_legend_handles_labels())}
    labels, handles = zip(*named.items())
    legend_at = panels[len(found)] if len(found) < len(panels) else made
    legend_at.legend(handles, labels, loc="center")
    made.suptitle(f"{dtype}, rows of 1024 to 262144 elements, 256 MiB read")
    return save(made, f"memory-rows-{dtype}")


def _time(row: dict, who: str) -> float | None:
    if who in ("tilec", "copy"):
        return row[f"{who}_us"] * (row["bytes"] / row["copy_bytes"] if who == "copy" else 1)
    return row["peers_us"].get(who)


def _length(n: int) -> str:
    return f"{n // 1024}K" if n >= 1024 else str(n)


# ---- all programs ----------------------------------------------------------------------------------------------------


def overview(rows: list[dict]) -> Path:
    """Each row's share of a copy's speed, by kind; beside it that of the best peer."""
    made, axes = figure(1, 1, (8, 3.4))
    panel = axes[0][0]
    kinds = [k for k in NAMES if any(r["kind"] == k for r in memory_report.timed(rows))]
    for at, kind in enumerate(kinds):
        mine = sorted((r for r in memory_report.timed(rows) if r["kind"] == kind), key=memory_report.of_copy)
        spread = [0.34 * n / max(1, len(mine) - 1) for n in range(len(mine))]
        ours = [memory_report.of_copy(r) for r in mine]
        peers = [memory_report.of_copy(r) / memory_report.over_best(r) for r in mine if r["peers_us"]]
        panel.plot([at - 0.38 + s for s in spread], ours, ".", color=LINES["tilec"][0], label="tilec" if not at else "")
        label = "the best peer of each row" if not at else ""
        panel.plot([at + 0.04 + s for s in spread[: len(peers)]], sorted(peers), ".", color="#0072b2", label=label)
        if wanted := memory_report.OF_COPY.get(kind):
            panel.plot([at - 0.42, at + 0.42], [wanted] * 2, color="#333333", lw=1, label="" if at else "wanted")
    panel.axhline(1, color="#555555", ls="--", lw=1, zorder=1)
    panel.text(-0.45, 1.02, "a copy of the same bytes", fontsize=8, color="#555555")
    panel.set_xticks(range(len(kinds)), [NAMES[k] for k in kinds])
    panel.set_ylim(0, 1.3)
    panel.grid(axis="x", visible=False)
    panel.set_ylabel("share of a copy's speed")
    panel.legend(loc="upper right", ncols=3)
    return save(made, "memory-overview")


def roofline(rows: list[dict], target) -> Path:
    """Multiply-adds, and special functions, a second over those a byte: two ceilings, one slope."""
    made, axes = figure(2, 1, (10, 3.9))
    units = (("fma.f32", "arithmetic operations"), ("special", "special functions"))
    for panel, (unit, name) in zip(axes[0], units):
        peak, rate = target.peak(unit) / 1e12, target.dram.rate(target.units) / 1e12
        found = [r for r in memory_report.timed(rows) if r.get("operations", {}).get(unit) and r["kind"] != "small"]
        ridge = peak / rate
        low = min((r["operations"][unit] / r["bytes"] for r in found), default=0.1) / 2
        high = max(4 * ridge, 2 * max((r["operations"][unit] / r["bytes"] for r in found), default=1))
        panel.plot([low, ridge, high], [low * rate, peak, peak], color="#333333", lw=1.5)
        middle = (low * ridge) ** 0.5
        panel.text(middle / 1.2, middle * rate * 1.2, f"{rate:.2f} TB/s", fontsize=8, color="#333333", ha="right")
        panel.text(high, peak * 1.12, f"{peak:.1f} Top/s", fontsize=8, color="#333333", ha="right")
        for kind, colour in KINDS.items():
            mine = [r for r in found if r["kind"] == kind]
            if mine:
                x = [r["operations"][unit] / r["bytes"] for r in mine]
                y = [r["operations"][unit] / r["tilec_us"] / 1e6 for r in mine]
                panel.plot(x, y, "o", markersize=4, alpha=0.75, color=colour, mec="none", label=NAMES[kind])
        panel.set_xscale("log")
        panel.set_yscale("log")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.set_ylim(low * rate / 2, 3 * peak)
        panel.set_xlabel(f"{name} a byte")
        panel.set_ylabel("10$^{12}$ a second")
        panel.set_title(name, fontsize=10)
    axes[0][0].legend(loc="lower right", markerscale=1.5)
    return save(made, "memory-roofline")


# ---- the cost model --------------------------------------------------------------------------------------------------


def audit(rows: list[dict], name: str) -> Path:
    """Predicted over measured times of the choices, and how near each choice is to the best plan measured."""
    found = audit_report.measured(rows)
    made, axes = figure(2, 1, (10, 3.9))
    left, right = axes[0]
    colours = {k: c for k, c in (KINDS | MATRIX_KINDS).items() if any(r["kind"] == k for r in found)}
    for kind, colour in colours.items():
        mine = [r for r in found if r["kind"] == kind]
        if mine:
            left.plot([r["own_us"] for r in mine], [r["predicted_us"] for r in mine], "o", markersize=4, alpha=0.75,
                      color=colour, mec="none", label=NAMES.get(kind, kind))  # fmt: skip
    ends = [min(r["own_us"] for r in found) / 1.3, max(r["own_us"] for r in found) * 1.3]
    left.plot(ends, ends, color="#333333", lw=1)
    near = audit_report.OFF
    left.fill_between(ends, [e * (1 - near) for e in ends], [e * (1 + near) for e in ends], color="#dddddd", zorder=0)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("measured, us")
    left.set_ylabel("predicted, us")
    left.set_title("the model's times (grey: within 20%)", fontsize=10)
    left.legend(loc="upper left", markerscale=1.5)
    shares = sorted(r["share"] for r in found)
    right.step([*shares, 1.0], [n / len(shares) for n in range(len(shares) + 1)], where="post", color=LINES["tilec"][0])
    least = audit_report.MATRIX_WORST if name == "matrix" else audit_report.WORST
    for wanted, label in ((audit_report.MEAN, "wanted on average"), (least, "wanted at worst")):
        right.axvline(wanted, color="#555555", ls="--", lw=1)
        right.text(wanted - 0.004, 0.97, label, rotation=90, fontsize=8, ha="right", va="top", color="#555555")
    right.set_xlim(min(0.75, shares[0] - 0.02), 1.005)
    right.set_ylim(0, 1)
    right.set_xlabel("best plan's measured time over the choice's")
    right.set_ylabel("share of points below")
    right.set_title("the model's choices", fontsize=10)
    return save(made, f"audit-{name}")


def write(newest: Callable[[str], tuple[Path, dict] | None]) -> list[Path]:
    """All figures that there are results for."""
    from tilec.core.targets import load

    made: list[Path | None] = []
    if found := newest("memory"):
        rows = found[1]["rows"]
        made += [*(row_lengths(rows, t) for t in ("bf16", "f32")), overview(rows), roofline(rows, load("h200"))]
    for kind in ("cuda", "cpu", "matrix"):
        if (found := newest(f"{kind}-audit")) and audit_report.measured(found[1]["rows"]):
            made.append(audit(found[1]["rows"], kind))
    return [path for path in made if path]

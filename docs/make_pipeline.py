"""Draws docs/images/pipeline.svg: the stages, what the IR holds after each, and where people can look in or step in."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

BOXES = [  # stage, what comes out, colour
    ("parse, check", "a checked\nsyntax tree", "#e8e0f4"),
    ("build", "linalg on tensors", "#dbe8f7"),
    ("simplify", "the same,\nsmaller", "#dbe8f7"),
    ("plan", "the same, with\ntilec.* attributes", "#fde6c8"),
    ("fuse", "a function\nper kernel", "#dbe8f7"),
    ("tile", "blocks:\nscf.forall", "#dbe8f7"),
    ("bufferize", "memref", "#dbe8f7"),
    ("stage", "SRAM, registers,\npacking", "#dbe8f7"),
    ("map", "loops, threads,\nvectors", "#dbe8f7"),
    ("emit", "Numba source,\nlaunch data", "#dff0dc"),
]
INK, QUIET = "#22303c", "#5b6b78"
WIDTH, HEIGHT, GAP, ROW = 1.62, 1.0, 0.42, 2.35


def position(n: int) -> tuple[float, float]:
    """Two rows of five, read left to right."""
    return (n % 5) * (WIDTH + GAP), -(n // 5) * ROW


def main() -> None:
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "tilec"
    plt.rcParams["font.family"] = "sans-serif"
    figure, axes = plt.subplots(figsize=(10.2, 4.9))
    axes.set_axis_off()
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    for n, (name, holds, colour) in enumerate(BOXES):
        x, y = position(n)
        axes.add_patch(
            FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.09", fc=colour, ec=INK, lw=1.1)
        )
        axes.text(x + WIDTH / 2, y + 0.77, name, ha="center", va="center", weight="bold", size=11, color=INK)
        axes.text(x + WIDTH / 2, y + 0.34, holds, ha="center", va="center", size=9, color=INK, linespacing=1.15)
        if n % 5:
            axes.annotate("", (x, y + HEIGHT / 2), (x - GAP, y + HEIGHT / 2), arrowprops=arrow)
    (last, _), (first, below) = position(4), position(5)
    middle = below + HEIGHT + (ROW - HEIGHT) / 2 - 0.33
    bend = [(last + WIDTH / 2, 0), (last + WIDTH / 2, middle), (first + WIDTH / 2, middle)]
    axes.plot(*zip(*bend), color=INK, lw=1.3)
    axes.annotate("", (first + WIDTH / 2, below + HEIGHT), (first + WIDTH / 2, middle), arrowprops=arrow)

    def note(n: int, text: str, up: bool) -> None:
        x, y = position(n)
        edge = y + HEIGHT if up else y
        tip = edge + (0.3 if up else -0.3)
        begin, end = (tip, edge) if up else (edge, tip)  # what is above goes in, what is below comes out
        axes.annotate(
            "", (x + WIDTH / 2, end), (x + WIDTH / 2, begin), arrowprops={**arrow, "color": QUIET, "lw": 1, "ls": "--"}
        )
        axes.text(
            x + WIDTH / 2,
            tip + (0.07 if up else -0.07),
            text,
            ha="center",
            va="bottom" if up else "top",
            size=9,
            color=QUIET,
        )

    note(0, "softmax.tile", True)
    note(3, "schedule file, target file:\nthe only place that weighs cost", True)
    note(9, "CPU: object file, blocks on all cores\nGPU: cubin, launched by the driver", False)
    axes.text(position(6)[0] + WIDTH + GAP / 2, position(5)[1] - 0.37,
              "MLIR, upstream dialects only, from build to map.\n"
              "Every stage's text is a dump that can be read back and run.",
              ha="center", va="top", size=9, color=QUIET)  # fmt: skip
    right = position(4)[0] + WIDTH
    axes.set_xlim(-0.15, right + 0.15)
    axes.set_ylim(below - 0.95, HEIGHT + 0.85)
    path = Path(__file__).parent / "images" / "pipeline.svg"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

"""The outcomes of `tilec verify`, by sets of sizes: printed as they come, or put into a record."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from tilec.cli.common import note, show
from tilec.cli.json_output import show_json
from tilec.cli.records import Skipped, Verified, VerifiedSizes, WrongStage
from tilec.semantics.verify import Verifier

RIGHT, NOTHING = 0, 1  # exit statuses
Outcome: TypeAlias = Literal["right", "wrong", "refused", "left out"]
TEXTS = {"right": "right: {}", "refused": "refused by the compiler: {}", "left out": "left out: {}"}


class Outcomes:
    """Those of an op. `json`: they are printed at the end, as one record."""

    def __init__(self, op: str, verifier: Verifier, json: bool):
        self.op, self.verifier, self.json = op, verifier, json
        self.found: list[VerifiedSizes] = []
        self.skipped: list[Skipped] = []
        self.of: str | None = None
        self._say(f"{op} for {verifier.target}", r"^\S+", "bold")

    def begin(self, of: str, at: str) -> None:
        """The sizes that follow are of a class, planned `at` some sizes."""
        self.of = of
        self._say(of + (f", planned at {at}:" if at else ":"))

    def skip(self, of: str, reason: str) -> None:
        """A class that has no program of its own."""
        self.skipped.append(Skipped(of, reason))
        self._say(f"{of}: compiled for each size: {reason}")

    def add(self, sizes: Mapping[str, int], outcome: Outcome, inputs: Sequence[str], reason: str | None = None) -> None:
        """`inputs`: the kinds that were tried. A set of sizes that is wrong is reported with its stage."""
        self.found.append(VerifiedSizes(dict(sizes), self.of, outcome, list(inputs), reason))
        if outcome in TEXTS:
            self._say(f"  {sizes_text(sizes):<24} {TEXTS[outcome].format(reason or ', '.join(inputs))}", "right:", "green")

    def note_unsupported(self) -> None:
        """Says which stages could not be interpreted."""
        for stage, why in self.verifier.unsupported.items():
            self.skipped.append(Skipped(stage, why))
            note(f"not checked: {stage}: {why}")

    def sizes_that_are(self, outcome: Outcome) -> list[dict[str, int]]:
        return [each.sizes for each in self.found if each.outcome == outcome]

    def right(self) -> int:
        self._show("right")
        return RIGHT

    def nothing(self, why: str) -> int:
        """Stages were not compared, or at trivial sizes alone."""
        self._show("nothing verified")
        note(why, "error")
        return NOTHING

    def wrong(self, stage: WrongStage) -> None:
        self._show("wrong", stage)

    def _show(self, verdict: Literal["right", "wrong", "nothing verified"], wrong: WrongStage | None = None) -> None:
        if self.json:
            target = self.verifier.target
            show_json(Verified(self.op, target.name, str(target), verdict, self.found, self.skipped, wrong))

    def _say(self, text: str, pattern: str = "", style: str = "") -> None:
        if not self.json:
            show(text, [(pattern, style)] if pattern else None)
            sys.stdout.flush()


def sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n}={v}" for n, v in sizes.items()) or "no sizes"

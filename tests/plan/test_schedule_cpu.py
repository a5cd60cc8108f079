"""Options of CPU kernels in a schedule file: those that can be are obeyed, others refused with the line and the reason."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fuzz.compare import check, specialised
from fuzz.programs import Case
from fuzz.schedules import planned

from tilec.core.diagnostics import CallError
from tilec.plan.schedule.write import write_schedule

RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=s).astype(np.float32) for s in ((40, 33), (33, 40)))
TRANSPOSED = Case("op f(x: f32[M, N], w: f32[N, M]) -> (y: f32[N, M]) { y[j, i] = x[i, j] + w[j, i] }",
              {"M": 40, "N": 33}, {"x": X, "w": W})  # fmt: skip
A, B = (RNG.normal(size=s).astype(np.float32) for s in ((192, 90), (90, 200)))  # in panels with AVX2, too
PANELS = Case("op f(a: f32[M, K], b: f32[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](a[i, k] * b[k, j]) }",
              {"M": 192, "N": 200, "K": 90}, {"a": A, "b": B})  # fmt: skip


def edited(case: Case, *lines: str) -> str:
    """The compiler's own schedule with other lines for some of its keys."""
    program = specialised(case)
    text = write_schedule(planned(program, "cpu", None), program)
    for line in lines:
        key = line.partition(" = ")[0]
        assert re.search(rf"^{key} = ", text, re.MULTILINE), key
        text = re.sub(rf"^{key} = .*$", line, text, flags=re.MULTILINE)
    return text.replace('instruction = "amx"', 'instruction = "fma"')  # on hosts that have it


@pytest.mark.parametrize("case, line, message", [
    (TRANSPOSED, "lanes = 1", "`lanes` (the side of a transposed square) must be 2, 4, 8 or 16, not 1"),
    (TRANSPOSED, "lanes = 32", "not 32"),
    (TRANSPOSED, "transposed = [1]", "`transposed` must be [0]"),
    (PANELS, "lanes = 3", "not 3: the f32 elements of a vector"),
    (PANELS, "register_tile = [2, 24]", "a multiple of `lanes` (16)"),
    (PANELS, "register_tile = [64, 64]", "at most 64 vectors"),
    (PANELS, "depths = [0]", "`depths` must have 1 numbers of at least 1"),
    (PANELS, "depths = [90]\nrows = [1]", "`rows` follows from the program, and must be [0]"),
])  # fmt: skip
def test_an_option_that_cannot_be_is_refused(case, line, message):
    lines = ("lanes = 16", line) if "register_tile" in line else (line,)
    with pytest.raises(CallError, match=re.escape(message)) as caught:
        planned(specialised(case), "cpu", edited(case, *lines))
    assert (
        line.splitlines()[-1].partition(" ")[0] in str(caught.value).splitlines()[1]
    )  # the line of the file that is shown


@pytest.mark.parametrize("case, lines", [
    *((TRANSPOSED, (f"lanes = {side}",)) for side in (2, 16)),
    (TRANSPOSED, ("transposed = []",)),
    (PANELS, ("lanes = 4", "register_tile = [3, 24]", "depths = [7]")),
])  # fmt: skip
def test_one_that_can_be_is_right(case, lines):
    check(case, "cpu", edited(case, *lines))

"""Small programs that once failed, replayed by every run of the tests: `corpus/*.tile`.

The first line tells the sizes and what the arguments are: any numbers where it says `special`, else small ones.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fuzz.compare import specialised
from fuzz.edges import float_data, integer_data
from fuzz.programs import Case
from tilec.core.dtypes import BOOL, DType

FOLDER = Path(__file__).parent / "corpus"
NAMES = sorted(path.stem for path in FOLDER.glob("*.tile"))


def kept(name: str) -> Case:
    """The program with its inputs."""
    text = (FOLDER / f"{name}.tile").read_text()
    head = text.partition("\n")[0]
    sizes = {size: int(number) for size, number in re.findall(r"(\w+)=(\d+)", head)}
    rng, special = np.random.default_rng(len(text)), "special" in head
    tensors = specialised(Case(text, sizes, {})).inputs
    return Case(text, sizes, {t.name: _data(rng, t.dtype, tuple(s.value for s in t.shape), special) for t in tensors})


def _data(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], special: bool) -> np.ndarray:
    if dtype is BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if not dtype.is_float:
        return np.asarray(integer_data(rng, dtype, shape))
    return np.asarray(
        float_data(rng, dtype, shape) if special else (rng.integers(-8, 9, shape) / 4).astype(dtype.numpy)
    )

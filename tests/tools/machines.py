"""The machines that the cost model is tested with."""

from tilec.core.target import BUILT_IN, read
from tilec.core.targets import load

H200 = load("h200")
CPU = read(BUILT_IN / "cpu.toml")
CARDS = [load(n) for n in ("h200", "h100", "a100", "l4", "rtx4090", "rtx3090", "b200", "sm_90")]

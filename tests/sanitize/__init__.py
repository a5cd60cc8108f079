"""NVIDIA's Compute Sanitizer over compiled programs. What the examples compute stands beside them, in examples/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

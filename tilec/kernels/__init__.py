"""Kernel families: the ways in which a kernel can be built, each a type that is the plan's decision, the schedule's table, the
IR's attribute, the documentation and the check."""

from tilec.kernels.base import FAMILIES, Family, Planned, Refusal, Refused, planned_kernels
from tilec.kernels.contraction import Contraction, ContractionChain, MatrixKernel, WarpgroupContraction
from tilec.kernels.cpu import LoopNest, Panels, RegisterTranspose
from tilec.kernels.threaded import Columns, Points, Rows, Scan, Threaded, Transpose, VectorContraction

__all__ = [
    "FAMILIES", "Columns", "Contraction", "ContractionChain", "Family", "LoopNest", "MatrixKernel", "Panels", "Planned", "Points",
    "Refusal", "Refused", "RegisterTranspose", "Rows", "Scan", "Threaded", "Transpose", "VectorContraction", "WarpgroupContraction",
    "planned_kernels",
]  # fmt: skip

"""Kernel families: the ways in which a kernel can be built.

Each family is a type. It is the plan's decision, the table in schedule files, the attribute in the IR, the documentation and the
check of its options.
"""

from tilec.kernels.base import FAMILIES, Family, KernelPlan, Planned, Refusal, Refused, planned_kernels
from tilec.kernels.contraction import Contraction, WarpgroupContraction
from tilec.kernels.contraction_chain import ContractionChain
from tilec.kernels.cpu import LoopNest, PanelChain, Panels, RegisterTranspose
from tilec.kernels.matrix import MatrixKernel, StoredContraction
from tilec.kernels.rows import Rows, Scan
from tilec.kernels.threaded import ByKey, Columns, Points, Threaded, Transpose, VectorContraction

__all__ = [
    "FAMILIES", "ByKey", "Columns", "Contraction", "ContractionChain", "Family", "KernelPlan", "LoopNest", "MatrixKernel",
    "PanelChain", "Panels", "Planned", "Points", "Refusal", "Refused", "RegisterTranspose", "Rows", "Scan", "StoredContraction",
    "Threaded", "Transpose", "VectorContraction", "WarpgroupContraction", "planned_kernels",
]  # fmt: skip

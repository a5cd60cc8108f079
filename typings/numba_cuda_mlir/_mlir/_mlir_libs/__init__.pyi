from numba_cuda_mlir._mlir._mlir_libs import _mlir as _mlir

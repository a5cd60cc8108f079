"""Plans of CUDA kernels."""

"""Compiling and running CUDA kernels."""

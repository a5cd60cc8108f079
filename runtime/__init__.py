"""Kernels printed, compiled, kept and launched."""

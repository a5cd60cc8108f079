"""Compiling and running CPU kernels."""

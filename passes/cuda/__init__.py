"""Stages `stage` and `map` of CUDA."""

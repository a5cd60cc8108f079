"""CUDA chains of two contractions."""

"""Stages `stage` and `map` of the CPU."""

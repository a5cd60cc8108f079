"""The machine-code path of repeated calls."""

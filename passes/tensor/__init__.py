"""Passes on tensors, from `simplify` to `bufferize`."""

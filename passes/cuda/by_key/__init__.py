"""map, for CUDA: reductions by key."""

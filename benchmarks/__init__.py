"""Times of tilec beside NumPy, PyTorch and JAX: `python -m benchmarks cpu`, `python -m benchmarks gpu --json FILE`."""

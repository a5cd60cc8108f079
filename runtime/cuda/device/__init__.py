"""Device functions that printed CUDA kernels import."""

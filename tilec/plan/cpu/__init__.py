"""Plans of CPU kernels."""

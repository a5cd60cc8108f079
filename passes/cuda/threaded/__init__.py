"""CUDA kernels whose threads take elements: points, columns, rows, scans, transposes."""

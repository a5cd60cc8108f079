"""Printers of kernels."""

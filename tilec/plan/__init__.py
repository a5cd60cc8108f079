"""Decisions: which operations form a kernel, how each kernel is built, and what a schedule file may say about it."""

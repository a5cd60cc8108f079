"""Decisions: which operations form a kernel, how each kernel is built, and the options that a schedule file may set."""

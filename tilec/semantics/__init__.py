"""Meanings of programs and of IR: the reference, error bounds, the interpreter, verification."""

"""From a program to executables, and their measurement."""

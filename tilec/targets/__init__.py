"""Machines as TOML files."""

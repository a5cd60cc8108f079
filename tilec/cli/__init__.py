"""The `tilec` command."""

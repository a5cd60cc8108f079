"""Schedule files."""

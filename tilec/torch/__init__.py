"""PyTorch programs: ATen graphs as `.tile` text. Nothing of torch is imported before it is used."""

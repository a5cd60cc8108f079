"""CUDA contractions by warps and by warpgroups."""

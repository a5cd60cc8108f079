"""The language: text to a checked syntax tree, and the tree to MLIR."""

"""Ground floor: tables of the language, source positions, MLIR's bindings, targets."""

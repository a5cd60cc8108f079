"""The language server: what editors ask about programs, over the Language Server Protocol."""

"""The standard library, in the language itself."""

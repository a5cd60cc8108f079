"""tilec: a tensor compiler that explains its decisions. `compile` a `.tile` program, and call the result."""

from __future__ import annotations

from tilec.core.diagnostics import CallError, Diagnostic, InternalError, TileError

__all__ = ["CallError", "Diagnostic", "InternalError", "Op", "TileError", "compile", "interpret", "reference"]


def __getattr__(name: str) -> object:
    """Loads the compiler when it is first asked for: importing tilec costs next to nothing."""
    if name in ("compile", "interpret", "Op"):
        from tilec import api

        return getattr(api, name)
    if name == "reference":
        from tilec.semantics.reference import reference

        return reference
    if name == "__version__":
        from tilec.version import VERSION

        return VERSION
    raise AttributeError(f"module 'tilec' has no attribute '{name}'")

"""tilec: a tensor compiler that explains its decisions. `compile` a `.tile` program, and call the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.core.diagnostics import CallError, Diagnostic, InternalError, TileError

if TYPE_CHECKING:
    from tilec.api import Op, compile, interpret
    from tilec.driver.kernel import Kernel
    from tilec.plan.model import Plan
    from tilec.runtime.cpu.threads import get_threads, set_threads
    from tilec.semantics.reference import reference
    from tilec.version import VERSION as __version__
else:

    def __getattr__(name):
        """Loads the compiler when it is first asked for: importing tilec costs next to nothing."""
        from importlib import import_module

        if name not in _LATER:
            raise AttributeError(f"module 'tilec' has no attribute '{name}'")
        return getattr(import_module(_LATER[name]), {"__version__": "VERSION"}.get(name, name))


__all__ = [
    "CallError",
    "Diagnostic",
    "InternalError",
    "Kernel",
    "Op",
    "Plan",
    "TileError",
    "__version__",
    "compile",
    "get_threads",
    "interpret",
    "reference",
    "set_threads",
]
_LATER = {
    "compile": "tilec.api",
    "interpret": "tilec.api",
    "Op": "tilec.api",
    "Kernel": "tilec.driver.kernel",
    "Plan": "tilec.plan.model",
    "reference": "tilec.semantics.reference",
    "get_threads": "tilec.runtime.cpu.threads",
    "set_threads": "tilec.runtime.cpu.threads",
    "__version__": "tilec.version",
}
"""The modules of what is imported when it is first asked for."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""tilec: a tensor compiler that explains its decisions. `compile` a `.tile` program, and call the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.core.diagnostics import CallError, Diagnostic, InternalError, TileError
from tilec.core.later import later

if TYPE_CHECKING:
    from tilec.api import Op, compile, interpret
    from tilec.driver.kernel import Kernel
    from tilec.functions import einsum, op
    from tilec.plan.model import Plan
    from tilec.runtime.cpu.threads import get_threads, set_threads
    from tilec.semantics.reference import reference
    from tilec.torch.from_torch import from_torch
    from tilec.version import VERSION as __version__
else:
    # The compiler is loaded when it is first asked for: importing tilec costs next to nothing.
    __getattr__, __dir__ = later(
        __name__,
        {
            "compile": "tilec.api:compile",
            "interpret": "tilec.api:interpret",
            "Op": "tilec.api:Op",
            "einsum": "tilec.functions:einsum",
            "op": "tilec.functions:op",
            "from_torch": "tilec.torch.from_torch:from_torch",
            "Kernel": "tilec.driver.kernel:Kernel",
            "Plan": "tilec.plan.model:Plan",
            "load_ipython_extension": "tilec.magics:load_ipython_extension",
            "unload_ipython_extension": "tilec.magics:unload_ipython_extension",
            "reference": "tilec.semantics.reference:reference",
            "get_threads": "tilec.runtime.cpu.threads:get_threads",
            "set_threads": "tilec.runtime.cpu.threads:set_threads",
            "__version__": "tilec.version:VERSION",
        },
    )

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
    "einsum",
    "from_torch",
    "get_threads",
    "interpret",
    "op",
    "reference",
    "set_threads",
]

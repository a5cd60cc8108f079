"""Several programs compiled at once for the CPU: one unit of LLVM's for all their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

from tilec.runtime.cpu_compile import _execute, _read, _symbol
from tilec.runtime.cpu_load import load
from tilec.runtime.generated import identity, uncollected
from tilec.runtime.program import Emitted


def compile_together(programs: Sequence[Emitted], quick: bool) -> list[dict[str, int]]:
    """The addresses of each program's kernels. `quick`: with few of LLVM's optimisations, and no vectors."""
    found, libraries = [], {}
    with global_compiler_lock, uncollected():
        for emitted in programs:
            functions = _execute(emitted.module)
            found.append({k.name: _symbol(identity(functions[k.name].__code__)) for k in emitted.kernels})
            for name, symbol in found[-1].items():
                if symbol not in libraries:
                    libraries[symbol] = _read(functions[name], symbol)
        if not libraries:
            return found
        whole, *others = libraries.values()
        for other in others:
            whole._final_module.link_in(other._final_module)
            for library in other._linking_libraries:
                if library not in whole._linking_libraries:
                    whole._linking_libraries.append(library)
        with _quickly(whole.codegen, quick):
            made = whole.emit(next(iter(libraries)))
    addresses = load(made.image, [*libraries], made.needs)
    return [{name: addresses[symbol] for name, symbol in kernels.items()} for kernels in found]


@contextmanager
def _quickly(codegen, quick: bool) -> Iterator[None]:
    """LLVM's first level for a while, of three."""
    if not quick:
        yield
        return
    before = config.OPT, config.LOOP_VECTORIZE, codegen._opt_level, codegen._loopvect
    config.OPT, config.LOOP_VECTORIZE, codegen._opt_level, codegen._loopvect = config._OptLevel(1), 0, 1, False
    try:
        yield
    finally:
        config.OPT, config.LOOP_VECTORIZE, codegen._opt_level, codegen._loopvect = before

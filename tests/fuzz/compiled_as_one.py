"""Several programs compiled at once for the CPU: one unit of LLVM's for all their kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

import llvmlite.binding as llvm
from numba.core.compiler_lock import global_compiler_lock

from tilec.process.collection import uncollected
from tilec.runtime.cpu.compile import _execute, _Library, _read, _symbol
from tilec.runtime.cpu.load import load
from tilec.runtime.generated import identity
from tilec.runtime.program import Emitted


def compile_as_one(programs: Sequence[Emitted], level: int | None = None) -> list[dict[str, int]]:
    """The addresses of each program's kernels.

    `level` is None for what users' programs get, all of LLVM's optimisations; 1 for its first level, without vectors; 0 for
    none, which takes a tenth of the time.
    """
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
        first = next(iter(libraries))
        made = whole.emit(first) if level is None else _emit(whole, first, libraries, level)
    addresses = load(made.image, [*libraries], made.needs)
    return [{name: addresses[symbol] for name, symbol in kernels.items()} for kernels in found]


def _emit(library: _Library, symbol: str, symbols: Collection[str], level: int):
    library.link()
    module, machine = library._final_module, _machine(level)
    for function in module.functions:
        if not function.is_declaration and function.name not in symbols:
            function.linkage = "internal"  # inlined where it is called, and not compiled once more
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return library.to_object(symbol, machine)


@cache
def _machine(level: int) -> llvm.TargetMachine:
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=level, reloc="pic", codemodel="default")

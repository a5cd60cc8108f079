"""Loads object files into this process through LLVM, without Numba's compiler."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache

import llvmlite.binding as llvm

from tilec.process.interrupts import uninterrupted


class MissingSymbol(Exception):
    """Machine code of another time needs a function that this process has not."""


_loading = threading.Lock()


@cache
def _engine() -> llvm.ExecutionEngine:
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine())


def machine() -> llvm.TargetMachine:
    """LLVM's target machine for this process, for any processor of its architecture."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(jit=True, opt=1)


_addresses: dict[str, int] = {}


def load(image: bytes, symbols: Sequence[str], needs: Sequence[str]) -> dict[str, int]:
    """The addresses of functions in an object file. It stays for good: a call may run when the last reference goes.

    Raises MissingSymbol where one of `needs` is not in this process.
    """
    with uninterrupted(), _loading:
        if any(s not in _addresses for s in symbols):
            engine = _engine()
            if missing := [name for name in needs if llvm.address_of_symbol(name) is None]:
                raise MissingSymbol(", ".join(missing))
            engine.add_object_file(llvm.ObjectFileRef.from_data(image))
            engine.finalize_object()
            _addresses.update({s: engine.get_function_address(s) for s in symbols})
        return {s: _addresses[s] for s in symbols}

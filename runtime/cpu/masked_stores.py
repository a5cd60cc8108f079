"""Masked stores of one element become plain stores of it, in optimised LLVM IR, before it becomes machine code.

LLVM (22.1 at least) makes a wrong one of the following, where the processor has AVX-512: the element is stored with its bits
from before the truncation, four bytes here, and overwrites the memory behind the element.

    %t = trunc <8 x i32> %v to <8 x i8>
    call void @llvm.masked.store.v8i8.p0(<8 x i8> %t, ptr align 1 %p, <8 x i1> <i1 true, i1 false, i1 false, ...>)

The loop vectoriser makes such stores of the last of nine elements. `docs/upstream/llvm-masked-store.md` is the report;
`tests/runtime/test_upstream.py` tells when LLVM is mended.
"""

from __future__ import annotations

import re

import llvmlite.binding as llvm

_NAME = r'%(?:[-\w.$]+|"[^"]*")'
_STORE = re.compile(
    r"^(?P<indent>\s*)(?:tail )?call void @llvm\.masked\.store\.[\w.]+\("
    rf"(?P<vector><(?P<count>\d+) x (?P<element>\w+)>) (?P<value>{_NAME}), "
    r"ptr (?:\w+ )*?align (?P<align>\d+) (?P<place>[^,]+), <\d+ x i1> <(?P<mask>i1 [^>]*)>\).*$",
    re.MULTILINE,
)


def without_single_masked_stores(module: llvm.ModuleRef) -> llvm.ModuleRef:
    """The module itself, where there are none."""
    if not any(f.name.startswith("llvm.masked.store.") for f in module.functions):
        return module
    count = 0

    def plain(found: re.Match) -> str:
        nonlocal count
        lanes = [n for n, bit in enumerate(found["mask"].split(", ")) if bit == "i1 true"]
        if len(lanes) != 1:
            return found[0]
        count += 1
        (lane,), (indent, element), name = lanes, found.group("indent", "element"), f"%tilec.single.{count}"
        where, lines = found["place"], [f"{name} = extractelement {found['vector']} {found['value']}, i64 {lane}"]
        if lane:
            lines.append(f"{name}.at = getelementptr {element}, ptr {where}, i64 {lane}")
            where = f"{name}.at"
        lines.append(f"store {element} {name}, ptr {where}, align {_alignment(int(found['align']), lane)}")
        return "\n".join(indent + line for line in lines)

    text = _STORE.sub(plain, str(module))
    return llvm.parse_assembly(text) if count else module


def _alignment(whole: int, lane: int) -> int:
    """Of an element of an aligned vector; elements behind the first are only known to lie at any byte."""
    return 1 if lane else whole

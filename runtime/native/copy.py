"""Machine code that copies memory with several threads, in the form of a kernel's loop over its blocks."""

from __future__ import annotations

from llvmlite import ir

from tilec.runtime.native.writer import I64, Writer

NAME = "tilec_copy"
PARALLEL = 1 << 19  # bytes from which on threads share a copy: starting them takes some 5 us
STREAMED = 1 << 23  # bytes from which on stores go past the caches, which then read nothing before it is overwritten
LINE = 64
BLOCK = 1 << 15
LINES = 4  # at a time


def copy(module: ir.Module) -> None:
    """(first, end, data): copies blocks of memory from args[0] to args[1]. `data` is as for a kernel (`runtime/cpu/compile.py`);
    then come the bytes in all. Blocks meet at cache lines of the target."""
    f = Writer(module, NAME, 3)
    b, (first, end, data) = f.builder, f.args
    args, total = f.load(data), f.load(data, 8)
    source, target = f.load(args), f.load(args, 8)

    def before_line(address: ir.Value) -> ir.Value:
        """Bytes up to the next cache line."""
        return b.and_(b.neg(address), I64(LINE - 1))

    def start(block: ir.Value) -> ir.Value:
        inner = f.add(f.mul(block, BLOCK), before_line(target))
        inner = b.select(f.is_("<", inner, total), inner, total)
        return b.select(f.is_("==", block, 0), I64(0), inner)

    first, end = start(first), start(end)
    with f.when(f.is_("<", b.lshr(total, I64(20)), STREAMED >> 20)):
        f.call("memmove", f.add(target, first), f.add(source, first), b.sub(end, first))
        f.done()
    head, size = before_line(f.add(target, first)), b.sub(end, first)
    head = b.select(f.is_("<", head, size), head, size)
    groups = b.udiv(b.sub(size, head), I64(LINE * LINES))
    f.call("memmove", f.add(target, first), f.add(source, first), head)
    first = f.add(first, head)
    line = ir.VectorType(ir.IntType(32), LINE // 4).as_pointer()
    streamed = module.add_metadata([ir.IntType(32)(1)])
    with f.times(groups) as n:
        at = f.add(first, f.mul(n, LINE * LINES))
        lines = [b.load(b.inttoptr(f.add(f.add(source, at), LINE * i), line), align=1) for i in range(LINES)]
        for i, value in enumerate(lines):
            store = b.store(value, b.inttoptr(f.add(f.add(target, at), LINE * i), line), align=LINE)
            store.set_metadata("nontemporal", streamed)
    b.fence("seq_cst")  # others see the stores before they see that these blocks are done
    done = f.add(first, f.mul(groups, LINE * LINES))
    f.call("memmove", f.add(target, done), f.add(source, done), b.sub(end, done))
    f.done()

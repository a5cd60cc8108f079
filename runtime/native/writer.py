"""A writer of functions in LLVM's IR, on 64-bit words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from llvmlite import ir

I64, I32, I8 = ir.IntType(64), ir.IntType(32), ir.IntType(8)
NULL = I64(0)
Word = ir.Value | int


class Writer:
    """One function, whose arguments and result are words."""

    def __init__(self, module: ir.Module, name: str, count: int):
        self.function = ir.Function(module, ir.FunctionType(I64, [I64] * count), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.args = self.function.args

    def load(self, address: ir.Value, offset: int = 0, kind: ir.IntType = I64) -> ir.Value:
        value = self.builder.load(self._at(address, offset, kind))
        return value if kind is I64 else self.builder.zext(value, I64)

    def field(self, table: ir.Value, field: IntEnum) -> ir.Value:
        return self.load(table, 8 * field)

    def item(self, table: ir.Value, index: ir.Value) -> ir.Value:
        return self.load(self.add(table, self.mul(index, 8)))

    def store(self, value: ir.Value, address: ir.Value, offset: int = 0) -> None:
        self.builder.store(value, self._at(address, offset, I64))

    def _at(self, address: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
        address = self.add(address, offset) if offset else address
        return self.builder.inttoptr(address, kind.as_pointer())

    def peek(self, address: ir.Value) -> ir.Value:
        """The word at an address that other threads write to."""
        return self.builder.load_atomic(self._at(address, 0, I64), "seq_cst", 8)

    def exchange(self, address: ir.Value, value: Word) -> ir.Value:
        """Stores a value; gives the one before. This and what follows is one step for other threads."""
        return self.change("xchg", address, value)

    def change(self, how: str, address: ir.Value, value: Word) -> ir.Value:
        """Stores the sum ("add") or another function of the word there and of a value; gives the word before."""
        given = I64(value) if isinstance(value, int) else value
        return self.builder.atomic_rmw(how, self._at(address, 0, I64), given, "seq_cst")

    def swap(self, address: ir.Value, old: Word, new: Word) -> ir.Value:
        """Stores `new` if the word there is `old`; gives whether it was."""
        before, after = (I64(v) if isinstance(v, int) else v for v in (old, new))
        swapped = self.builder.cmpxchg(self._at(address, 0, I64), before, after, "seq_cst", "seq_cst")
        return self.builder.extract_value(swapped, 1)

    def add(self, a: ir.Value, b: Word) -> ir.Value:
        return self.builder.add(a, I64(b) if isinstance(b, int) else b)

    def mul(self, a: ir.Value, b: Word) -> ir.Value:
        return self.builder.mul(a, I64(b) if isinstance(b, int) else b)

    def words(self, count: Word) -> ir.Value:
        """The address of memory that lasts as long as the call."""
        if not isinstance(count, int):
            return self.builder.ptrtoint(self.builder.alloca(I64, count), I64)
        with self.builder.goto_entry_block():  # once, also if this is in a loop
            return self.builder.ptrtoint(self.builder.alloca(I64, I64(count)), I64)

    def call(self, target: ir.Value | str, *args: Word) -> ir.Value:
        """Calls a function of this module, a function of the process by its name, or the function at an address."""
        given = [I64(a) if isinstance(a, int) else a for a in args]
        kind, module = ir.FunctionType(I64, [I64] * len(given)), self.function.module
        if isinstance(target, str):
            target = module.globals.get(target) or ir.Function(module, kind, target)
        elif not isinstance(target, ir.Function):
            target = self.builder.inttoptr(target, kind.as_pointer())
        return self.builder.call(target, given)

    def call_object(self, function: ir.Value, *arguments: ir.Value) -> ir.Value:
        """Calls what Python can call with new references, which it takes. Gives a new reference, or 0 with an error set."""
        packed = self.call("PyTuple_New", len(arguments))
        for position, argument in enumerate(arguments):
            self.call("PyTuple_SetItem", packed, position, argument)
        result = self.call("PyObject_Call", function, packed, 0)
        self.call("Py_DecRef", packed)
        return result

    def narrow(self, value: ir.Value) -> ir.Value:
        """A word whose upper half says nothing."""
        return self.builder.zext(self.builder.trunc(value, I32), I64)

    def least(self, value: ir.Value, address: ir.Value) -> None:
        """Stores the value where it is below the word at the address."""
        before = self.load(address)
        self.store(self.builder.select(self.is_("<", value, before), value, before), address)

    def is_(self, relation: str, a: ir.Value, b: Word) -> ir.Value:
        return self.builder.icmp_signed(relation, a, I64(b) if isinstance(b, int) else b)

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        with self.builder.if_then(condition):
            yield

    @contextmanager
    def times(self, count: ir.Value, backwards: bool = False) -> Iterator[ir.Value]:
        """A loop; gives the number of the round."""
        b = self.builder
        counter = self.words(1)
        self.store(NULL, counter)
        head, body, done = (self.block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        number = self.load(counter)
        b.cbranch(self.is_("<", number, count), body, done)
        b.position_at_end(body)
        yield b.sub(b.sub(count, I64(1)), number) if backwards else number
        self.store(self.add(number, 1), counter)
        b.branch(head)
        b.position_at_end(done)

    @contextmanager
    def repeat(self) -> Iterator[ir.Block]:
        """A loop; gives the block that goes on after it."""
        head, after = self.block(), self.block()
        self.builder.branch(head)
        self.builder.position_at_end(head)
        yield after
        self.builder.branch(head)
        self.builder.position_at_end(after)

    def block(self) -> ir.Block:
        return self.function.append_basic_block()

    def demand(self, condition: ir.Value, otherwise: ir.Block) -> None:
        """Goes on at `otherwise` where the condition does not hold."""
        here = self.block()
        self.builder.cbranch(condition, here, otherwise)
        self.builder.position_at_end(here)

    @contextmanager
    def at(self, block: ir.Block) -> Iterator[None]:
        """Writes into a block that others go to."""
        with self.builder.goto_block(block):
            yield

    def refusals(self) -> tuple[ir.Block, ir.Block]:
        """Two ways to answer no, which is 0: the second forgets an error of Python's."""
        other, failed = self.block(), self.block()
        with self.at(other):
            self.done(0)
        with self.at(failed):
            self.call("PyErr_Clear")
            self.done(0)
        return other, failed

    def done(self, value: Word = 0) -> None:
        self.builder.ret(I64(value) if isinstance(value, int) else value)

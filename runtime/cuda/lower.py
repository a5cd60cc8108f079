"""From the syntax tree of a printed kernel to MLIR.

Printed kernels are a small part of Python: assignments, loops over `range`, branches, arithmetic on typed numbers, arrays in
registers, and calls of device functions (`runtime/cuda/intrinsics.py`). A statement becomes MLIR as it is read:

    other = shuffle_xor_f32(total, int32(16))       %4 = func.call @shuffle_xor_f32(%3, %c16_i32) : (f32, i32) -> f32
    total = total + other                           %5 = arith.addf %3, %4 : f32

Types are those of Numba, whose rules are asked for each pair of types once. A variable that is assigned once is a value, any other
one a word of memory, which NVVM makes a register. What is no part of this language raises Unknown, and Numba's own front end reads
the kernel (`runtime/cuda/frontend.py`). It takes several times as long: it finds out again what kernels say plainly.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilec.runtime.cuda.device.define import mlir_type
from tilec.runtime.cuda.expressions import Array, Expressions, Slot
from tilec.runtime.cuda.numbers import Unknown, Value

SYMBOL = "printed_kernel_"  # before a kernel's name: no device function has such a one


def to_mlir(
    kernel: ast.FunctionDef, globals: Mapping[str, object], types: Sequence[str], chip: str, threads: int, min_blocks: int
) -> str:  # fmt: skip
    """The text of a module with the kernel, whose name there has SYMBOL before it, and with the device functions that it calls.
    `globals` has what it reads but does not assign. Raises Unknown."""
    return _Kernel(kernel, globals, types).module(chip, threads, min_blocks)


class _Kernel(Expressions):
    def __init__(self, kernel: ast.FunctionDef, globals: Mapping[str, object], types: Sequence[str]):
        stored = (n.id for n in ast.walk(kernel) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
        super().__init__(globals, Counter(stored))
        self.kernel, self.types = kernel, types
        self.slots: dict[str, Slot] = {}
        self.ends: list[tuple[str, str]] = []  # of loops around: where to go on, and where the loop has ended

    def module(self, chip: str, threads: int, min_blocks: int) -> str:
        names = [a.arg for a in self.kernel.args.args]
        for name, kind in zip(names, self.types, strict=True):
            value = Value(kind, f"%{name}_")
            if self.assigned[name]:
                raise Unknown(f"the parameter {name} is assigned")
            self.known[name] = value
        if self._block(self.kernel.body):
            self._branch("^end")
        arguments = ", ".join(f"%{n}_: {mlir_type(t)}" for n, t in zip(names, self.types))
        bounds = f"nvvm.maxntid = array<i32: {threads}, 1, 1>, nvvm.minctasm = {min_blocks} : i32"
        return "\n".join([
            f'gpu.module @kernels [#nvvm.target<O = 3, chip = "{chip}">] {{',
            f"gpu.func @{SYMBOL}{self.kernel.name}({arguments}) kernel attributes {{{bounds}}} {{",
            *self.first, "cf.br ^begin", "^begin:", *self.lines, "^end:", "gpu.return", "}",
            *self.functions.values(), "}",
        ])  # fmt: skip

    def _assign(self, name: str, value: Value | Array) -> None:
        before = self.known.get(name)
        if self.assigned[name] == 1:
            self.known[name] = value
        elif isinstance(value, Array):
            raise Unknown(f"{name} is several arrays")
        elif isinstance(before, Slot):
            if before.type != value.type:
                raise Unknown(f"{name} has several types")
            self._store(before, value)
        else:
            self.known[name] = self.slots[name] = self._slot(value)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """What is assigned within is not known after it, but for memory."""
        before = dict(self.known)
        yield
        self.known = before | self.slots

    # ---- statements ----------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether the end of the statements is reached."""
        for k, statement in enumerate(statements):
            if not self._statement(statement):
                if k + 1 < len(statements):
                    raise Unknown("statements behind a jump")
                return False
        return True

    def _statement(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, self._value_or_array(value))
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
                for target, found in zip(targets, [self._value(v) for v in values]):
                    if not isinstance(target, ast.Name):
                        raise Unknown(ast.unparse(target))
                    self._assign(target.id, found)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=subscript)], value=value):
                array, at = self._element(name, subscript)
                text = self._name(self._converted(self._value(value), array.element))
                self.lines.append(f"memref.store {text}, {array.memory}[{at}] : {array.type}")
            case ast.Expr(value=ast.Call() as call):
                self._call(call)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.If():
                return self._if(statement)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=bounds), orelse=[]):
                self._for(name, bounds, statement.body)
            case ast.While(orelse=[]):
                self._while(statement)
            case ast.Break() if self.ends:
                self._branch(self.ends[-1][1])
                return False
            case ast.Continue() if self.ends:
                self._branch(self.ends[-1][0])
                return False
            case ast.Return(value=None):
                self._branch("^end")
                return False
            case _:
                raise Unknown(ast.unparse(statement))
        return True

    def _if(self, statement: ast.If) -> bool:
        yes, no, end = self._labels("then", "else", "join")
        condition = self._name(self._converted(self._value(statement.test), "bool"))
        self.lines.append(f"cf.cond_br {condition}, {yes}, {no if statement.orelse else end}")
        reached = not statement.orelse
        for label, body in ((yes, statement.body), (no, statement.orelse)):
            if body:
                self.lines.append(f"{label}:")
                with self._inside():
                    if self._block(body):
                        self._branch(end)
                        reached = True
        if reached:
            self.lines.append(f"{end}:")
        return reached

    def _for(self, name: str, bounds: Sequence[ast.expr], body: Sequence[ast.stmt]) -> None:
        """A loop over integers. Its own counter goes on, whatever the body does with the variable."""
        given = [self._converted(self._value(b), "i64") for b in bounds]
        start, stop = (Value("i64", number=0), given[0]) if len(given) == 1 else given[:2]
        step = given[2] if len(given) == 3 else Value("i64", number=1)
        if not isinstance(step.number, int) or step.number == 0:
            raise Unknown("a step that is not a number")
        head, inner, onward, end = self._labels("head", "body", "next", "after")
        counter = self._slot(start)
        self._branch(head)
        self.lines.append(f"{head}:")
        now = self._load(counter)
        compared = "slt" if step.number > 0 else "sgt"
        more = self._operation(f"arith.cmpi {compared}, {now.name}, {self._name(stop)} : i64", "bool")
        self.lines += [f"cf.cond_br {more.name}, {inner}, {end}", f"{inner}:"]
        self.ends.append((onward, end))
        with self._inside():
            self._assign(name, now)
            if self._block(body):
                self._branch(onward)
        self.ends.pop()
        self.lines.append(f"{onward}:")
        self._store(counter, self._operation(f"arith.addi {self._load(counter).name}, {self._name(step)} : i64", "i64"))
        self._branch(head)
        self.lines.append(f"{end}:")

    def _while(self, statement: ast.While) -> None:
        head, inner, end = self._labels("head", "body", "after")
        self._branch(head)
        self.lines.append(f"{head}:")
        condition = self._name(self._converted(self._value(statement.test), "bool"))
        self.lines += [f"cf.cond_br {condition}, {inner}, {end}", f"{inner}:"]
        self.ends.append((head, end))
        with self._inside():
            if self._block(statement.body):
                self._branch(head)
        self.ends.pop()
        self.lines.append(f"{end}:")

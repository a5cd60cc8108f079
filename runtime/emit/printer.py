"""Printing mapped IR as Python: the parts that the CPU and the CUDA printer share.

A value that is used once, by an operation of its own block, is printed inside that use; every other value gets a variable.
Loads always get one, so that no load moves past a store. Memory is a base pointer, an offset and strides: subviews cost
nothing and leave no trace. `runtime/emit/variables.py` gives variables their names, `runtime/emit/comments.py` puts the
source's statements beside the lines that serve them.
"""

from __future__ import annotations

import re
from functools import partial

from tilec.core import coefficients, extents, locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.functions import FUNCTIONS
from tilec.core.mlir import ir
from tilec.runtime.emit.assignments import assignments
from tilec.runtime.emit.comments import Comments
from tilec.runtime.emit.index import Memory, affine_text, collapsed, group, is_unit, plus, quotient, tidy, times
from tilec.runtime.emit.names import Names
from tilec.runtime.emit.tables import BINARY, COMPARE_FLOAT, COMPARE_INTEGER, EXTREMA, NARROW, PURE, UNSIGNED
from tilec.runtime.emit.variables import Variables


class Printer(Variables):
    """Prints one kernel's body. Subclasses print accesses of memory and the hardware's operations."""

    def __init__(self, names: Names, comments: Comments) -> None:
        super().__init__(names)
        self.comments = comments
        self.lines: list[str] = []
        self.depth = 1
        self.text: dict[ir.Value, str] = {}
        self.memory: dict[ir.Value, Memory] = {}
        self.own: set[str] = set()  # variables of a single value: a load's, or one that a loop carries
        self.used: set[str] = set()
        self.definitions: dict[str, str] = {}
        self.sites: list[str] = []
        self.sizes: dict[str, str] = {}

    # ---- supplied by a backend ---------------------------------------------------------------------------------------

    def load(self, memory: Memory, index: str | int) -> str:
        raise NotImplementedError

    def store(self, memory: Memory, index: str | int, value: str) -> None:
        raise NotImplementedError

    def function(self, name: str, arguments: list[str], element: str) -> str:
        """A call of the intrinsic that computes a `math` operation or an extremum."""
        raise NotImplementedError

    def backend_operation(self, op: ir.Operation) -> None:
        raise InternalError(f"no way to print '{op.name}'", "emit", str(op))

    # ---- extents -----------------------------------------------------------------------------------------------------

    def size(self, name: str) -> str:
        """The variable of a size that varies."""
        if name not in self.sizes:
            self.sizes[name] = self.names.source(name)
        return self.sizes[name]

    def shape(self, function: ir.Operation, argument: ir.Value) -> tuple[str | int, ...]:
        """The extents of a kernel's argument: numbers, or texts over its sizes."""
        words = extents.texts_of(function, ir.BlockArgument(argument).arg_number) or []
        known = list(ir.ShapedType(argument.type).shape)
        return tuple(self.extent(words[d]) if n == mlir.DYNAMIC else n for d, n in enumerate(known))

    def extent(self, text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda name: name[0] if name[0] == "min" else self.size(name[0]), text)

    # ---- lines and names ---------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + tidy(text))

    def use(self, name: str) -> str:
        """A name that the module must import."""
        own = self.names.import_name(name)
        self.used.add(name if own == name else f"{name} as {own}")
        return own

    def mark_line(self, op: ir.Operation) -> None:
        """The statements that the next lines serve, where they are others than before."""
        for comment in self.comments.before(op):
            self.line(comment)

    def bind(self, value: ir.Value, text: str, name: str) -> None:
        self.line(f"{name} = {text}")
        if (op := mlir.definition(value)) is not None and op.name in ("memref.load", "vector.load"):
            self.own.add(name)
        self.text[value] = name

    # ---- operations --------------------------------------------------------------------------------------------------

    def block(self, block: ir.Block) -> None:
        for op in block.operations:
            self.mark_line(op.operation)
            self.operation(op.operation)

    def operation(self, op: ir.Operation) -> None:
        match op.name:
            case "arith.constant":
                self.text[op.results[0]] = self.constant(op)
            case "memref.load":
                memory, offset = self.address(op.operands[0], list(op.operands)[1:])
                self.bind(op.results[0], self.load(memory, offset), self.loaded(memory.base))
            case "memref.store":
                memory, offset = self.address(op.operands[1], list(op.operands)[2:])
                self.store(memory, offset, self.expr(op.operands[0]))
            case "memref.subview":
                self.subview(op)
            case "memref.dim":
                memory = self.memory[op.operands[0]]
                self.text[op.results[0]] = group(memory.shape[int(mlir.constant_value(op.operands[1]))])
            case "memref.cast":
                self.memory[op.results[0]] = self.memory[op.operands[0]]
            case "memref.collapse_shape":
                self.memory[op.results[0]] = collapsed(self.memory[op.operands[0]], op)
            case "scf.for":
                self.for_loop(op)
            case "scf.while":
                self.while_loop(op)
            case "scf.if":
                self.branch(op)
            case (
                "scf.yield"
                | "scf.condition"
                | "scf.forall.in_parallel"
                | "func.return"
                | "memref.dealloc"
                | "memref.assume_alignment"
            ):
                pass
            case name if name.startswith(PURE):
                self.pure(op)
            case _:
                self.backend_operation(op)

    def pure(self, op: ir.Operation) -> None:
        text = self.expression(op)
        (result,) = op.results
        users, named = mlir.uses(result), any(locations.variables(op)) and str(result.type) == "i1"
        if not named and len(users) == 1 and users[0].block == op.block and len(text) < 90:
            self.text[result] = (
                text if re.fullmatch(r"[\w.]+(\([^()]*\))?|\(.*\)", text) and is_unit(text) else f"({text})"
            )
        else:
            self.bind(result, text, self.variable(op))

    def expr(self, value: ir.Value) -> str:
        return self.text[value]

    def operand(self, op: ir.Operation, value: ir.Value) -> str:
        """An operand of arithmetic, of which a backend may know more than its text says."""
        return self.expr(value)

    def for_loop(self, op: ir.Operation) -> None:
        block = op.regions[0].blocks[0]
        low, high, step = (self.expr(v) for v in list(op.operands)[:3])
        initial = list(op.operands)[3:]
        variable, *states = block.arguments
        names = [
            self.expr(v) if self.expr(v) in self.own and _becomes_state(v, op) else self.state(op, n)
            for n, v in enumerate(initial, 1)
        ]
        for name, state, value in zip(names, states, initial):
            if name != self.expr(value):
                self.line(f"{name} = {self.expr(value)}")
            self.text[state] = name
            self.own.add(name)
        with self.names.loop((locations.variables(op) or [None])[0] or "each") as name:
            self.text[variable] = name
            self.indent(block, names, self.begin_loop(op, name, low, high, step))
        for result, name in zip(op.results, names):
            self.text[result] = name

    def begin_loop(self, op: ir.Operation, name: str, low: str, high: str, step: str) -> tuple[str, ...]:
        """Prints the line above a loop's body; returns the lines at its end."""
        bounds = high if low == "0" and step == "1" else f"{low}, {high}" if step == "1" else f"{low}, {high}, {step}"
        self.line(f"for {name} in {self.iterations(op, bounds)}:")
        return ()

    def iterations(self, loop: ir.Operation, bounds: str) -> str:
        return f"range({bounds})"

    def while_loop(self, op: ir.Operation) -> None:
        """A loop that carries nothing between iterations; its results are the values that its condition saw."""
        before, after = (region.blocks[0] for region in op.regions)
        if list(op.operands) or len(after.operations) > 1:
            raise InternalError("a loop that carries states or does more than to look is not printed", "emit", str(op))
        self.line("while True:")
        self.depth += 1
        self.block(before)
        condition, *found = list(before.operations)[-1].operands
        names = [self.names.temporary("found") for _ in found]
        for name, value in zip(names, found):
            self.line(f"{name} = {self.expr(value)}")
        self.line(f"if not ({self.expr(condition)}):")
        self.line("    break")
        self.depth -= 1
        for result, name in zip(op.results, names):
            self.text[result] = name

    def indent(self, block: ir.Block, states: list[str], last: tuple[str, ...] = ()) -> None:
        self.depth += 1
        before = len(self.lines)
        self.block(block)
        terminator = list(block.operations)[-1].operation
        new = [self.expr(v) for v in terminator.operands] if terminator.name == "scf.yield" else []
        for line in (*assignments([(s, v) for s, v in zip(states, new) if s != v], self.names.temporary), *last):
            self.line(line)
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def branch(self, op: ir.Operation) -> None:
        names = [self.variable(op, n) for n in range(len(op.results))]
        self.line(f"if {self.expr(op.operands[0])}:")
        with self.names.branch():
            self.indent(op.regions[0].blocks[0], names)
        if len(op.regions[1].blocks):
            self.line("else:")
            with self.names.branch():
                self.indent(op.regions[1].blocks[0], names)
        for result, name in zip(op.results, names):
            self.text[result] = name

    # ---- memory ------------------------------------------------------------------------------------------------------

    def address(self, value: ir.Value, indices: list[ir.Value]) -> tuple[Memory, str | int]:
        memory = self.memory[value]
        offset: str | int = memory.offset
        for index, stride in zip(indices, memory.strides):
            offset = plus(offset, times(self.index(index), stride))
        return memory, offset

    def index(self, value: ir.Value) -> str | int:
        known = mlir.constant_value(value)
        return self.expr(value) if known is None else int(known)

    def subview(self, op: ir.Operation) -> None:
        source = self.memory[op.operands[0]]
        dynamic = list(op.operands)[1:]
        start, strides, shape = source.offset, [], []
        entries = [list(ir.DenseI64ArrayAttr(op.attributes[f"static_{n}"])) for n in ("offsets", "sizes", "strides")]
        texts = [[self.index(dynamic.pop(0)) if e == mlir.DYNAMIC else e for e in group] for group in entries]
        for offset, size, step, stride in zip(*texts, source.strides):
            start = plus(start, times(offset, stride))
            strides.append(times(step, stride))
            shape.append(size)
        kept = mlir.kept_dims(op)
        self.memory[op.results[0]] = Memory(
            source.base,
            start,
            tuple(strides[d] for d in kept),
            source.element,
            tuple(shape[d] for d in kept),
            source.space,
        )

    # ---- expressions -------------------------------------------------------------------------------------------------

    def constant(self, op: ir.Operation) -> str:
        value, type_ = op.attributes["value"], str(op.results[0].type)
        match type_:
            case "index" | "i64":
                return str(ir.IntegerAttr(value).value)
            case "i1":
                return "True" if str(value) in ("true", "1 : i1") else "False"
            case "f32" | "f64":
                return self.float_constant(ir.FloatAttr(value).value, type_)
            case "bf16" | "f16" | "f8E4M3FN" | "f8E5M2":
                return self.narrow(self.float_constant(ir.FloatAttr(value).value, "f32"), "f32", type_)
        return f"{self.use(type_)}({ir.IntegerAttr(value).value})"

    def float_constant(self, value: float, type_: str) -> str:
        if type_ == "f32" and (name := coefficients.name_of(value)):
            return self.use(name)
        text = repr(float(value))
        if text in ("inf", "-inf", "nan"):
            text = text.replace("inf", self.use("inf")) if "inf" in text else self.use("nan")
        return f"{self.use('f32')}({text})" if type_ == "f32" else f"{self.use('f64')}({text})"

    def expression(self, op: ir.Operation) -> str:
        name, operands = op.name, [v for v in op.operands]
        type_ = str(op.results[0].type)
        if name in ("affine.apply", "affine.min", "affine.max"):
            return self.affine(op)
        texts = [self.operand(op, v) for v in operands]
        if name in UNSIGNED and str(operands[0].type) not in ("i1", "index"):
            texts = [f"{self.use('u' + str(v.type)[1:])}({t})" for v, t in zip(operands, texts)]
        if name in BINARY:
            return self.binary(op, name, texts, type_)
        if name in EXTREMA:
            if name not in UNSIGNED or type_ in ("i1", "index"):
                return self.function(EXTREMA[name], texts, type_)
            return f"{self.use(type_)}({self.function(EXTREMA[name], texts, 'u' + type_[1:])})"
        match name:
            case "arith.negf":
                return f"-{texts[0]}"
            case "arith.select":
                return self.select(texts[0], texts[1], texts[2], type_)
            case "arith.cmpf":
                return COMPARE_FLOAT[ir.IntegerAttr(op.attributes["predicate"]).value].format(a=texts[0], b=texts[1])
            case "arith.cmpi":
                return self.compare_integers(op, texts)
            case "arith.trunci" | "arith.index_cast" if type_ == "i1":  # the last bit
                return f"({texts[0]} & 1) != 0"
            case "arith.extsi" | "arith.sitofp" | "arith.index_cast" if str(operands[0].type) == "i1":  # true is -1
                byte = self.use("i8")
                return self.convert(f"{byte}(-{byte}({texts[0]}))", "i8", "i64" if type_ == "index" else type_)
            case "arith.index_cast" | "arith.index_castui":
                wide = [str(t) in ("index", "i64") for t in (operands[0].type, op.results[0].type)]
                return texts[0] if all(wide) else f"{self.use('i64' if wide[1] else type_)}({texts[0]})"
            case "arith.remf":
                return self.function("fmod", texts, type_)
            case "arith.extf" | "arith.truncf":
                return self.narrow(texts[0], str(operands[0].type), type_)
            case "arith.extui" | "arith.extsi" | "arith.trunci" | "arith.sitofp" | "arith.uitofp" | "arith.fptosi":
                return self.convert(texts[0], str(operands[0].type), type_)
            case "arith.fptoui":
                return f"{self.use(type_)}({self.use('u' + type_[1:])}({texts[0]}))"
            case "math.absi":
                return f"{self.use(type_)}(abs({texts[0]}))"
            case "math.ipowi":
                return self.function("ipow", texts, type_)
            case "math.powf":
                return self.function("pow", texts, type_)
            case "math.fma":
                return self.function("fma", texts, type_)
        if (printed := _MATH.get(name)) is not None:
            suffix = f"_{mlir.get_string(op, 'tilec.form') or 'approx'}" if has_flag(op, "afn") else ""
            return self.function(printed + suffix, texts, type_)
        raise InternalError(f"no way to print '{name}'", "emit", str(op))

    def binary(self, op: ir.Operation, name: str, texts: list[str], type_: str) -> str:
        if type_ == "i1" and name == "arith.xori" and "True" in texts:
            return f"not {texts[0] if texts[1] == 'True' else texts[1]}"
        if name in ("arith.addf", "arith.mulf") and has_flag(op, "reassoc"):
            return self.reassociable(op, "add" if name == "arith.addf" else "mul", texts)
        text = f"{texts[0]} {BINARY[name]} {texts[1]}"
        whole = name in UNSIGNED and type_ != "index"  # which is 64 bits wide, and no less than 0 where MLIR divides it unsigned
        return f"{self.use(type_)}({text})" if whole or type_ in ("i8", "i16", "i32") else text

    def reassociable(self, op: ir.Operation, name: str, texts: list[str]) -> str:
        return f"{texts[0]} {'+' if name == 'add' else '*'} {texts[1]}"

    def select(self, condition: str, then: str, otherwise: str, type_: str) -> str:
        return f"{self.use('select')}({condition}, {then}, {otherwise})"

    def compare_integers(self, op: ir.Operation, texts: list[str]) -> str:
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        type_ = str(op.operands[0].type)
        if predicate >= 6 and type_ != "i1":
            unsigned = "u64" if type_ == "index" else "u" + type_[1:]
            texts = [f"{self.use(unsigned)}({t})" for t in texts]
        return f"{texts[0]} {COMPARE_INTEGER[predicate]} {texts[1]}"

    def convert(self, text: str, source: str, target: str) -> str:
        """Between integers and floats; narrow floats go by way of a float that holds the integer."""
        if target in NARROW:
            through = "f32" if source in ("i1", "i8", "i16") else "f64"
            return self.narrow(self.convert(text, source, through), through, target)
        if source in NARROW:
            text = self.narrow(text, source, "f32")
        return f"{self.use(target)}({text})"

    def narrow(self, text: str, source: str, target: str) -> str:
        """Between float types: narrow ones are bit patterns that only conversions touch."""
        names = {"f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2"}
        source, target = names.get(source, source), names.get(target, target)
        if source in ("f32", "f64") and target in ("f32", "f64"):
            return f"{self.use(target)}({text})"
        if source not in ("f32", "f64"):
            text = f"{self.use(f'f32_from_{source}')}({text})"
            return text if target == "f32" else self.narrow(text, "f32", target)
        return f"{self.use(f'{target}_from_f32')}({self.single(text, source)})"

    def single(self, text: str, source: str) -> str:
        """An f32 that rounds to a narrower type as the float does: an f64 rounded to odd, so that it is rounded once."""
        return f"{self.use('f32_odd')}({text})" if source == "f64" else text

    def affine(self, op: ir.Operation) -> str:
        map_ = ir.AffineMapAttr(op.attributes["map"]).value
        operands = [self.index(v) for v in op.operands]
        divided = partial(self.divided, op, map_.n_dims)
        texts = [str(affine_text(e, operands, map_.n_dims, divided)) for e in map_.results]
        return texts[0] if op.name == "affine.apply" else self.extremum(op.name[-3:], texts)

    def extremum(self, name: str, texts: list[str]) -> str:
        return f"{name}({', '.join(texts)})"

    def divided(self, op: ir.Operation, dims: int, expr: ir.AffineExpr, left: str | int, right: str | int) -> str:
        """A division in the affine map of `op`: a backend may know of a cheaper one."""
        return quotient(expr, left, right)


def has_flag(op: ir.Operation, flag: str) -> bool:
    return "fastmath" in op.attributes and flag in str(op.attributes["fastmath"])


_MATH = {row.mlir: row.cpu for row in FUNCTIONS.values() if row.mlir.startswith("math.")}


def _becomes_state(value: ir.Value, loop: ir.Operation) -> bool:
    """Whether nothing reads a value but the loop that goes on from it."""
    owner = mlir.definition(value)
    block = value.owner if owner is None else owner.block
    return block == loop.block and len(mlir.uses(value)) == 1

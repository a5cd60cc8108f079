"""Expressions of printed kernels as MLIR: arithmetic, choices, elements of arrays, and calls (`runtime/cuda/lower.py`)."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.runtime.cuda.device.define import NUMBA, DeviceFunction, memref, mlir_type
from tilec.runtime.cuda.numbers import BITS, TYPES, Unknown, Value, number_as, number_text, number_value, signature


@dataclass(frozen=True)
class Array:
    """An array in registers, or shared memory; `name` has any size and offset, as device functions take it."""

    element: str
    name: str
    memory: str = ""
    type: str = ""


@dataclass(frozen=True)
class Slot:
    """A variable that is assigned more than once, in memory."""

    type: str
    name: str


_OPERATORS: dict[type, tuple[Callable[[int, int], int], tuple[str, str, str]]] = {
    ast.Add: (operator.add, ("addi", "addi", "addf")),
    ast.Sub: (operator.sub, ("subi", "subi", "subf")),
    ast.Mult: (operator.mul, ("muli", "muli", "mulf")),
    ast.Div: (operator.truediv, ("", "", "divf")),
    ast.FloorDiv: (operator.floordiv, ("floordivsi", "divui", "")),
    ast.Mod: (operator.mod, ("", "remui", "")),
    ast.RShift: (operator.rshift, ("shrsi", "shrui", "")),
    ast.LShift: (operator.lshift, ("shli", "shli", "")),
    ast.BitAnd: (operator.and_, ("andi", "andi", "")),
    ast.BitOr: (operator.or_, ("ori", "ori", "")),
    ast.BitXor: (operator.xor, ("xori", "xori", "")),
}
"""Python's operator, and operations on integers with a sign, on those without one, and on floats."""
_COMPARISONS: dict[type, tuple[Callable[[int, int], int], str, str]] = {
    ast.Eq: (operator.eq, "eq", "oeq"),
    ast.NotEq: (operator.ne, "ne", "one"),  # Numba's; `not_equal_f32` is true of NaN
    ast.Lt: (operator.lt, "lt", "olt"),
    ast.LtE: (operator.le, "le", "ole"),
    ast.Gt: (operator.gt, "gt", "ogt"),
    ast.GtE: (operator.ge, "ge", "oge"),
}


_POSITIONS = {"threadIdx": "thread_id", "blockIdx": "block_id"}
_BUILTINS = {"min": min, "max": max, "abs": abs}


def _folded(function: Callable[[int, int], int], left: object, right: object) -> int | None:
    """The result where both numbers are known, and it fits their type."""
    if type(left) is not int or type(right) is not int or (right <= 0 and function not in _OF_ANY):
        return None
    found = function(left, right)
    return found if -(1 << 63) <= found < 1 << 63 else None


_OF_ANY = (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor)


class Expressions:
    """The operations of a function so far. `globals` has what its expressions read and `assigned` does not count."""

    def __init__(self, globals: Mapping[str, object], assigned: Counter[str]):
        self.globals, self.assigned = globals, assigned
        self.known: dict[str, Value | Array | Slot] = {}  # variables by name, where what is being read is
        self.first: list[str] = []  # operations of the first block: constants, and memory
        self.lines: list[str] = []
        self.constants: dict[tuple[str, str], str] = {}
        self.functions: dict[str, str] = {}
        self.count = 0

    def _fresh(self) -> str:
        self.count += 1
        return f"%{self.count}"

    def _operation(self, text: str, type: str) -> Value:
        """Appends an operation with one result."""
        name = self._fresh()
        self.lines.append(f"{name} = {text}")
        return Value(type, name)

    def _labels(self, *words: str) -> list[str]:
        self.count += 1
        return [f"^{word}{self.count}" for word in words]

    def _branch(self, label: str) -> None:
        self.lines.append(f"cf.br {label}")

    def _name(self, value: Value) -> str:
        """The value's name in MLIR; numbers are made in the first block, each once."""
        if value.number is None:
            return value.name
        type = mlir_type(value.type)
        return self._constant(number_text(value.number, value.type), type)

    def _constant(self, text: str, type: str) -> str:
        found = self.constants.get((text, type))
        if found is None:
            found = self.constants[text, type] = self._fresh()
            self.first.append(f"{found} = arith.constant {text}" + ("" if type == "i1" else f" : {type}"))
        return found

    def _slot(self, value: Value) -> Slot:
        """Memory for a variable, with this value."""
        slot = Slot(value.type, self._fresh())
        self.first.append(f"{slot.name} = memref.alloca() : memref<1x{mlir_type(slot.type)}>")
        self._store(slot, value)
        return slot

    def _store(self, slot: Slot, value: Value) -> None:
        zero = self._constant("0", "index")
        self.lines.append(f"memref.store {self._name(value)}, {slot.name}[{zero}] : memref<1x{mlir_type(slot.type)}>")

    def _load(self, slot: Slot) -> Value:
        zero = self._constant("0", "index")
        return self._operation(f"memref.load {slot.name}[{zero}] : memref<1x{mlir_type(slot.type)}>", slot.type)

    # ---- values ----------------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Value:
        found = self._value_or_array(node)
        if not isinstance(found, Value):
            raise Unknown(f"{ast.unparse(node)} is an array")
        return found

    def _value_or_array(self, node: ast.expr) -> Value | Array:
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return number_value(number)
            case ast.Name(id=name) if name in self.known:
                found = self.known[name]
                return self._load(found) if isinstance(found, Slot) else found
            case ast.Name() if isinstance(number := self._global(node), bool | int | float | np.number):
                return number_value(number)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._value(left), self._value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._comparison(op, self._value(left), self._value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(op, self._value(operand))
            case ast.IfExp():
                return self._choice(node)
            case ast.Subscript(value=ast.Name(id=name), slice=subscript):
                array, at = self._element(name, subscript)
                return self._operation(f"memref.load {array.memory}[{at}] : {array.type}", array.element)
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="cuda"), attr=of), attr=axis) if of in _POSITIONS:
                index = self._operation(f"gpu.{_POSITIONS[of]} {axis}", "index")
                return self._operation(f"arith.index_cast {index.name} : index to i32", "i32")
            case ast.Call():
                return self._call(node)
        raise Unknown(ast.unparse(node))

    def _global(self, node: ast.expr) -> Any:
        """What a name or an attribute of one is, outside of the kernel; None if that is not known."""
        match node:
            case ast.Name(id=name) if not self.assigned[name]:
                return self.globals.get(name, _BUILTINS.get(name))
            case ast.Attribute(value=value, attr=attribute):
                return getattr(self._global(value), attribute, None)
        return None

    def _element(self, name: str, subscript: ast.expr) -> tuple[Array, str]:
        """The array, and the position of an element, which kernels do not count from its end."""
        array, at = self.known.get(name), self._converted(self._value(subscript), "i64")
        if not isinstance(array, Array) or not array.memory or (at.number is not None and at.number < 0):
            raise Unknown(f"{name}[{ast.unparse(subscript)}]")
        if at.number is not None:
            return array, self._constant(str(at.number), "index")
        return array, self._operation(f"arith.index_cast {at.name} : i64 to index", "index").name

    def _binary(self, op: ast.operator, left: Value, right: Value) -> Value:
        if type(op) not in _OPERATORS:
            raise Unknown(type(op).__name__)
        function, (signed, unsigned, of_floats) = _OPERATORS[type(op)]
        if left.type == right.type == "i64" and (known := _folded(function, left.number, right.number)) is not None:
            return Value("i64", number=known)
        if isinstance(op, ast.Div) and (left.type[0] != "f" or right.type[0] != "f"):
            raise Unknown(f"{left.type} / {right.type}")
        type_, _ = signature(function, left.type, right.type)
        a, b = (self._name(self._converted(v, type_)) for v in (left, right))
        of = mlir_type(type_)
        if isinstance(op, ast.Mod) and type_[0] == "i":
            return self._remainder(a, b, type_)
        operation = of_floats if type_[0] == "f" else signed if type_[0] == "i" else unsigned
        if not operation:
            raise Unknown(f"{type(op).__name__} of {type_}")
        return self._operation(f"arith.{operation} {a}, {b} : {of}", type_)

    def _remainder(self, a: str, b: str, type: str) -> Value:
        """With the sign of the divisor."""
        of, zero = mlir_type(type), self._name(Value(type, number=0))
        rest = self._operation(f"arith.remsi {a}, {b} : {of}", type).name
        signs = self._operation(f"arith.xori {rest}, {b} : {of}", type).name
        differ = self._operation(f"arith.cmpi slt, {signs}, {zero} : {of}", "bool").name
        some = self._operation(f"arith.cmpi ne, {rest}, {zero} : {of}", "bool").name
        wrong = self._operation(f"arith.andi {differ}, {some} : i1", "bool").name
        more = self._operation(f"arith.select {wrong}, {b}, {zero} : {of}", type).name
        return self._operation(f"arith.addi {rest}, {more} : {of}", type)

    def _comparison(self, op: ast.cmpop, left: Value, right: Value) -> Value:
        if type(op) not in _COMPARISONS:
            raise Unknown(type(op).__name__)
        function, word, of_floats = _COMPARISONS[type(op)]
        unsigned = left.type[0] in "ub" and right.type[0] in "ub"
        if left.type != right.type:
            _, taken = signature(function, left.type, right.type)
            if len(set(taken)) > 1 or "f" in left.type + right.type:
                raise Unknown(f"{left.type} compared with {right.type}")
            left, right = (self._converted(v, taken[0]) for v in (left, right))
        prefix = "" if word in ("eq", "ne") else "u" if unsigned else "s"
        how = f"cmpf {of_floats}" if left.type[0] == "f" else f"cmpi {prefix}{word}"
        return self._operation(f"arith.{how}, {self._name(left)}, {self._name(right)} : {mlir_type(left.type)}", "bool")

    def _unary(self, op: ast.unaryop, value: Value) -> Value:
        match op, value.number:
            case ast.USub(), int() as number if value.type in ("i64", "u64"):
                return number_value(-number)
            case ast.USub(), float() as number:
                return Value(value.type, number=-number)
            case ast.USub(), None if value.type[0] == "f":
                return self._operation(f"arith.negf {value.name} : {value.type}", value.type)
            case ast.USub(), None if value.type == "i64":
                zero = self._name(Value("i64", number=0))
                return self._operation(f"arith.subi {zero}, {value.name} : i64", "i64")
            case ast.Not(), _ if value.type == "bool":
                no = self._name(Value("bool", number=False))
                return self._operation(f"arith.cmpi eq, {self._name(value)}, {no} : i1", "bool")
        raise Unknown(f"{type(op).__name__} of {value.type}")

    def _choice(self, node: ast.IfExp) -> Value:
        """Only the chosen side is computed, unless both are at hand."""
        condition = self._name(self._converted(self._value(node.test), "bool"))
        if all(isinstance(side, ast.Name | ast.Constant) for side in (node.body, node.orelse)):
            yes, no = self._value(node.body), self._value(node.orelse)
            if yes.type != no.type:
                raise Unknown(f"{yes.type} or {no.type}")
            text = f"arith.select {condition}, {self._name(yes)}, {self._name(no)} : {mlir_type(yes.type)}"
            return self._operation(text, yes.type)
        yes_label, no_label, end = self._labels("then", "else", "join")
        self.lines += [f"cf.cond_br {condition}, {yes_label}, {no_label}", f"{yes_label}:"]
        slot = self._slot(self._value(node.body))
        self.lines += [f"cf.br {end}", f"{no_label}:"]
        other = self._value(node.orelse)
        if other.type != slot.type:
            raise Unknown(f"{slot.type} or {other.type}")
        self._store(slot, other)
        self.lines += [f"cf.br {end}", f"{end}:"]
        return self._load(slot)

    # ---- calls -----------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value | Array:
        function, arguments = self._global(node.func), node.args
        if node.keywords or function is None:
            raise Unknown(ast.unparse(node))
        if (type := TYPES.get(str(function))) is not None and len(arguments) == 1:
            return self._converted(self._value(arguments[0]), type)
        match ast.unparse(node.func):
            case "cuda.local.array":
                return self._local(*arguments)
            case "cuda.shared.array":
                return self._shared(*arguments)
            case "cuda.syncthreads":
                self.lines.append("gpu.barrier")
                return Value("none")
            case "min" | "max" | "abs" as word if function is _BUILTINS[word]:
                return self._builtin(word, [self._value(a) for a in arguments])
        if not hasattr(function, "library"):
            return self._libdevice(function, [self._value(a) for a in arguments])
        return self._device_function(function, [self._value_or_array(a) for a in arguments])

    def _device_function(self, function: DeviceFunction, arguments: Sequence[Value | Array]) -> Value:
        names, types = [], []
        if len(function.sig.args) != len(arguments):
            raise Unknown(f"{len(arguments)} arguments of {function.name}")
        for type, value in zip(function.sig.args, arguments):
            if isinstance(value, Array):
                if str(getattr(type, "dtype", "")) != NUMBA[value.element]:
                    raise Unknown(f"an array of {value.element} in a call of {function.name}")
                names.append(value.name)
                types.append(memref(value.element))
            else:
                wanted = TYPES.get(str(type), "")
                names.append(self._name(self._converted(value, wanted)))
                types.append(mlir_type(wanted))
        self.functions[function.name] = function.library.source
        result = TYPES.get(str(function.sig.return_type))
        call = f"func.call @{function.name}({', '.join(names)}) : ({', '.join(types)}) -> "
        if result is not None:
            return self._operation(call + mlir_type(result), result)
        self.lines.append(call + "()")
        return Value("none")

    def _libdevice(self, function: Callable[..., object], arguments: Sequence[Value]) -> Value:
        if not getattr(function, "__module__", "").endswith("libdevice"):
            raise Unknown(f"a call of {function}")
        result, wanted = signature(function, *(v.type for v in arguments))
        values = ", ".join(self._name(self._converted(v, t)) for v, t in zip(arguments, wanted))
        name, types = f"__nv_{function.__name__}", f"({', '.join(map(mlir_type, wanted))}) -> {mlir_type(result)}"
        self.functions[name] = f"func.func private @{name}{types}"
        return self._operation(f"func.call @{name}({values}) : {types}", result)

    def _builtin(self, word: str, values: Sequence[Value]) -> Value:
        of, types = _BUILTINS[word], {v.type for v in values}
        (type,) = types if len(types) == 1 else ("",)
        if type[:1] not in ("i", "f") or signature(of, *(v.type for v in values))[0] != type:
            raise Unknown(f"{word} of {', '.join(v.type for v in values)}")
        names = ", ".join(map(self._name, values))
        if word != "abs":
            return self._operation(f"arith.{word}{'numf' if type[0] == 'f' else 'si'} {names} : {mlir_type(type)}", type)
        if type[0] == "f":
            return self._operation(f"math.absf {names} : {type}", type)
        zero = self._name(Value(type, number=0))
        negative = self._operation(f"arith.cmpi slt, {names}, {zero} : {type}", "bool").name
        opposite = self._operation(f"arith.subi {zero}, {names} : {type}", type).name
        return self._operation(f"arith.select {negative}, {opposite}, {names} : {type}", type)

    def _local(self, size: ast.expr, element: ast.expr) -> Array:
        count, type = self._value(size).number, TYPES.get(str(self._global(element)), "bool")
        if not isinstance(count, int) or type in ("bool", "f16"):  # which Numba stores otherwise
            raise Unknown(f"an array of {ast.unparse(size)} {ast.unparse(element)}")
        memory, name = self._fresh(), self._fresh()
        kind = f"memref<{count}x{mlir_type(type)}>"
        self.first += [f"{memory} = memref.alloca() : {kind}", f"{name} = memref.cast {memory} : {kind} to {memref(type)}"]
        return Array(type, name, memory, kind)

    def _shared(self, size: ast.expr, element: ast.expr) -> Array:
        """All shared memory of a block, whose size the launch tells."""
        if self._value(size).number != 0 or str(self._global(element)) != "int8":
            raise Unknown("shared memory of a fixed size")
        own = "memref<?xi8, #gpu.address_space<workgroup>>"
        bytes_ = self._operation(f"gpu.dynamic_shared_memory : {own}", "i8").name
        plain = self._operation(f"memref.memory_space_cast {bytes_} : {own} to memref<?xi8>", "i8").name
        return Array("i8", self._operation(f"memref.cast {plain} : memref<?xi8> to {memref('i8')}", "i8").name)

    # ---- types -----------------------------------------------------------------------------------------------------------

    def _converted(self, value: Value, type: str) -> Value:
        """The value in another type, as Numba converts it."""
        if value.type == type:
            return value
        if value.type not in BITS or type not in BITS:
            raise Unknown(f"{value.type} as {type}")
        if value.number is not None:
            return Value(type, number=number_as(value.number, type))
        had, wanted = BITS[value.type], BITS[type]
        from_float, to_float = value.type[0] == "f", type[0] == "f"
        of, to = mlir_type(value.type), mlir_type(type)
        if type == "bool":
            zero = self._name(Value(value.type, number=0))
            how = "arith.cmpf une" if from_float else "arith.cmpi ne"
            return self._operation(f"{how}, {value.name}, {zero} : {of}", type)
        if from_float and to_float:
            operation = "extf" if wanted > had else "truncf"
        elif from_float:
            operation = "fptosi" if type[0] == "i" else "fptoui"
        elif to_float:
            operation = "sitofp" if value.type[0] == "i" else "uitofp"
        elif wanted == had:
            return Value(type, value.name)  # MLIR's integers have no sign
        else:
            operation = "trunci" if wanted < had else "extsi" if value.type[0] == "i" else "extui"
        return self._operation(f"arith.{operation} {value.name} : {of} to {to}", type)

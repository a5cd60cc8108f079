"""All `tilec.*` attributes of the IR, one table: on which operations each stands, of which type, and from which stage to which.

A stage decides or finds something and writes it down; a later stage obeys, and takes the attribute away. `verifier.py` holds
every pass to the table: an attribute that is not in it, stands on another operation, is of another type, or is still there when
the stage that obeys it is over, is a defect of the pass that left it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilec.core import records
from tilec.core.mlir import ir
from tilec.core.opcodes import OPCODES
from tilec.core.records import Malformed

STAGES = ("build", "simplify", "plan", "fuse", "tile", "bufferize", "stage", "map", "emit")
"""The order of stages."""
PREFIX = "tilec."


# ---- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where an operation is computed: its kernel, and the meaning of its dimensions there."""

    kernel: str
    loop_group: int
    dims: tuple[int, ...]
    loops: tuple[int, ...] | None = None
    left: int | None = None

    def write(self, op: ir.Operation) -> None:
        """Each field is an attribute of its own; those of records that hold a placement among other things are not written."""
        for name, attribute in records.to_attributes(self).items():
            if name in records.fields_of(Placement):
                op.attributes[PREFIX + name] = attribute

    @staticmethod
    def of(op: ir.Operation) -> Placement:
        found = {
            name: op.attributes[key] for name in records.fields_of(Placement) if (key := PREFIX + name) in op.attributes
        }
        return records.from_attribute(Placement, ir.DictAttr.get(found))


@dataclass(frozen=True)
class Spread:
    """Kernel dimension `dim`, cut into parts of `part` elements, one for each of a cluster's `blocks`."""

    dim: int
    blocks: int
    part: int


# ---- types -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    """An attribute's type in words, and its test: from the operation and the attribute to the demand that fails, or None."""

    text: str
    wrong: Callable[[ir.Operation, ir.Attribute], str | None]
    by_dim: bool = False
    """The test looks at the dimensions of a linalg.generic."""


def _mark() -> Type:
    return Type("mark", lambda op, a: None if isinstance(a, ir.UnitAttr) else "a mark without a value")


def _word(*allowed: str) -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        found = records.read(attribute, str)
        if found is None:
            return "a word"
        return f"one of {', '.join(allowed)}" if allowed and found not in allowed else None

    return Type(" or ".join(f'"{a}"' for a in allowed) or "word", wrong)


def _number(least: int) -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        found = records.read(attribute, int)
        return None if found is not None and found >= least else f"a whole number of at least {least}"

    return Type(f"number, at least {least}", wrong)


def _amount() -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        number, text = records.read(attribute, int), records.read(attribute, str)
        return None if text is not None or (number is not None and number >= 0) else "a whole number of at least 0, or a text"

    return Type("number, at least 0, or the text of an extent", wrong)


def _own_dim() -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        found = records.read(attribute, int)
        return None if found is not None and 0 <= found < _rank(op) else "one of the operation's dimensions"

    return Type("dimension of the operation", wrong, by_dim=True)


def _numbers(count: int | None = None) -> Type:
    text = "numbers" if count is None else f"{count} numbers"

    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        found = records.read(attribute, tuple)
        return None if found is not None and count in (None, len(found)) else text.replace("numbers", "whole numbers")

    return Type(text, wrong)


def _words(each_dim: bool = False) -> Type:
    text = "a word for each dimension" if each_dim else "words"

    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        found = [records.read(a, str) for a in attribute] if isinstance(attribute, ir.ArrayAttr) else [None]
        return text if None in found or (each_dim and len(found) != _rank(op)) else None

    return Type(text, wrong, by_dim=each_dim)


def _word_by_key(keys: str) -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        right = isinstance(attribute, ir.DictAttr) and all(records.read(e.attr, str) is not None for e in attribute)
        return None if right else "a dictionary of words"

    return Type(f"{{{keys}: word}}", wrong)


def _words_by_key(keys: str) -> Type:
    words = _words()

    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        right = isinstance(attribute, ir.DictAttr) and not any(words.wrong(op, e.attr) for e in attribute)
        return None if right else "a dictionary of lists of words"

    return Type(f"{{{keys}: words}}", wrong)


def _numbers_or_words() -> Type:
    numbers, words = _numbers(), _words()
    return Type("numbers, or words as of `extents`", lambda op, a: numbers.wrong(op, a) and words.wrong(op, a))


def _numbers_by_key(keys: str, *counts: int) -> Type:
    numbers, text = [_numbers(count) for count in counts], " or ".join(map(str, counts))

    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        right = isinstance(attribute, ir.DictAttr) and all(any(not n.wrong(op, e.attr) for n in numbers) for e in attribute)
        return None if right else f"a dictionary of lists of {text} whole numbers"

    return Type(f"{{{keys}: {text} numbers}}", wrong)


def _by_dim(order: bool = False) -> Type:
    """A number for each dimension of the operation, all different; `order`: they are its dimensions."""

    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        found = records.read(attribute, tuple)
        rank = _rank(op)
        if found is None or len(found) != rank or len(set(found)) != rank:
            return f"{rank} different whole numbers, one for each dimension"
        return f"0 to {rank - 1} in some order" if order and set(found) != set(range(rank)) else None

    return Type("an order of the dimensions" if order else "a number for each dimension", wrong, by_dim=True)


def _record(record: type) -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        try:
            records.from_attribute(record, attribute)
        except Malformed as error:
            return str(error)
        return None

    return Type(f"{{{', '.join(records.fields_of(record))}}}", wrong)


def _table_of_kernels() -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        from tilec.kernels import Planned  # imports passes, which import this table

        if not isinstance(attribute, ir.DictAttr):
            return "a dictionary of kernels"
        for entry in attribute:
            try:
                Planned.from_attribute(ir.DictAttr(entry.attr))
            except (Malformed, ValueError) as error:
                return f"for kernel `{entry.name}` {error}"
        return None

    return Type("{kernel: {grid, tile, predicted_us, family: {options}}}", wrong)


def _steps() -> Type:
    def wrong(op: ir.Operation, attribute: ir.Attribute) -> str | None:
        right = isinstance(attribute, ir.ArrayAttr) and all(
            isinstance(step, ir.DictAttr) and all(key in step and records.read(step[key], str) for key in ("rewrite", "operation"))
            for step in attribute
        )
        return None if right else "a list of dictionaries with `rewrite` and `operation`"

    return Type("{rewrite, operation, options} in order", wrong)


def _rank(op: ir.Operation) -> int:
    return len(ir.ArrayAttr(op.attributes["iterator_types"]))


# ---- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attribute:
    """One kind of attribute. `on` are names of operations, or "kernel" and "program" for these functions, "argument" for those
    of functions, "module", "scalar" for arith and math. `first` is the stage that writes it, `last` the one that obeys."""

    name: str
    on: tuple[str, ...]
    type: Type
    first: str
    last: str
    meaning: str


_GENERIC = "linalg.generic"
TABLE: tuple[Attribute, ...] = (
    # the program's
    Attribute("name", (_GENERIC, "memref.alloc", "scf.for", "argument"), _word(), "build", "emit",
              "its name in the source; the names of several results, separated by commas"),
    Attribute("shape", ("argument",), _numbers_or_words(), "build", "emit",
              "its shape in the source, of which neighbouring dimensions are merged here, or one is two"),
    Attribute("sizes", ("program", "kernel"), _numbers_by_key("size", 3, 4), "build", "emit",
              "sizes that vary: the least number and the greatest one, the number of which each is a multiple, and 1 where an "
              "element has the same bits at all of them"),
    Attribute("extents", ("argument",), _words(), "build", "emit",
              "its extents over these sizes, where one of them varies, in Python's notation"),
    Attribute("reduce", (_GENERIC,), _word(), "build", "map",
              "its reduction, such as `sum`; several reductions, separated by commas"),
    Attribute("scan", (_GENERIC,), _own_dim(), "build", "map", "a scan, along this dimension"),
    Attribute("multiplicand", (_GENERIC,), _word(), "build", "fuse",
              "the type that `using` allows a contraction's factors to be rounded to"),
    Attribute("statements", ("module",), _word_by_key("file:line:column"), "build", "emit",
              "the source's text of every statement, which printed kernels have as comments"),
    Attribute("indices", (_GENERIC,), _words(each_dim=True), "build", "fuse", "the source's names of its dimensions"),
    Attribute("donated", ("program",), _numbers(), "build", "simplify",
              "pairs of a result and an input, in whose memory a call has the result: what changes there is all that is stored"),
    Attribute("position", (_GENERIC,), _numbers(2), "simplify", "bufferize",
              "its result is a slab of the tensor that it is inserted into, which a kernel stores there: the dimension that "
              "the slab lacks, and its extent"),
    # the plan's
    Attribute("target", ("module",), _word(), "plan", "emit", "the target of the plan"),
    Attribute("backend", ("module",), _word("cpu", "cuda"), "plan", "emit", "it decides the passes and the printer"),
    Attribute("kernels", ("module",), _table_of_kernels(), "plan", "emit",
              "for each kernel: grid dimensions, tile sizes, predicted time, family and options (`tilec/kernels/`)"),
    Attribute("launches", ("module",), _words_by_key("launch"), "plan", "emit",
              "the kernels of each launch that several share"),
    Attribute("plan_digest", ("module",), _word(), "plan", "emit",
              "a digest of the plan's attributes: a plan that was edited in dumped IR is checked (`tilec/plan/edited.py`)"),
    Attribute("inline", (_GENERIC,), _mark(), "plan", "fuse", "each of its readers computes it again, and it is never stored"),
    Attribute("kernel", (_GENERIC,), _word(), "plan", "fuse", "the kernel that it belongs to"),
    Attribute("loop_group", (_GENERIC,), _number(0), "plan", "fuse",
              "the number of its loop nest; operations of a kernel with the same number share a nest"),
    Attribute("dims", (_GENERIC,), _by_dim(), "plan", "map", "the kernel dimension of each of its own dimensions"),
    Attribute("loops", (_GENERIC,), _by_dim(order=True), "plan", "map",
              "its own dimensions in the order of loops, outermost first"),
    Attribute("left", (_GENERIC,), _number(0), "plan", "map",
              "the number of the factor of its product that has the kernel's rows; 0 where it is not written"),
    Attribute("approximate", ("scalar",), _word(), "plan", "fuse",
              "the fast approximation that takes its place, whose error a rounding hides"),
    Attribute("rewrites", ("module",), _steps(), "plan", "emit",
              "the steps of rewrites that were applied to the program (`tilec/plan/rewrites.py`), with the options of each"),
    Attribute("part", (_GENERIC,), _mark(), "plan", "fuse", "makes the parts of a reduction"),
    Attribute("stored", (_GENERIC,), _number(0), "plan", "fuse",
              "stores a factor of a contraction, of an aligned tensor with so many zeros behind each row"),
    # how the program becomes kernels
    Attribute("slab", (_GENERIC,), _numbers(), "fuse", "bufferize",
              "its result is a part of the tensor that it is inserted into, which a kernel stores there: where it begins along "
              "each dimension, and the extents of the tensor"),
    Attribute("kernel", ("func.func",), _mark(), "fuse", "emit", "a kernel; the other function is the program, which calls them"),
    Attribute("launch", ("func.call",), _word(), "fuse", "emit",
              "the plan's name of a kernel, where the function that it calls has the name of another kernel, which is equal"),
    Attribute("checks", ("func.call",), _word_by_key("message"), "fuse", "emit",
              "the messages of its run-time checks, by those of the function, where they differ"),
    Attribute("form", ("scalar",), _word(), "fuse", "emit", "the form of the function that the backend prints"),
    Attribute("indices", ("kernel",), _words(), "fuse", "emit",
              "the source's names of the kernel's dimensions, \"\" where one has none"),
    Attribute("inplace", ("kernel",), _numbers(), "fuse", "emit",
              "pairs of arguments: an input, and a result that may lie in its memory"),
    Attribute("cut", ("kernel",), _numbers(), "tile", "map",
              "dimensions of which a block has several values: a loop over `i` is called `i_inner`"),
    Attribute("inputs", ("program",), _number(0), "bufferize", "emit",
              "the number of its arguments that are inputs; the others are results"),
    # rows and tiles in memory
    Attribute("spread", ("kernel",), _record(Spread), "stage", "map",
              "a dimension that the blocks of a cluster share, and each block's part"),
    Attribute("stages", (_GENERIC,), _number(0), "stage", "map",
              "an asynchronous copy to workgroup memory, with this number of buffers; 0: one buffer that all tiles share"),
    Attribute("hybrid_chunks", (_GENERIC,), _number(0), "stage", "map",
              "the number of chunks of such a copy that go to registers instead"),
    Attribute("drain_copy", (_GENERIC,), _mark(), "stage", "map", "the copy of a prefetched row into registers"),
    Attribute("transpose", (_GENERIC,), _number(0), "stage", "map",
              "a copy by threads along this kernel dimension, while the kernel's threads lie along another"),
    Attribute("swizzle", ("memref.alloc",), _numbers(2), "stage", "map",
              "workgroup memory in which narrow elements are transposed: elements of a vector, and length of the last dimension"),
    Attribute("lanes", ("linalg.transpose",), _number(1), "stage", "map",
              "the side of the square tiles that are transposed in registers"),
    # kernels
    Attribute("blocks", ("kernel",), _amount(), "map", "emit", "blocks of a launch"),
    Attribute("threads", ("kernel",), _number(1), "map", "emit", "threads of a block"),
    Attribute("cluster", ("kernel",), _number(1), "map", "emit", "blocks of a cluster"),
    Attribute("persistent", ("kernel",), _number(1), "map", "emit",
              "persistent blocks, or clusters: as many as run at a time, a multiple of this number; each computes tile after tile"),
    Attribute("overlap", ("kernel",), _mark(), "map", "emit", "launched while the kernel before it ends"),
    Attribute("unroll", ("scf.for",), _mark(), "map", "emit", "printed as a loop that is written out before it is compiled"),
    Attribute("rolled", ("scf.for",), _mark(), "map", "emit", "stays a loop, whose count LLVM does not know"),
    Attribute("opaque_end", ("scf.for",), _mark(), "map", "emit",
              "stays a loop: LLVM learns its end anew in each iteration, and can neither unroll nor split it"),
    Attribute("branch", ("scf.if",), _mark(), "map", "emit", "stays a branch: no predicated loads, which leave zeros"),
    Attribute("mergeable", ("scf.if",), _mark(), "map", "emit",
              "its branches are printed once where they do the same with other memory"),
    Attribute("returns", ("scf.if",), _mark(), "map", "emit",
              "nothing follows either branch: the first is printed with a return"),
    Attribute("both", ("arith.select",), _mark(), "map", "emit", "both values are computed before one of them is taken"),
    Attribute("words", ("memref.alloca",), _mark(), "map", "emit",
              "a fragment of a matrix: registers of 32 bits, two elements in each"),
    Attribute("halves", ("memref.alloca",), _mark(), "map", "emit", "elements of 16 bits, two of which share a register of 32"),
    Attribute("overlay", ("memref.alloc",), _mark(), "map", "emit",
              "placed at the start of workgroup memory, over tiles that are no longer read"),
    Attribute("stays_clear", ("memref.alloc",), _mark(), "map", "emit",
              "zero between kernels, which leave it so: the program clears it once"),
    Attribute("read", ("vector.load",), _word("again", "last"), "map", "emit",
              "a load of a row that is loaded more than once: whether a later operation loads it again"),
    Attribute("element_steps", ("nvgpu.tma.create.descriptor",), _numbers(), "map", "emit",
              "a box has every so many-th element along each dimension"),
    Attribute("rounded", ("nvgpu.tma.create.descriptor",), _word("tf32"), "map", "emit",
              "the type to which copies of boxes round elements, to nearest"),
    *(Attribute(name, ("func.call",), _record(record), "map", "emit",
                f"a device function, `{record.__name__}` in tilec/core/opcodes.py") for name, record in OPCODES.items()),
)  # fmt: skip


# ---- copies ------------------------------------------------------------------------------------------------------------


def carry_over(source: ir.Operation | ir.OpView, target: ir.Operation | ir.OpView) -> None:
    """Gives an operation that takes another's place its attributes of this table."""
    for name in source.attributes:
        if name.startswith(PREFIX):
            target.attributes[name] = source.attributes[name]

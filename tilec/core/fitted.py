"""Numbers of the cost model that were fitted to measurements of one machine.

Each group is a table of a target file (`[fitted.rows]`), with the text `fitted_to`: the programs that were measured, when, and
the commit that has the numbers. A target without a group takes it from the target that `inherits` names:

    [fitted]                                   [fitted]
    machine = "NVIDIA H200 SXM, 141 GB"        inherits = "h200"

    [fitted.barriers]
    fitted_to = "..."
    block_ns = 160

Units are in the names: `_ns`, `_us`, `_bytes`. A share is a part of 1. Numbers that follow from an instruction set, from the
code that is printed, or from a limit on code size are no measurements: they are constants of the files that use them.

Annotations are evaluated here, as files are checked by them (`target_table.py`).
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeVar

from tilec.core.diagnostics import CallError
from tilec.core.toml_table import expect, parse_table

DEFAULTS = {"cuda": "h200", "cpu": "cpu"}
"""By the kind of a target: the file whose numbers stand for those that a target does not have."""


def number(meaning: str, *, least: float = 0, power: bool = False, without: float | None = None, stands: str = "") -> Any:
    """A field of a group. `least`: the smallest value that makes sense. `power`: only powers of two do. `without`: the value with
    which its term is none, of a number whose term decides plans and whose value within 30 % does not. `stands`: why there is a
    number that changes no plan of the benchmarks (`python -m benchmarks sensitivity`); all others do."""
    rule = {"meaning": meaning, "least": least, "power": power, "without": without, "stands": stands}
    return field(kw_only=True, metadata=rule)


@dataclass(frozen=True)
class Group:
    """Numbers that were fitted together: no target has some of them and inherits the others."""

    name: ClassVar[str]
    kind: ClassVar[str]

    fitted_to: str

    def __init_subclass__(cls, *, name: str, kind: str) -> None:
        cls.name, cls.kind = name, kind
        GROUPS[name] = cls


GROUPS: dict[str, type[Group]] = {}
G = TypeVar("G", bound=Group)


@dataclass(frozen=True)
class Barriers(Group, name="barriers", kind="cuda"):
    """Times of synchronisation, and of the starts of blocks."""

    warp_ns: float = number("a reduction across the threads of a warp", without=0)
    block_ns: float = number("a reduction across the warps of a block")
    cluster_ns: float = number("a reduction across the blocks of a cluster")
    hop_ns: float = number("the time of a word from one SM through L2 to another SM that waits for it")
    start_ns: float = number("from the start of one block on an SM to the start of the next one")


@dataclass(frozen=True)
class RowTimes(Group, name="rows", kind="cuda"):
    """Times of kernels that reduce along rows, a block for one row or several."""

    exposed_alone: float = number("share of a block's arithmetic that nothing hides, if an SM has one block")
    exposed_shared: float = number("the same share, if an SM has several blocks")
    element_us: float = number("time of each element of a thread in one pass, if all blocks run at the same time", without=0)
    ending: float = number("share of a block's time during which the last blocks of a kernel end")
    unwritten: float = number(
        "share of L2 with lines not yet written to memory, at the end of a kernel that reads its rows twice", without=0
    )
    scatter: float = number("share by which reads slow down if blocks are in the middle of their rows, for small accesses")
    scatter_bytes: float = number("bytes of a block's access at which that share is halved", least=1)
    cut_sectors: float = number("time of a sector of memory of which a warp writes a part, over that of a whole one in L2", least=1)
    realigned: float = number(
        "instructions for an element of an operand that begins at other places than unaligned rows",
        stands="reported: times of unaligned rows with a gain",
    )
    evict_row_bytes: float = number(
        "bytes of a row from which the last read of a line allows L2 to evict it early"
    )
    evict_sizes: float = number("size of a kernel's rows, in multiples of L2, from which it does so")


@dataclass(frozen=True)
class RowRegisters(Group, name="row_registers", kind="cuda"):
    """Registers that the assembler takes for kernels that reduce along rows, and the elements that fit a thread."""

    elements: int = number("most elements of a row in a thread's registers", least=2)
    reread_elements: int = number(
        "most elements that a thread loads at a time, of rows that several passes load again", least=1
    )
    packed_elements: int = number(
        "most elements of a row in a thread's registers, if narrow elements are packed", least=1
    )
    base: int = number("registers of a thread in addition to the elements", least=8)
    packed: int = number("the same, for packed elements that are written", least=8)
    loop: int = number("the same, for a loop over chunks of a row with guards", least=8)
    whole_loop: int = number("the same, for a loop over whole chunks of a row", least=8)
    smem: int = number("the same, for rows in shared memory", least=8)
    smem_accesses: int = number("accesses that a thread makes at a time to rows in shared memory", least=2)
    smem_bytes: int = number("bytes of a block's part of a row from which shared memory is considered")


@dataclass(frozen=True)
class SmemRows(Group, name="smem_rows", kind="cuda"):
    """Rows that stay in shared memory between passes. A share is the idle time of memory, as a part of its busy time."""

    cluster: float = number("share, for rows of a cluster")
    cluster_block: float = number(
        "further share for each block of a cluster after the first, if an SM has few blocks"
    )
    hiding_blocks: float = number("blocks an SM from which that further share is 0", least=1)
    common: float = number("further share for each operand that all rows share")
    common_blocks: float = number("number of blocks of a cluster after the first that doubles that share", least=1)
    several: float = number("share, if an SM has several blocks")
    several_common: float = number("part of the share of common operands that several blocks of an SM do not hide")
    alone: float = number("share, if an SM has one block")
    alone_pass: float = number("further share for each pass after the second, if an SM has one block")
    alone_special: float = number(
        "further share for each special function after the first, if an SM has one block",
        stands="reported: times of softmax with one block an SM",
    )
    threads: float = number("threads an SM below which memory is idle for longer")
    idle: float = number("further share, times (`threads` / the threads of an SM - 1)")
    unaligned: float = number("further share, for unaligned rows", stands="reported: times of unaligned rows")
    realigned: float = number(
        "further share for each operand that all unaligned rows share, and each pass after the second",
        stands="reported: times of unaligned rows with a gain",
    )


@dataclass(frozen=True)
class PersistentRows(Group, name="persistent_rows", kind="cuda"):
    """Rows that persistent blocks prefetch. A share is a part of the time that the data of one round of rows move."""

    block: float = number("share for which a round waits, if one or two blocks share a row")
    cluster: float = number("the same share, for larger clusters")
    passes: float = number("passes plus one at which a cluster that writes waits for that share; it waits longer with fewer passes")
    most: float = number("largest factor of that share with fewer passes")
    latencies: float = number("least time that a round waits, in latencies of memory")
    threads: float = number("threads an SM below which a cluster waits longer")
    idle: float = number("further share, times (`threads` / the threads of an SM - 1)", without=0)
    several: float = number("reduction of the share, if an SM has several blocks", without=0)
    large: float = number("further share, for large clusters", without=0)
    large_blocks: float = number("blocks above which a cluster is large")
    last_rounds: float = number("rounds above which a kernel that writes hides a part of the last one")
    last_round: float = number("part of the last round that it does not hide", without=1)
    start_us: float = number("time from the start of a kernel until its pipeline is full", without=0)
    unaligned: float = number(
        "part of the arithmetic on unaligned rows that adds to the time of memory, at a right angle", without=0
    )
    narrow: float = number("the same, for rows of several passes that are read by single elements", without=0)


@dataclass(frozen=True)
class Layouts(Group, name="layouts", kind="cuda"):
    """Threads of the families `points` and `columns`."""

    point_threads: int = number("threads of a block without reductions", least=32, power=True)
    loads: int = number("accesses of a thread in flight at a time", least=1, power=True)
    busy: float = number("time of arithmetic, as a share of memory's, from which a thread has two accesses")
    light_bytes: int = number("bytes of a thread's accesses below which it makes each of them twice")
    window_words: int = number("most registers of a thread for sums, windows and factors of neighbours", least=1)
    warp_clocks: float = number("clocks between two instructions of one warp, in which other warps have theirs")
    latency_ns: float = number("latency of memory, in kernels without barriers between loads", least=1)
    few_blocks: float = number("blocks an SM below which a block of columns is 8 accesses wide")
    line_blocks: float = number("blocks an SM below which it is 16 accesses wide, and above which 32")
    online_line_blocks: float = number("the same, for online reductions")
    split_threads: int = number("threads an SM below which several threads share a column", least=1)


@dataclass(frozen=True)
class Recompute(Group, name="recompute", kind="cuda"):
    """Elements that each pass over a row computes again, instead of keeping them."""

    operations: float = number("most operations of an element that are computed again")
    least: float = number("size of a row, as a share of an SM's registers, above which computed elements are kept")
    most: float = number("size of a row, as a share of an SM's registers, up to which they are kept")


@dataclass(frozen=True)
class ContractionTimes(Group, name="contraction", kind="cuda"):
    """Times of contractions by warps."""

    warp_wait: float = number(
        "share of the vector units' speed for f64 and integers that remains each time the number of warps doubles"
    )
    few_warps: float = number(
        "how much longer vector units take where a scheduler has one warp; with two, half as much, and with more no less", without=0
    )
    load_clocks: float = number("issued instructions of a vector unit that a load of a factor from shared memory takes", without=0)
    convert_operations: float = number(
        "integer operations that the conversion of an element takes on its way to shared memory"
    )
    gather_operations: float = number("integer operations that an element at computed subscripts takes on that way")
    cut_sectors: float = number("time of a sector of memory of which a part is written, over that of a whole one in L2", least=1)
    byte_operations: float = number(
        "integer operations that a number of 8 bits takes that a warp converts where it loads it from shared memory"
    )
    byte_wait: float = number(
        "how much longer they take where a multiprocessor has one block, and where a scheduler has one warp; with more, less"
    )


@dataclass(frozen=True)
class WarpgroupTimes(Group, name="warpgroup_contraction", kind="cuda"):
    """Times of contractions by warpgroups."""

    products: float = number("speed of products within a tile over `sustained.tensor`, before power limits the clock", least=1.0)
    boost_us: float = number("time after which it does")
    smem: float = number("speed of shared memory, over the one at the clock under load")
    l2: float = number("speed of L2 over its `achievable`, as SMs ask for the same tiles at about the same time")
    unaligned: float = number("further lines of 128 bytes of a factor whose rows begin within a line, over its own")
    cluster: float = number("share of time that blocks of a cluster wait for each other", without=0)
    cluster_us: float = number("time that they wait for each other before the first product and after the last", without=0)
    start_us: float = number("time until the first load, beside that of any kernel")
    epilogue: float = number("time of an epilogue's operations, over their time at the vector units' peak")
    tile_us: float = number("time between a tile's last product and the next tile's first, for 128 x 256 elements of 16 bits")
    alone: float = number("that time of a block with a single warpgroup that multiplies, over that of one with two, by elements")
    mma_sync: float = number("time of a contraction by `mma.sync` over the predicted one, where warpgroups can compute it, too")
    piece_operations: float = number("integer operations of a piece that the threads of the producer copy (cp.async)")
    filled: float = number(
        "operations of an element that these threads alone compute, over those where all threads do", without=1
    )
    kept: float = number("time of a kernel whose right factor stays in shared memory, over the predicted one")
    stream_k: float = number("the most that it is of a kernel whose blocks share the steps of tiles, if L2 holds the factors")
    part_us: float = number("time in which a block stores 128 x 256 sums for another one, or adds them", without=0)
    part_wait_us: float = number("time that it waits for the sums of each")
    parts: float = number("time of f32 products by three bf16 parts over that on the vector units, both over their predicted ones")


@dataclass(frozen=True)
class ChainTimes(Group, name="contraction_chain", kind="cuda"):
    """Times of contraction chains."""

    step_us: float = number("idle time of one step between its products")
    reduced_step_us: float = number("the same without a second contraction")
    alternate: float = number(
        "share of the lesser of products and arithmetic that warpgroups which alternate do not hide", without=1
    )
    products: float = number("time of products by `wgmma`, as a share of that at the sustained rate")
    block_us: float = number("time of a block before it loads and after it stores")
    tile_us: float = number("the same of a further tile of a persistent block", without=0)
    start_us: float = number(
        "time of a block before its first product and after its last one, for 128 rows of 2 x 128 elements", without=0
    )
    next_us: float = number("the same of a further tile of a persistent block")
    cut_us: float = number("time of an element of a step in tiles that a mask cuts, where each score is compared")
    step_elements: int = number("most elements of a step; with more, registers spill, or nothing is won", least=32)
    registers: int = number("most registers of a thread for scores, weights and results", least=1)
    third_registers: int = number("the same where three warpgroups multiply, with fewer registers each", least=1)
    warp_step_us: float = number("idle time of one step between its products, by `mma.sync`")
    reduced_warp_step_us: float = number("the same of 64 elements of the inner dimension, without a second contraction")
    warp_shared: float = number("share of the time of shared memory that products by `mma.sync` do not hide")
    warp_arithmetic: float = number("the same of arithmetic")
    warp_first_steps: float = number("first steps of a block whose copies from memory they do not hide")
    warp_copies: float = number("share of a memory's rate at which warps copy tiles that `mma.sync` multiplies", least=0.01)
    part_us: float = number("time that each of the blocks that share rows adds", without=0)
    tile_steps: float = number("steps of a triangle's tile that take as long as its start and its end", without=0)
    beyond_l2: float = number("how much longer persistent blocks with factors that L2 does not hold take")
    load_operations: float = number("instructions of a load of a score's operand, and of its address, which neighbours share")
    exchange_registers: int = number(
        "registers of a thread in which it exchanges with another one what each computed for the other", least=0, without=0
    )
    several_products_registers: int = number("the same where the results of several contractions meet in a weight", least=0)
    several_results_registers: int = number(
        "more of them for each further result", least=0,
        stands="measured: with fewer, ptxas makes the products of two gradients of attention wait for each other",
    )
    at_once_registers: int = number(
        "more registers for data where a step's weights are multiplied at once", least=0,
        stands="measured: the most with which ptxas does not spill in two gradients of attention",
    )
    gathered_registers: int = number(
        "more of them where an operand along the columns is read at computed subscripts, an element at a time", least=0,
        stands="measured: with fewer, ptxas spills in gradients of attention that read such an operand",
    )
    several_products_elements: int = number("most elements of a step there: with more, operands along the columns spill", least=32)
    warp_step_elements: int = number("most elements of a step, by `mma.sync`", least=32)
    warp_registers: int = number("most registers of a thread for scores and results, by `mma.sync` with 16 rows a warp", least=1)
    tall_warp_registers: int = number("the same with 32 rows a warp", least=1)
    warp_other: int = number("other registers of such a thread", least=0)


@dataclass(frozen=True)
class PanelTimes(Group, name="panels", kind="cpu"):
    """Times of the family `panels`, on one core."""

    pack_along_ns: float = number("time to pack an element of a factor that is contiguous along its lanes")
    pack_across_ns: float = number("time to pack an element of a factor that is contiguous along another dimension", without=0)
    gather_ns: float = number("time to pack an element at computed subscripts")
    store_across_ns: float = number("time to store, or add, a sum where vectors of sums lie across the result")
    split_ns: float = number("time to split a packed number of 32 bits into one more part of 16 bits")
    unit_tile_ns: float = number("time of a tile of sums of a matrix unit beside its products")
    unit_exposed_l2: float = number("share of the time in which L2 delivers factors to a matrix unit that its products do not hide")
    loads_per_clock: float = number("vectors, or elements of the left panel, that a register tile loads in a clock", least=0.1)
    forward_clocks: float = number(
        "clocks until a sum that registers do not hold is loaded again after it was stored",
        stands="reported: times of edited register tiles; plans have none with so many sums",
    )
    exposed_l2: float = number("share of the time in which L2 delivers the right panel that arithmetic does not hide")
    block_us: float = number("time to start a block", without=0)


@dataclass(frozen=True)
class LoopTiles(Group, name="loops", kind="cpu"):
    """Tiles of the families `loop_nest` and `register_transpose`."""

    block_elements: int = number("elements of work of a block", least=1)
    piece_bytes: int = number("contiguous bytes of an operand in a tile", least=1)
    transpose_tile: int = number("side of a tile whose operands are contiguous along different dimensions", least=1)


@dataclass(frozen=True)
class NestTimes(Group, name="nests", kind="cpu"):
    """Times of innermost loops, in clocks of one core."""

    scalar_issue: float = number(
        "operations on single elements that a core begins in a clock", least=0.1,
        stands="reported: times of loop nests, by which edits are ordered",
    )
    vector_issue: float = number("operations on whole vectors that it begins in a clock", least=0.1)
    strided_clocks: float = number("clocks of an element that does not lie beside the one before", without=0)
    short_clocks: float = number("clocks of an element of a row that is shorter than some vectors, in a loop that is written out")
    conflict_clocks: float = number(
        "further clocks of such an element whose line L1 has lost since the one before it",
        stands="reported: times of plain loops that plans refuse, and of edits",
    )
    entry_clocks: float = number("clocks of an innermost loop before its first step and after its last one")
    lanes_clocks: float = number(
        "clocks of the lanes of a reduction whose states depend on each other, beside their elements",
        stands="reported: times of loop nests, by which edits are ordered",
    )


@dataclass(frozen=True)
class LoopTimes(Group, name="loop_times", kind="cpu"):
    """How cores wait for memory in the families `loop_nest` and `register_transpose`."""

    lines_at_once: float = number(
        "lines of memory that a core waits for at a time, where no stream leads to them", least=0.1,
        stands="reported: times of loop nests and transposes, by which edits are ordered",
    )


_TORCH = "measured: PyTorch's kernels, with which the front end for PyTorch compares programs"


@dataclass(frozen=True)
class SelectionTimes(Group, name="selection", kind="cpu"):
    """Times of PyTorch's sort and top-k, and of the reductions that stand for a top-k, on one core."""

    swap_ns: float = number("a comparison in PyTorch's sort, with the move of an element and its index", stands=_TORCH)
    select_ns: float = number("an element in PyTorch's top-k", stands=_TORCH)
    chosen_ns: float = number("an element that PyTorch's top-k chooses", stands=_TORCH)
    visit_ns: float = number("an element in the two reductions that choose one of a row", stands=_TORCH)


@dataclass(frozen=True)
class Fitted:
    """The groups of one target, by name. `machine`: the machine that the target's own groups were fitted to. `inherits`: the
    target that the other groups are from. `sources`: the machine of each of these."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    machine: str = ""
    inherits: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def group(self, kind: type[G]) -> G:
        """The group of a type. Raises CallError where the target has none, since it is of another kind."""
        found = self.groups.get(kind.name)
        if not isinstance(found, kind):
            raise CallError(f"the target has no numbers [fitted.{kind.name}]: they are of {kind.kind} targets")
        return found

    def to_dict(self) -> dict[str, object]:
        """The table of a target file: the target's own groups, and the name of the target that has the others."""
        named: dict[str, object] = {"machine": self.machine, "inherits": self.inherits}
        own = {n: asdict(g) for n, g in self.groups.items() if n not in self.sources}
        return {k: v for k, v in named.items() if v} | own

    def inherited(self, name: str) -> "Fitted":
        """All groups as a target that inherits them from the target `name`, which has them, would have them."""
        return Fitted(self.groups, "", name, {n: self.sources.get(n, self.machine) for n in self.groups})

    def __str__(self) -> str:
        """The machines that groups were fitted to, as a sentence; empty where all were fitted to the target itself."""
        if not self.sources:
            return ""
        machines = " and ".join(dict.fromkeys(self.sources.values()))
        own = [n for n in self.groups if n not in self.sources]
        but = f", but for those of {', '.join(own)}" if own else ""
        return f"the cost model's numbers were fitted on {machines}{but}"


class Rated(Protocol):
    """A target, as far as its numbers go."""

    @property
    def kind(self) -> str: ...

    @property
    def fitted(self) -> Fitted: ...


def read_fitted(table: object, kind: str, where: str, target: Callable[[str], "Rated"]) -> Fitted:
    """The numbers of a target of `kind` from the table `[fitted]` of its file, None where it has none. `target` has the built-in
    target of a name. Raises CallError, with the key, for a mistake in the table."""
    table = dict(expect({} if table is None else table, dict, where, "fitted"))
    machine, inherits = (expect(table.pop(n, ""), str, where, f"fitted.{n}") for n in ("machine", "inherits"))
    known = {n: g for n, g in GROUPS.items() if g.kind == kind}
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"known: machine, inherits, {', '.join(known)}"
            raise CallError(f"{where}: unknown key `fitted.{name}` of a {kind} target", hint=hint)
    own = {n: _group(known[n], table[n], where) for n in known if n in table}
    if own and not machine:
        raise CallError(
            f"{where}: `fitted.machine` is missing: the machine that [fitted.{next(iter(own))}] was fitted to"
        )
    if len(own) == len(known):
        return Fitted(own, machine)
    inherits = inherits or DEFAULTS[kind]
    try:
        base = target(inherits)
    except CallError:
        base = None
    if base is None or base.kind != kind:
        raise CallError(f"{where}: `fitted.inherits` is '{inherits}', which is no {kind} target with a file in tilec")
    other = base.fitted.inherited(inherits)
    groups = {n: own.get(n) or other.groups[n] for n in known}
    return Fitted(groups, machine, inherits, {n: s for n, s in other.sources.items() if n not in own})


def _group(kind: type[G], table: object, where: str) -> G:
    key = f"fitted.{kind.name}"
    found: G = parse_table(kind, expect(table, dict, where, key), where, key)
    if not found.fitted_to:
        raise CallError(f"{where}: `{key}.fitted_to` is empty: it says which measurements the numbers are from")
    for f in fields(kind):
        value, rule = getattr(found, f.name), f.metadata
        if rule and value < rule["least"]:
            raise CallError(f"{where}: `{key}.{f.name}` is {value}, and must be {rule['least']} or above")
        if rule and rule["power"] and value & (value - 1):
            raise CallError(f"{where}: `{key}.{f.name}` is {value}, and must be a power of two")
    return found

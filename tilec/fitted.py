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
from typing import Any, ClassVar, TypeVar

from tilec.diagnostics import CallError
from tilec.target_table import expect, parse_table

DEFAULTS = {"cuda": "h200", "cpu": "cpu"}
"""By the kind of a target: the file whose numbers stand for those that a target does not have."""


def number(meaning: str, *, least: float = 0, power: bool = False) -> Any:
    """A field of a group. `least`: the smallest value that makes sense. `power`: only powers of two do."""
    return field(kw_only=True, metadata={"meaning": meaning, "least": least, "power": power})


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
    """How long threads wait for each other."""

    warp_ns: float = number("a reduction across the threads of a warp")
    block_ns: float = number("a reduction across the warps of a block")
    cluster_ns: float = number("a reduction across the blocks of a cluster")
    hop_ns: float = number("a word from one SM, through L2, to another SM that waits for it")


@dataclass(frozen=True)
class RowTimes(Group, name="rows", kind="cuda"):
    """Times of kernels that reduce along rows, a block for one row or several."""

    block_start_ns: float = number("from the start of one block on an SM to the start of the next one")
    exposed_alone: float = number("share of a block's arithmetic that nothing hides, of one block an SM")
    exposed_shared: float = number("the same share, of several blocks an SM")
    element_us: float = number("an element of a thread in one pass, where all blocks run at once")
    ending: float = number("share of a block's time over which the last blocks of a kernel end")
    unwritten: float = number(
        "share of L2 that is not yet written to memory when a kernel ends that reads its rows twice"
    )
    scatter: float = number("share that reads take longer where blocks are in the middle of rows, for small accesses")
    scatter_bytes: float = number("bytes of a block's access at which that share is halved", least=1)
    reread_fits: float = number("share of L2 that the rows of all blocks may take and be found there again")
    reread_misses: float = number("share of these rows that is read from memory again all the same")
    evict_row_bytes: float = number(
        "bytes of a row from which lines that are read for the last time are given up early"
    )
    evict_sizes: float = number("times what L2 holds, from which a kernel's rows are read so")


@dataclass(frozen=True)
class RowRegisters(Group, name="row_registers", kind="cuda"):
    """Registers that the assembler takes for kernels that reduce along rows, and the elements that fit a thread."""

    elements: int = number("elements of a row that a thread holds at most", least=2)
    reread_elements: int = number(
        "elements that a thread reads at a time, at most, of rows that several passes read", least=1
    )
    packed_elements: int = number(
        "elements of a row that a thread holds at most, of narrow rows kept two in a register", least=1
    )
    base: int = number("registers of a thread beside the elements", least=8)
    packed: int = number("the same, where elements are kept two in a register and are written", least=8)
    loop: int = number("the same, of a loop over parts of a row with guards", least=8)
    whole_loop: int = number("the same, of a loop over whole parts of a row", least=8)
    smem: int = number("the same, of rows in shared memory", least=8)
    smem_accesses: int = number("accesses of a thread at a time to rows in shared memory", least=2)
    smem_bytes: int = number("bytes of a block's part of a row from which rows wait in shared memory")


@dataclass(frozen=True)
class SmemRows(Group, name="smem_rows", kind="cuda"):
    """Rows that wait in shared memory from pass to pass: shares of the time that memory moves for which it waits."""

    cluster: float = number("share, of rows that the blocks of a cluster hold together")
    cluster_block: float = number(
        "further share for each block of a cluster after the first, where few blocks share an SM"
    )
    hiding_blocks: float = number("blocks an SM from which that share is 0", least=1)
    common: float = number("further share for each operand that all rows have in common")
    common_blocks: float = number("blocks of a cluster after the first that double that share", least=1)
    several: float = number("share, of several blocks an SM")
    several_common: float = number("part of the share of common operands that several blocks an SM do not hide")
    alone: float = number("share, of one block an SM")
    alone_pass: float = number("further share for each pass after the second, of one block an SM")
    alone_special: float = number("further share for each special function after the first, of one block an SM")
    threads: float = number("threads an SM below which memory waits longer")
    idle: float = number("further share for each time that so many threads are more than those there are")
    unaligned: float = number("further share, of rows that begin anywhere in an access")


@dataclass(frozen=True)
class PersistentRows(Group, name="persistent_rows", kind="cuda"):
    """Rows copied ahead of time by blocks that go from row to row: shares of the time that one round of rows moves."""

    block: float = number("share that a round waits, of rows that one or two blocks hold")
    cluster: float = number("the same share, of larger clusters")
    passes: float = number("passes and one, of which a cluster that writes waits that share; of fewer passes for more")
    most: float = number("times that share, at most, that fewer passes wait")
    latencies: float = number("times the latency of memory that a round waits at least")
    threads: float = number("threads an SM below which a cluster waits longer")
    idle: float = number("further share for each time that so many threads are more than those there are")
    several: float = number("share less, of several blocks an SM")
    large: float = number("further share, of large clusters")
    large_blocks: float = number("blocks above which a cluster is large")
    last_rounds: float = number("rounds above which a kernel that writes hides a part of the last one")
    last_round: float = number("part of the last round that is then not hidden")
    start_us: float = number("from the start of a kernel until its rows follow each other")


@dataclass(frozen=True)
class Layouts(Group, name="layouts", kind="cuda"):
    """How kernels by point and by column are shared by threads."""

    point_threads: int = number("threads of a block without reductions", least=32, power=True)
    loads: int = number("accesses of a thread that are on their way at a time", least=1, power=True)
    busy: float = number("share of memory's time from which arithmetic counts: a thread then has two accesses")
    light_bytes: int = number("bytes of a thread's accesses below which it has two of each")
    few_blocks: float = number("blocks an SM below which a row of a block of columns is 8 accesses wide")
    line_blocks: float = number("blocks an SM below which it is 16 accesses wide, and from which 32")
    online_line_blocks: float = number("the same, where several reductions are one pass")
    split_threads: int = number("threads an SM below which several threads share a column", least=1)


@dataclass(frozen=True)
class Recompute(Group, name="recompute", kind="cuda"):
    """When an element is computed again rather than kept between two passes over a row."""

    operations: float = number("operations of an element, at most, that are computed again")
    least: float = number("share of an SM's registers from which a row is worth keeping as it is stored")
    most: float = number("share of an SM's registers below which it can be")


@dataclass(frozen=True)
class ContractionTimes(Group, name="contraction", kind="cuda"):
    """Times of contractions by warps."""

    warp_wait: float = number(
        "share of the vector units' time that is left when twice as many warps wait for each other"
    )
    convert_operations: float = number(
        "integer operations that converting an element on its way to shared memory takes"
    )
    gather_operations: float = number("integer operations that an element at computed subscripts takes on that way")


@dataclass(frozen=True)
class ChainTimes(Group, name="contraction_chain", kind="cuda"):
    """Two contractions in one pass."""

    step_us: float = number("waits of one step between its products, which nothing hides")
    cut_us: float = number("an element of the pass in tiles that a mask cuts, where each score is compared")
    step_elements: int = number("elements of a step at most: with more, registers spill", least=32)
    registers: int = number("registers of a thread for scores, weights and results at most", least=1)


@dataclass(frozen=True)
class PanelTimes(Group, name="panels", kind="cpu"):
    """Times of contractions by panels, on one core."""

    pack_along_ns: float = number("packing an element of a factor that is contiguous along its lanes")
    pack_across_ns: float = number("packing an element of a factor that is contiguous along another dimension")
    gather_ns: float = number("packing an element at computed subscripts")
    plain_ns: float = number("an f32 product in plain loops that become SIMD")
    block_us: float = number("starting a block")


@dataclass(frozen=True)
class LoopTiles(Group, name="loops", kind="cpu"):
    """Tiles of loop nests."""

    block_elements: int = number("elements of work of a block", least=1)
    piece_bytes: int = number("bytes of an operand that lie together in a tile", least=1)
    transpose_tile: int = number("side of a tile where operands are contiguous along different dimensions", least=1)


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

    def to_dict(self) -> dict[str, Any]:
        """The table of a target file: the target's own groups, and the name of the target that has the others."""
        named = {"machine": self.machine, "inherits": self.inherits}
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


def read_fitted(table: Any, kind: str, where: str, target: Callable[[str], Any]) -> Fitted:
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


def _group(kind: type[G], table: Any, where: str) -> G:
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

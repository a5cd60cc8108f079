"""Runs emitted CUDA kernels without a GPU: they are plain Python, and CUDA threads take turns (`cuda_threads.py`).

Whole numbers in kernels are 64 bits wide, as the compiler of kernels takes them, not Python's, which never wrap around.
Device functions are stand-ins that keep their types (float32 stays float32, integers wrap) and check addresses: an
access outside an array, or a vector that is not aligned, is an error, which takes the place of canary bytes; so is a store
into an argument. Results, temporaries and shared memory hold canaries until they are written. Blocks run one after another.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from contextvars import ContextVar
from functools import partial
from random import Random
from types import ModuleType, SimpleNamespace

import numpy as np
from fuzz.guards import CANARY

from tilec.core.coefficients import NAMED
from tilec.core.conversions import to_odd
from tilec.core.dtypes import DTYPES
from tools.cuda_threads import Meeting, Own, Turns

ACCESS = re.compile(r"(shared_)?(load|store)_([a-z0-9]+?)(?:x(\d+))?(?:_(nc|nc_again|nc_last))?(?:_where)?$")
SHARED = 1 << 40
SEED = ContextVar("SEED", default=0)
"""What the order of threads that may go on is drawn from: some are far behind others, as warps of a GPU may be."""
RESIDENT = 2  # blocks, or clusters, that run at a time: few, so that they go on to further tiles
NUMPY = {
    **{f"int{b}": np.dtype(f"int{b}").type for b in (8, 16, 32, 64)},
    **{f"uint{b}": np.dtype(f"uint{b}").type for b in (8, 16, 32, 64)},
    "float32": np.float32, "float64": np.float64, "boolean": np.bool_,
}  # fmt: skip


def _wrapping(name: str):
    """A conversion to an integer type as in C: integers wrap around."""
    kind, bits = NUMPY[name], int(name.lstrip("uint"))

    def convert(value):
        if type(value) is kind:
            return value
        value = int(value) & ((1 << bits) - 1)
        return kind(value - (1 << bits) if name[0] == "i" and value >> (bits - 1) else value)

    convert.kind = kind
    return convert


CONVERT = {name: _wrapping(name) if "int" in name else kind for name, kind in NUMPY.items()}


class Memory:
    """Arrays at made-up addresses, far from each other."""

    def __init__(self, state: Own) -> None:
        self.arrays: list[np.ndarray] = []
        self.state = state  # of the thread that asks

    def add(self, array: np.ndarray) -> int:
        self.arrays.append(array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8))
        return len(self.arrays) << 32

    def bytes_at(self, address: int, count: int) -> np.ndarray:
        assert not getattr(self.state, "waits", False), "memory is used before the kernel ahead is complete"
        number, offset = int(address) >> 32, int(address) & 0xFFFFFFFF
        assert 0 < number <= len(self.arrays), f"{address:#x} is no array's address"
        array = self.arrays[number - 1]
        assert 0 <= offset <= len(array) - count, f"{count} bytes at {offset} of {len(array)}"
        return array[offset : offset + count]


class Block:
    """One block while it runs: its shared memory, and where its threads meet."""

    def __init__(self, threads: int, shared: int, memory: Memory):
        self.shared = np.full(shared, CANARY, np.uint8)
        self.memory = memory
        self.barrier = Meeting(threads)
        self.warps = [Meeting(min(32, threads - 32 * w)) for w in range(-(-threads // 32))]
        self.threads = threads
        self.rooms: dict[tuple[int, int], tuple[list, Meeting, list]] = {}

    def bytes_at(self, address: int, count: int) -> np.ndarray:
        if address < SHARED:
            return self.memory.bytes_at(address, count)
        offset = int(address) - SHARED
        assert 0 <= offset <= len(self.shared) - count, f"{count} bytes at {offset} of shared memory"
        return self.shared[offset : offset + count]

    def access(self, dtype, count: int, address: int) -> np.ndarray:
        assert address % (count * dtype.itemsize) == 0, f"{count} x {dtype} at {address:#x} is not aligned"
        return self.bytes_at(address, count * dtype.itemsize).view(dtype)


class Intrinsics(ModuleType):
    """Stands where `tilec.runtime.cuda.intrinsics` does; `state` holds each thread's block and number."""

    def __init__(self) -> None:
        super().__init__("tilec.runtime.cuda.intrinsics")
        self.state = Own()
        local = SimpleNamespace(array=lambda n, kind: np.full(n, 77, getattr(kind, "kind", kind)))
        shared = SimpleNamespace(array=lambda n, kind: None)
        index = lambda name: property(lambda _: SimpleNamespace(x=np.int32(getattr(self.state, name))))  # noqa: E731
        places = {"threadIdx": index("thread"), "blockIdx": index("number"), "gridDim": index("launched")}
        kind = type("Cuda", (), places)
        self.cuda = kind()
        self.cuda.local, self.cuda.shared = local, shared
        self.cuda.syncthreads = lambda: self._meet(self.state.block.barrier)
        self.named_barrier = lambda number, threads: self._meet(self._named(number, threads))
        self.__dict__.update({f"part_end_{n}": lambda: None for n in range(1, 8)})
        self.shared_address = lambda _: SHARED
        self.rolled = self.opaque = lambda count: count
        self.unrolled = lambda *bounds: map(np.int64, range(*bounds))

    def within_i32(self, index):
        assert -(2**31) <= int(index) < 2**31, f"the index {index} is not within 32 bits"
        return index if type(index) is np.int64 else np.int64(index)

    def within_u31(self, index):
        assert 0 <= int(index) < 2**31, f"the index {index} is negative or not within 31 bits"
        return index if type(index) is np.int64 else np.int64(index)

    def multiply_wide_u32(self, a, b):
        return np.uint64((int(a) & 0xFFFFFFFF) * (int(b) & 0xFFFFFFFF)).astype(np.int64)

    def low_word(self, value):
        return np.int64(value).astype(np.int32)

    def _named(self, number, threads) -> Meeting:
        """Of those who wait and of those who only arrive."""
        known = self.state.block.__dict__.setdefault("named", {})
        return known.setdefault(int(number), Meeting(int(threads)))

    def _meet(self, meeting: Meeting) -> None:
        meeting.wait(self.state.turns)

    def __getattr__(self, name: str):
        if name in CONVERT:
            return CONVERT[name]
        if name in NAMED:
            return NAMED[name]
        if match := ACCESS.match(name):
            return self._access(*match.groups())
        if name.startswith("shuffle_"):
            return partial(self._shuffle, name.split("_")[1])
        stem, _, kind = name.rpartition("_")
        if kind in ("f32", "f64", "bf16", "f16", "f8e4m3", "f8e5m2") and stem in SCALAR:
            return _typed(SCALAR[stem], kind)
        if stem == "f32_from":
            bits = int(kind[1:])
            integer = getattr(np, f"{'u' * (kind[0] == 'u')}int{bits}")
            return lambda value: np.float32(np.array([int(value) & (1 << bits) - 1]).astype(f"uint{bits}").view(integer)[0])
        if stem in ("max", "min"):  # of unsigned integers
            return lambda a, b: CONVERT[f"uint{kind[1:]}"]({"max": max, "min": min}[stem](a, b))
        if stem == "unsigned":
            return CONVERT[f"uint{kind[1:]}"]
        if name == "round_tf32":
            return lambda value: ((np.array([value], np.float32).view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)[0]
        if name == "f32_odd":
            return lambda value: to_odd(np.array([value]))[0]
        if stem == "round":
            return lambda value: np.float32(np.float32(value).astype(DTYPES[kind].numpy))
        raise AttributeError(name)

    def grid_wait(self) -> None:
        self.state.waits = False

    def grid_release(self) -> None:
        assert not self.state.waits, "it lets the next kernel come, and has not waited for the one before"

    def publish_i64(self, address, word) -> None:
        self.state.block.access(np.dtype(np.int64), 1, int(address))[0] = word

    def observe_i64(self, address):
        """Blocks run one after another, so that a word that is missing never comes."""
        word = self.state.block.access(np.dtype(np.int64), 1, int(address))[0]
        assert word, "a block waits for one with a higher number"
        return np.int64(word)

    def fence_gpu(self) -> None:
        """Blocks run one after another, and see what those before have stored."""

    def _access(self, shared, action, dtype, count, hint):
        kind, register = DTYPES[dtype].numpy, np.float32 if DTYPES[dtype].bits < 32 and DTYPES[dtype].is_float else None

        def cells(address, n=1):
            address = int(address)  # Python's numbers are compared and divided faster
            assert (address >= SHARED) == bool(shared)
            assert not hint or address >> 32 not in self.state.made, "the kernel ahead writes this meanwhile"
            return self.state.block.access(kind, n, address)

        def load(address):
            return (register or kind.type)(cells(address)[0])

        def store(address, value):
            cells(address)[0] = value

        def load_vector(array, at, address, condition=True):
            array[at : at + int(count)] = cells(address, int(count)) if condition else 0

        def store_vector(array, at, address):
            cells(address, int(count))[:] = array[at : at + int(count)].astype(kind)

        if count:
            return load_vector if action == "load" else store_vector
        return load if action == "load" else store

    def _shuffle(self, mode, value, mask):
        lane, mask = self.state.thread % 32, int(mask)
        source = {"xor": lane ^ mask, "up": lane - mask if lane >= mask else lane, "index": mask}[mode]
        return self._fused(32, value, list)[source]

    def _fused(self, width: int, mine, compute):
        """All threads of a group of `width` give `mine`; the last computes, and all get the result."""
        block, (group, place) = self.state.block, divmod(self.state.thread, width)
        if (width, group) not in block.rooms:
            count = min(width, block.threads - width * group)
            block.rooms[width, group] = [None] * count, Meeting(count), [None]
        given, meeting, result = block.rooms[width, group]
        given[place] = mine
        if meeting.arrive(self.state.turns):
            result[0] = compute(given)
        else:
            self.state.turns.wait(meeting.others)
        return result[0]


def _typed(function, kind: str):
    wide = np.float64 if kind == "f64" else np.float32
    return lambda *values: _cast(function(*map(np.float64, values)), wide)


def _cast(value, kind):
    return bool(value) if isinstance(value, (bool, np.bool_)) else kind(value)


SCALAR = {
    **{n: getattr(np, n) for n in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos")},
    **{n: getattr(np, n) for n in ("tan", "tanh", "fabs", "ceil", "floor", "rint", "maximum", "minimum", "fmod")},
    **{n: getattr(np, n) for n in ("sinh", "cosh", "trunc", "copysign")},
    **{f"a{n}": getattr(np, f"arc{n}") for n in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    "erfc": lambda x: math.erfc(x) if x == x else x,
    "exp2_approx": np.exp2, "tanh_approx": np.tanh, "log2_approx": np.log2, "sqrt_approx": np.sqrt,
    **{f"{f.__name__}_{form}": f for f in (np.sin, np.cos) for form in ("approx", "short", "absolute")},
    "reciprocal_approx": lambda x: 1 / x, **dict.fromkeys(("divide_approx", "divide_rounded"), lambda a, b: a / b),
    "rsqrt": lambda x: 1 / np.sqrt(x), "erf": lambda x: math.erf(x) if x == x else x, "pow": np.power,
    "fma": lambda a, b, c: a * b + c, "not_equal": lambda a, b: bool(a != b), "is_nan": lambda a: bool(a != a),
}  # fmt: skip


class _Numbers(ast.NodeTransformer):
    """Each whole number in a function becomes the name of a NumPy scalar, which `values` holds."""

    def __init__(self) -> None:
        self.values: dict[str, np.integer] = {}

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self._named(node.value) if type(node.value) is int else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
                return self._named(-value)  # of -2**63, the operand alone has too many bits
        return self.generic_visit(node)

    def _named(self, value: int) -> ast.expr:
        name = f"number_{value}".replace("-", "minus_")
        self.values[name] = np.int64(value) if value < 1 << 63 else np.uint64(value)
        return ast.Name(name, ast.Load())


def numbered(text: str) -> dict:
    """What a module of kernels defines."""
    module, numbers = ast.parse(text), _Numbers()
    module.body = [numbers.visit(s) if isinstance(s, ast.FunctionDef) else s for s in module.body]
    namespace = numbers.values | {"range": lambda *bounds: map(np.int64, range(*bounds))}
    exec(compile(ast.fix_missing_locations(module), "<kernels>", "exec"), namespace)
    return namespace


def run(
    emitted, inputs: list[np.ndarray], outputs: list[np.ndarray], intrinsics: type = Intrinsics,
    shared: dict[int, int] | None = None,
) -> list[int]:  # fmt: skip
    """Runs a program; returns the sites of failed checks, by kernel launch. `shared`: outputs that are inputs' memory, which they
    have the values of."""
    module = intrinsics()
    memory = Memory(module.state)
    for array in (a for k, a in enumerate(outputs) if k not in (shared or {})):
        array.reshape(-1).view(np.uint8)[...] = CANARY
    slots = {
        "input": [memory.add(_read_only(a)) for a in inputs],
        "output": [memory.add(a) for a in outputs],
        "temporary": [memory.add(np.full(t.bytes, 0 if t.stays_clear else CANARY, np.uint8)) for t in emitted.temporaries],
    }
    for output, input_ in (shared or {}).items():
        slots["input"][input_] = slots["output"][output]
    saved = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        namespace = numbered(emitted.module)
    finally:
        sys.modules[module.__name__] = saved
        if saved is None:
            del sys.modules[module.__name__]
    kernels, failed, made = {k.name: k for k in emitted.kernels}, [], set()
    for step in emitted.steps:
        addresses = [slots[s.kind][s.number] for s in step.slots]
        if step.kernel is None:
            source = memory.bytes_at(addresses[0], step.bytes) if len(addresses) > 1 else 0
            memory.bytes_at(addresses[-1], step.bytes)[:] = source
            continue
        kernel, errors = kernels[step.kernel], np.zeros(1, np.int32)
        addresses += [(m, addresses[m.parameter]) for m in kernel.maps]
        addresses += map(np.int64, step.sizes)
        if kernel.sites:
            addresses.append(memory.add(errors))
        module.made = made.copy() if kernel.overlap else set()
        made |= {a >> 32 for a, s in zip(addresses, step.slots) if s.kind != "input"}
        launched = min(kernel.grid, RESIDENT * kernel.cluster) if kernel.persistent else kernel.grid
        for first in range(0, launched, kernel.cluster):
            _run_blocks(module, namespace[kernel.name], kernel, first, launched, addresses, memory)
        failed.append(int(errors[0]))
        for t, address in zip(emitted.temporaries, slots["temporary"]):
            assert not (t.stays_clear and memory.bytes_at(address, t.bytes).any()), "the kernel leaves flags behind"
    return failed


def _read_only(array: np.ndarray) -> np.ndarray:
    view = np.ascontiguousarray(array)[...]
    view.flags.writeable = False
    return view


def _run_blocks(
    module: Intrinsics, function, kernel, first: int, launched: int, addresses: list[int], memory: Memory
) -> None:
    """A block, or the blocks of a cluster, which run at the same time."""
    blocks = [Block(kernel.threads, kernel.shared, memory) for _ in range(kernel.cluster)]
    meeting = Meeting(kernel.threads * kernel.cluster)

    def work(rank: int, thread: int) -> None:
        state = module.state
        state.forget()
        state.turns, state.block, state.thread, state.number = turns, blocks[rank], thread, first + rank
        state.blocks, state.launched, state.meeting = blocks, launched, meeting
        state.waits, state.made = kernel.overlap, module.made
        with np.errstate(all="ignore"):
            function(*addresses)

    tasks = (partial(work, r, t) for r in range(kernel.cluster) for t in range(kernel.threads))
    turns = Turns(tasks, Random(f"{SEED.get()} {kernel.name} {first}"))
    turns.run()

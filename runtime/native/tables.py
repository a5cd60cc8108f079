"""Tables of 64-bit words: Python writes them, and the machine code of `runtime/native/cpu.py` reads them."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from enum import IntEnum, auto
from functools import cache

from tilec.runtime.program import Amount

VARIABLE = "TILEC_NATIVE_CALLS"


@cache
def native_calls() -> bool:
    """Whether machine code runs programs (docs/native_calls.md): on CPython, unless TILEC_NATIVE_CALLS is 0. Read once."""
    return os.environ.get(VARIABLE, "1") != "0" and sys.implementation.name == "cpython"


NODE = 128  # bytes of a workspace's head, whose first word links it to the next free one, and whose second has its bytes
STEP, CALL = 14, 12  # of a failure on a GPU: bits where the numbers of its step and of the function begin
QUEUE, ENCODE, WAIT, CAPTURING = range(4)  # functions that launch, copy or clear; and functions of `DeviceProgram`


class _Fields(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


class Program(_Fields):
    """`offsets` of temporaries, in the arrays of the numbers `begins`, or, where that is the temporary's own, in the workspace of
    `workspace` bytes; the word at `free` heads the list of workspaces, `allocate(workspace, bytes)` makes one in place of one that
    is too small, or of 0; `fail(code)` raises a failed check's error."""

    steps = auto()
    step_list = auto()
    arrays = auto()
    temporaries = auto()
    begins = auto()
    offsets = auto()
    parameters = auto()  # the most that a step has
    workspace = auto()
    free = auto()
    allocate = auto()
    fail = auto()
    pool = auto()


class Step(_Fields):
    """`loop` 0 copies `bytes` from the first slot to the second, as that of `runtime/native/copy.py` does with several threads.
    `sizes` words at `size_list` follow the addresses in `slots`. `scratch` is an offset in the workspace."""

    loop = auto()
    bytes = auto()
    parameters = auto()
    slots = auto()
    sizes = auto()
    size_list = auto()
    grid = auto()
    scratch = auto()
    stride = auto()


class DeviceProgram(_Fields):
    """Work for GPU number `device`, by functions of its driver: `current` (cuCtxGetDevice), `launch` (cuLaunchKernelEx),
    `encode` (cuTensorMapEncodeTiled), `copy` and `clear` (cuMemcpyDtoDAsync, cuMemsetD8Async), `capturing`
    (cuStreamIsCapturing), `wait` (cuStreamSynchronize). `fail(code)` raises the error of one of them.

    Where `spaced`, the word at `spaces` heads the list of its streams' spaces, and `space(stream)` gives one that is not in it.
    A space has addresses of so many `temporaries`, or offsets in the arrays of the numbers `begins`, and so many words for failed
    `checks` at run time, which are looked at before the launch where `deferred_checks` is set, else after each kernel."""

    device = auto()
    current = auto()
    launch = auto()
    encode = auto()
    copy = auto()
    clear = auto()
    capturing = auto()
    wait = auto()
    fail = auto()
    steps = auto()
    step_list = auto()
    parameters = auto()  # words of the largest step's
    arrays = auto()
    temporaries = auto()
    begins = auto()
    spaced = auto()
    spaces = auto()
    space = auto()
    checks = auto()
    deferred_checks = auto()


class DeviceStep(_Fields):
    """`config`: a CUlaunchConfig that lacks the stream. The `bytes` of parameters begin with the addresses in `slots`; after
    them come tensor maps, at `sized` the `sizes` words at `size_list`, and, at `check` unless that is 0, the address of `word` of
    the space's errors. Without a `kernel`, `bytes` are copied from the first slot to the second, or cleared in the only one."""

    kernel = auto()
    config = auto()
    bytes = auto()
    addresses = auto()
    slots = auto()
    maps = auto()
    map_list = auto()
    sized = auto()
    sizes = auto()
    size_list = auto()
    check = auto()
    word = auto()


class DeviceMap(_Fields):
    """A tensor map of the tensor at the step's address number `parameter`; it goes to `offset` among the parameters. The rest
    is what cuTensorMapEncodeTiled takes, in its order."""

    parameter = auto()
    offset = auto()
    dtype = auto()
    rank = auto()
    sizes = auto()
    pitches = auto()
    boxes = auto()
    steps = auto()
    interleave = auto()
    swizzle = auto()
    promotion = auto()
    fill = auto()


class DeviceSpace(_Fields):
    """State that calls on one `stream` share: the addresses of `temporaries`, host memory for `errors`. `acquire()` and `release()`
    are the lock's of all programs whose temporaries lie there, `report()` raises the error that a check found."""

    next = auto()
    stream = auto()
    temporaries = auto()
    errors = auto()
    acquire = auto()
    release = auto()
    report = auto()


class Pool(_Fields):
    """`run`, `share` and `help` are functions of `runtime/native/pool.py`. A launch has at most `limit` threads, for which programs
    have scratch memory. `most`: the address of a word that bounds them, too; `theirs`: of one that is 0, or the address of a
    function that bounds them. So many helpers are `started`. `mask`: 0, or pthread_sigmask, with its arguments. `clock`: 0, or
    clock_gettime, and pthread_getcpuclockid. `team`: of a `Team`."""

    run = auto()
    share = auto()
    help = auto()
    limit = auto()
    most = auto()
    theirs = auto()
    started = auto()
    helpers = auto()
    slots = auto()
    slot_bytes = auto()
    mask = auto()
    mask_how = auto()
    mask_all = auto()
    clock = auto()
    clock_of = auto()
    team = auto()


class Team(_Fields):
    """PyTorch's threads, for `runtime/native/team.py`. `parallel`: the address of a word that is 0, or the address of OpenMP's
    function that has its threads call one of ours, `join`. The team of the thread `caller` has a thread with the clock `worker`,
    which had run for `ran` nanoseconds when it was `looked` at, and most of the time `since` a moment. It has the launches `until`
    another one, and then those of a phase of `span`. `wanted`: the thread whose team is to be known."""

    parallel = auto()
    join = auto()
    caller = auto()
    worker = auto()
    looked = auto()
    ran = auto()
    since = auto()
    until = auto()
    span = auto()
    wanted = auto()


class Helper(_Fields):
    """A thread of the `pool`, which others write to while it is `asleep`: it waits for `lock`."""

    pool = auto()
    asleep = auto()
    lock = auto()


class Slot(_Fields):
    """What `runtime/native/pool.py` knows of a launch; then comes a line of memory for the counter of each range. A caller that
    waits for helpers sleeps at `lock`. Of a launch by a team: who the `caller` is, and when it was `done` with its blocks."""

    taken = auto()
    state = auto()
    loop = auto()
    data = auto()
    grid = auto()
    ranges = auto()
    parts = auto()
    scratch = auto()
    stride = auto()
    lock = auto()
    pool = auto()
    caller = auto()
    done = auto()


class Call(_Fields):
    """`execute(program, memory, stream)` runs the program on `words` words, of which the first are addresses of inputs and
    outputs. `kind`: the arrays' type; `like`: another one that counts as it, or 0; `describe` 0 for NumPy, else the exchange API's
    function. `device`: DLPack's type and number. `current`: 0, or the exchange API's function that tells the stream;
    `handle(stream)` gives that of an object.
    `new`: functions that allocate results; `wrap` makes one value of several; `no` is returned where the arrays do not fit."""

    execute = auto()
    program = auto()
    words = auto()
    device = auto()
    current = auto()
    handle = auto()
    kind = auto()
    like = auto()
    describe = auto()
    inputs = auto()
    outputs = auto()
    specs = auto()
    new = auto()
    wrap = auto()
    no = auto()
    requires_grad = auto()  # names of attributes
    is_neg = auto()
    records = auto()  # whether gradients are recorded
    none = auto()  # objects of Python's
    false = auto()
    tuple = auto()
    list = auto()


class Prepared(_Fields):
    """A call of a program with tensors of PyTorch's, which was decided when a graph was compiled. `takes`: for each input, which of
    the `values` of the call it is. `into`: for each result, the value that it is written into; -1 where a function of `new`
    allocates it. `otherwise` is called with the values where they do
    not fit. All else as for `Call`."""

    execute = auto()
    program = auto()
    words = auto()
    device = auto()
    current = auto()
    kind = auto()
    like = auto()
    describe = auto()
    values = auto()
    inputs = auto()
    outputs = auto()
    takes = auto()
    into = auto()
    specs = auto()
    new = auto()
    otherwise = auto()


class Spec(_Fields):
    """An array that fits: `dtype` as its kind writes it, `mask` of the address' low bits, needed `flags` of NumPy's; `strides` in
    elements, of a tensor's dimensions that have more than one."""

    dtype = auto()
    order = auto()
    mask = auto()
    bytes = auto()
    flags = auto()
    rank = auto()
    shape = auto()
    strides = auto()


class KeepAlive:
    """Tables, and the objects whose addresses they hold, with the lifetime of this object."""

    def __init__(self) -> None:
        self._all: list[object] = []

    def object(self, value: object) -> int:
        """A Python object's address."""
        self._all.append(value)
        return id(value)

    def words(self, values: Sequence[Amount]) -> int:
        """The address of a row of words."""
        row = (ctypes.c_int64 * max(1, len(values)))(*values)
        self._all.append(row)
        return ctypes.addressof(row)

    def table(self, fields: type[_Fields], /, **values: Amount) -> int:
        """The address of a table of this kind; fields that are not given are 0."""
        return self.words([values.get(field.name, 0) for field in fields])

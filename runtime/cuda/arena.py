"""Memory for temporaries that all programs of a stream share. It grows in place, so that no address in it ever changes.

A stream runs programs one after another, and none reads what another left in its temporaries: they can be one memory, as large
as the largest program needs. An arena reserves addresses for as much as the device has, and puts memory behind the first of
them as programs need it (the driver's virtual memory management). So nothing is copied, moved or freed when it grows, launches
that are queued and graphs that were captured go on reading what they were given, and as much is held as the largest program
takes, in whatever order programs come.

Where a device has no such addresses, a program that needs more than there is gets a new block, which later programs share;
those before it keep theirs.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from tilec.runtime.cuda import driver

if TYPE_CHECKING:
    from cuda.bindings import driver as bindings

workspaces: Counter[int] = Counter()
"""Bytes of device memory that are held for temporaries of programs, by device: what programs need, as PyTorch counts what its
allocator gave out, and not the driver's granules (2 MiB) that hold it."""

_PER_THREAD = 2  # CU_STREAM_PER_THREAD: one handle, and a stream for each thread
_changing = threading.Lock()


class Arena:
    """Who launches kernels that use it holds `lock` until all of a program's are queued: another thread's must not come in
    between."""

    def __init__(self, device: int):
        self.lock, self.held, self.needed = threading.Lock(), 0, 0
        self._device, self._begin, self._reserved = device, 0, 0

    def take(self, size: int) -> int:
        """The address of `size` bytes, which are others', too. They stay there as long as the process lives."""
        with _changing:
            if size > self.held and not self._extend(size):
                self._begin, self.held, self._reserved = allocate(self._device, size), size, 0
            elif size > self.needed:
                workspaces[self._device] += size - self.needed
            self.needed = max(size, self.needed)
            return self._begin

    def _extend(self, size: int) -> bool:
        """Puts memory behind further addresses; False where they do not go on, or there cannot be any."""
        granule = _granule(self._device)
        if granule and not self._begin:
            self._reserve(granule)
        if size > self._reserved:
            return False
        more = -(-(size - self.held) // granule) * granule
        try:
            _map(self._device, self._begin + self.held, more)
        except driver.OutOfMemory:
            raise
        except driver.CudaError:  # a virtual GPU may say that it can, and refuse
            return False
        self.held += more
        return True

    def _reserve(self, granule: int) -> None:
        size = -(-driver.call("cuDeviceTotalMem", self._device) // granule) * granule
        try:
            self._begin = int(driver.call("cuMemAddressReserve", size, 0, 0, 0))
        except driver.CudaError:  # addresses have run out, or the process may not have so many
            return
        self._reserved = size


def allocate(device: int, size: int) -> int:
    """The address of device memory that is never freed: a captured graph that reads it may live for as long as the process."""
    memory = driver.allocate(size)
    workspaces[device] += size
    return memory


# ---- arenas of streams -----------------------------------------------------------------------------------------------

_arenas: dict[tuple[int, Hashable], Arena] = {}
_captures = threading.local()
_owners: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_numbers = count()


@contextmanager
def replayed_in_order(owner: Any) -> Iterator[None]:
    """Of what this thread captures meanwhile: all graphs that are captured for `owner` on one stream are replayed one after
    another, never two at once. So they share an arena."""
    outside, _captures.owner = getattr(_captures, "owner", None), owner
    try:
        yield
    finally:
        _captures.owner = outside


def arena_of(device: int, stream: int, capture: int) -> Arena:
    """The arena of a stream; of a graph that is being captured on it, where `capture` numbers the capture. Such a graph may run
    beside later work of the stream, and beside any other graph unless `replayed_in_order` says otherwise."""
    order: tuple[Hashable, ...] = ("stream",)
    if stream == _PER_THREAD:
        order += ("thread", threading.get_ident())
    owner = getattr(_captures, "owner", None)
    with _changing:
        if capture and owner is not None:
            if owner not in _owners:
                _owners[owner] = next(_numbers)
            order += ("owner", _owners[owner])
        elif capture:
            order += ("capture", capture)
        key = device, (*order, stream)
        if key not in _arenas:
            _arenas[key] = Arena(device)
        return _arenas[key]


def lasting(stream: int) -> bool:
    """Whether a handle is always the same stream."""
    return stream != _PER_THREAD


# ---- virtual memory management ---------------------------------------------------------------------------------------


@cache
def _granule(device: int) -> int:
    """Memory is put behind so many addresses at a time; 0 where that cannot be done."""
    if not driver.attribute("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", device):
        return 0
    recommended = driver.library().CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    try:
        return int(driver.call("cuMemGetAllocationGranularity", _properties(device), recommended))
    except driver.CudaError:
        return 0


def _properties(device: int) -> bindings.CUmemAllocationProp:
    """Of memory of the device."""
    cuda = driver.library()
    made = cuda.CUmemAllocationProp()
    made.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type, made.location.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
    return made


def _map(device: int, begin: int, size: int) -> None:
    """Puts memory behind addresses. Where that fails, there is none."""
    cuda, properties = driver.library(), _properties(device)
    access = cuda.CUmemAccessDesc()
    access.location, access.flags = properties.location, cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    handle = driver.call("cuMemCreate", size, properties, 0)
    try:
        driver.call("cuMemMap", begin, size, 0, handle, 0)
        try:
            driver.call("cuMemSetAccess", begin, size, [access], 1)
        except driver.CudaError:
            cuda.cuMemUnmap(begin, size)
            raise
    finally:
        cuda.cuMemRelease(handle)  # what is mapped stays until it is unmapped

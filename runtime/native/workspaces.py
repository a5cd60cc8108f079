"""Memory for calls on the CPU that go on at a time: for a program, or for all that a class of sizes is at some of them."""

from __future__ import annotations

import ctypes

import numpy as np

from tilec.runtime import host_memory
from tilec.runtime.native.tables import NODE


class Workspaces:
    """As many as calls went on at a time. Each is as large as any call needed so far, or is made anew where it is needed next.

    `free`: the address of the word that heads the list of those that no call has, for machine code.
    """

    def __init__(self) -> None:
        self._memory: dict[int, np.ndarray] = {}
        self._head, self._largest = ctypes.c_int64(0), 0
        self.free = ctypes.addressof(self._head)
        self._rest: list[int] = []  # that no call has, without machine code; a list's `append` and `pop` are atomic

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(memory.nbytes for memory in list(self._memory.values()))

    def allocate(self, small: int, size: int) -> int:
        """The address of a workspace of so many bytes. That of the address `small`, if it is not 0, is freed first."""
        self._memory.pop(small, None)
        self._largest = size = max(size, self._largest)
        memory, start = host_memory.allocate(NODE + size)
        self._memory[start] = memory
        ctypes.c_int64.from_address(start + 8).value = size
        return start

    def take(self, size: int) -> int:
        """A workspace of a call, without machine code."""
        try:
            found = self._rest.pop()
        except IndexError:
            return self.allocate(0, size)
        return found if ctypes.c_int64.from_address(found + 8).value >= size else self.allocate(found, size)

    def give(self, workspace: int) -> None:
        """Has another call take it."""
        self._rest.append(workspace)

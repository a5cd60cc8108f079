"""The emulator's stand-ins for clusters of blocks and for rows kept as they are stored."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from tilec.core.dtypes import DTYPES
from tools.cuda_emulator import SHARED
from tools.cuda_matrix_emulator import MatrixIntrinsics

REMOTE = 1 << 48  # above it, shared memory of a cluster's blocks by their rank
SENT = re.compile(r"remote_store_async_(f32|f64|i32|i64)$")


class RowIntrinsics(MatrixIntrinsics):
    def __init__(self) -> None:
        super().__init__()
        state = self.state
        self.cluster_rank = lambda: np.int32(state.blocks.index(state.block))
        self.cluster_id = lambda: np.int32(state.number // len(state.blocks))
        self.cluster_count = lambda: np.int32(state.launched // len(state.blocks))
        self.cluster_arrive = lambda: None
        self.cluster_wait = lambda: self._meet(state.meeting)
        self.map_shared = lambda address, rank: REMOTE * (int(rank) + 1) + int(address) - SHARED
        self.mbarrier_arrive_remote = self._arrive_remote

    def __getattr__(self, name: str):
        if match := SENT.match(name):
            return partial(self._send, DTYPES[match[1]].numpy)
        return super().__getattr__(name)

    def _send(self, dtype, address: int, value, barrier: int) -> None:
        """A store into another block, whose mbarrier counts its bytes."""
        rank, offset = divmod(address, REMOTE)
        block, at = self.state.blocks[rank - 1], SHARED + offset
        block.access(dtype, 1, at)[0] = value
        assert barrier // REMOTE == rank, "the bytes count in another block than they go to"
        block.__dict__["barriers"][SHARED + barrier % REMOTE].change(0, -dtype.itemsize, self.state.turns)

    def _arrive_remote(self, barrier: int) -> None:
        rank, offset = divmod(int(barrier), REMOTE)
        self.state.blocks[rank - 1].__dict__["barriers"][SHARED + offset].change(1, 0, self.state.turns)


"""Files that others wrote, read with a limit: no device, and no more bytes than a program, a schedule or a target has."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 4 << 20
"""A text of 2^20 characters takes as many at most."""
MOST_IR_BYTES = 1 << 30
"""Of the IR of a large program with its constants."""


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file, a pipe or a terminal. Raises OSError for a device, a folder, and for more than `most` bytes."""
    with open(path, "rb", opener=_opened) as file:
        return limited(file, most)


def limited(file: object, most: int = MOST_BYTES) -> bytes:
    """All bytes of an open file. Raises OSError for more than `most`."""
    data: bytes = file.read(most + 1)  # type: ignore[attr-defined]
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def _opened(path: str, flags: int) -> int:
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise OSError(errno.EISDIR, "it is a folder")
    number = os.open(path, flags)
    if stat.S_ISBLK(kind) or (stat.S_ISCHR(kind) and not os.isatty(number) and not os.path.samefile(path, os.devnull)):
        os.close(number)
        raise OSError(errno.EINVAL, "it is a device, not a file")
    return number

"""Files that are written whole or not at all, if the process is killed or the disk is full."""

from __future__ import annotations

import os
import secrets
import time
from functools import cache
from pathlib import Path

_PREFIX, _SUFFIX = ".tilec-", ".tmp"
_ABANDONED = 600.0  # seconds after which a temporary file is taken for that of a process that was killed


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Writes a temporary file beside `path`, flushes it to disk and renames it over the old file.

    `mode` is the file's; by default 0o666 less the umask. Temporary files that killed processes left in the folder
    go first. Raises OSError, and then the old file is untouched.
    """
    _remove_old(path.parent)
    temporary = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
    try:
        new = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, new, 0o666 if mode is None else 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@cache
def _remove_old(folder: Path) -> None:
    """Once in a process."""
    oldest = time.time() - _ABANDONED
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                ours = entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)
                if ours and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry)
    except OSError:  # another process was faster, or this one may not: the next one tries again
        pass

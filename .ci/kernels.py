"""Machine code that earlier runs of CI compiled: `fetch STORE CACHE` puts it into tilec's cache, `keep CACHE STORE` takes the new.

Only kernels' machine code is kept. Its key is the kernel's text with the sources that compile it, the versions of the compilers
under it, and the processor. Therefore a run that finds it still parses, plans, lowers, prints and runs every program: it leaves out
what Numba, LLVM and ptxas would make of the same text once more. What the cache knows of whole programs is not kept.

An entry is forgotten after DAYS, so that each is compiled again from time to time, and the oldest go where all take more than
MOST_BYTES.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DAYS = 14
MOST_BYTES = 1 << 30


def kernels(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The index of each entry that is kernels' machine code, and its files. Not one that another process is writing."""
    for index in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            entry = json.loads(index.read_bytes())
            if "kernels" in entry["properties"] and entry["properties"].keys() & {"needs", "cubins"}:
                files = [folder / f"{digest}.bin" for digest in entry["files"].values()]
                if all(f.is_file() for f in files):
                    yield index, files


def copy(source: Path, target: Path) -> int:
    """Copies the entries that the target lacks; returns how many."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    copied = 0
    for index, files in kernels(source):
        if not (target / index.name).exists():
            for file in (*files, index):  # the index last: it tells that the entry is whole
                shutil.copyfile(file, part := target / f"{file.name}.part")
                part.chmod(0o600)
                part.replace(target / file.name)
            copied += 1
    return copied


def forget(store: Path) -> None:
    """Entries that are old, or the oldest of too many bytes; and files that belong to none."""
    now, total, used = time.time(), 0, set()
    for index, files in sorted(kernels(store), key=lambda entry: -entry[0].stat().st_mtime):
        total += sum(f.stat().st_size for f in {index, *files} - used)
        if total > MOST_BYTES or now - index.stat().st_mtime > DAYS * 86400:
            index.unlink()
        else:
            used |= {index, *files}
    for file in store.iterdir():
        if file.is_file() and file not in used:
            file.unlink(missing_ok=True)


def main(command: str, source: str, target: str) -> None:
    os.umask(0o077)  # the cache refuses a folder that others may write
    folders = Path(source), Path(target)
    if command == "fetch":
        count = copy(folders[0], folders[1] / "entries")
    else:
        count = copy(folders[0] / "entries", folders[1])
        forget(folders[1])
    print(f"{command}: kernels of {count} programs")


if __name__ == "__main__":
    main(*sys.argv[1:])

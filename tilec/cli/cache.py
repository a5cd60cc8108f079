"""`tilec cache`: the directory of compiled programs, its size, and its removal."""

from __future__ import annotations

import argparse
import warnings

from tilec.cli.common import show
from tilec.cli.doctor import size_text
from tilec.core.diagnostics import CallError
from tilec.runtime import cache as store


def cache(args: argparse.Namespace) -> int:
    """Raises CallError where there is no directory to use, with the reason."""
    if args.older_than and args.action != "clear":
        raise CallError("--older-than goes with `tilec cache clear`")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = store.directory()
    if folder is None:
        raise CallError(str(caught[0].message) if caught else f"there is no cache: {store.VARIABLE} is empty")
    match args.action:
        case "dir":
            show(str(folder))
        case "size":
            files, size = store.usage()
            print(f"{files} files, {size_text(size)}")
        case "clear":
            print(f"removed {store.clear(args.older_than)} files")
    return 0

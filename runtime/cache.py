"""The disk cache: compiled programs and kernels, in one private directory.

An entry is a JSON file that names its binaries by their digests. Nothing is ever unpickled, and nothing is
loaded from a directory that someone else could have written: who can write a kernel there can run
code here. Every failure (full disk, read-only, corrupted, refused) means working without the cache, never an
error.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

VARIABLE = "TILEC_CACHE_DIR"
_FORMAT = 1
_LARGEST_INDEX = 1 << 20


class CacheWarning(UserWarning):
    """The cache directory cannot be used, and why."""


# Where


def directory() -> Path | None:
    """The cache directory, made if need be, or None where there is none to trust. Warns once.

    `TILEC_CACHE_DIR` names another one; set but empty, it turns the cache off.
    """
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    return _checked(named)


@cache
def _checked(named: str | None) -> Path | None:
    if named is None:
        import platformdirs

        path = Path(platformdirs.user_cache_dir("tilec", appauthor=False))
    else:
        path = Path(named).expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve(strict=True)
        reason = refusal(path)
    except (OSError, RuntimeError) as error:
        reason = str(error)
    if reason is None:
        return path
    warnings.warn(f"working without a cache: {reason}; {VARIABLE} names another directory", CacheWarning, stacklevel=4)
    return None


def refusal(path: Path) -> str | None:
    """Why others could put files into the (resolved) directory `path`, or None if they cannot.

    It must be ours and not writable by others. Whoever can write to a parent can exchange what is below it,
    so parents must belong to us or to root and be either not writable by others or sticky, as /tmp is.
    """
    if not hasattr(os, "geteuid"):  # Windows: the profile directory is private by its access list
        return None
    user, trusted = os.geteuid(), {0, os.geteuid(), os.stat("/").st_uid}
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a directory"
    if status.st_uid != user:
        return f"{path} belongs to user {status.st_uid}, not to user {user}"
    if status.st_mode & 0o022:
        return f"{path} is writable by others (mode {stat.S_IMODE(status.st_mode):o}); chmod 700 it"
    for parent in path.parents:
        status = os.lstat(parent)
        if status.st_uid not in trusted:
            return f"{parent}, above the cache, belongs to user {status.st_uid}"
        if _open_to_others(status) and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            return f"{parent}, above the cache, is writable by others (mode {mode:o})"
    return None


def _open_to_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _own_group(status.st_gid)


def _own_group(gid: int) -> bool:
    """Whether the group is the one that many systems make for each user alone, of the user's name; or
    root's."""
    import grp
    import pwd

    try:
        return gid == 0 or grp.getgrgid(gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


# Entries


def make_key(*parts: str | bytes) -> str:
    """The SHA-256 of the parts; each counts with its length, so that no two lists of parts read alike."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def runtime_digest() -> str:
    """A hash of this folder's sources: generated kernels are compiled together with the functions they import."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return make_key(*(part for path in sources for part in (path.name, path.read_bytes())))


@cache
def compiler_digest() -> str:
    """A hash of all of tilec's sources: what a program becomes depends on each."""
    import tilec
    from tilec import dsl

    root, front = Path(tilec.__file__).parent, Path(dsl.__file__).parent
    folders = (root, front, *(front.parent / name for name in ("passes", "runtime")))
    kinds = (".py", ".lark", ".tile")
    sources = sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in kinds)
    return make_key(*(part for path in sources for part in (path.name, path.read_bytes())))


def load(key: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """What was saved under `key`, or None if there is nothing whole."""
    folder = _folder("entries")
    if folder is None:
        return None
    try:
        with open(folder / f"{key}.json", "rb") as file:
            index = json.loads(file.read(_LARGEST_INDEX))
        if index["format"] != _FORMAT or index["key"] != key:
            return None
        files = {name: _load_blob(folder, digest) for name, digest in index["files"].items()}
        return dict(index["properties"]), files
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def save(key: str, properties: dict[str, Any], files: dict[str, bytes]) -> bool:
    """Saves JSON-able `properties` and named binaries under `key`; whether that worked.

    Binaries are named by their contents and come before the index, so that readers and other writers of the
    same key see an entry that is whole, or none.
    """
    folder = _folder("entries")
    if folder is None:
        return False
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    index = {"format": _FORMAT, "key": key, "properties": properties, "files": digests}
    try:
        for name, data in files.items():
            _write(folder / f"{digests[name]}.bin", data)
        _write(folder / f"{key}.json", json.dumps(index, indent=1).encode())
    except OSError:
        return False
    return True


def _load_blob(folder: Path, digest: str) -> bytes:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError("not a digest")
    data = (folder / f"{digest}.bin").read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("the binary is not what was saved")
    return data


# Files


def _folder(*names: str) -> Path | None:
    root = directory()
    if root is None:
        return None
    folder = root.joinpath(*names)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            return None
    except OSError:
        return folder if folder.is_dir() else None  # read-only, but there
    return folder


def _write(path: Path, data: bytes) -> None:
    """All or nothing: a temporary file in the same directory, flushed to disk, then renamed over the old."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)  # mode 0600, never an existing file
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def usage() -> tuple[int, int]:
    """Files in the cache, and their bytes."""
    root = directory()
    sizes = [p.lstat().st_size for p in root.rglob("*") if p.is_file()] if root else []
    return len(sizes), sum(sizes)


def clear(older_than_days: float = 0.0) -> int:
    """Removes entries not written within so many days; returns how many files went."""
    root, oldest, removed = directory(), time.time() - older_than_days * 86400, 0
    if root is None:
        return 0
    for path in [p for p in (root / "entries").rglob("*")]:
        try:
            if path.is_file() and path.lstat().st_mtime <= oldest:
                path.unlink()
                removed += 1
        except OSError:
            continue
    return removed

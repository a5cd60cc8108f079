"""The disk cache: compiled programs and kernels in one private directory.

An entry is a JSON file that names its binaries by their digests. Nothing is unpickled. Nothing is loaded from a directory
that another user could have written: whoever can write a kernel there can run code here. Every failure (full disk,
read-only, corrupted, refused) means that tilec works without the cache; it is never an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilec.process.atomic_files import replace_file
from tilec.process.printable import printable

VARIABLE = "TILEC_CACHE_DIR"
_FORMAT = 2


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
    except (FileExistsError, NotADirectoryError):
        reason = f"{path} is not a directory"
    except (OSError, RuntimeError) as error:
        reason = f"{path}: {getattr(error, 'strerror', None) or error}"
    if reason is None:
        return path
    warnings.warn(
        f"working without a cache: {printable(reason)}; set {VARIABLE} to use another directory", CacheWarning, stacklevel=4
    )
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


def entries() -> Path | None:
    """The folder of entries, which `clear` clears; None where there is no cache."""
    return _folder("entries")


def make_key(*parts: str | bytes) -> str:
    """The SHA-256 of the parts; each counts with its length, so that no two lists of parts read alike."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def code_digest(*modules: str) -> str:
    """Stands for the sources of these modules, and of all that they import of tilec: what machine code is made by, where `modules`
    are its compiler and what printed kernels import. Without `tilec.process` and this module, which hand it on as it is."""
    return make_key(*_sources(modules))


def _sources(modules: Sequence[str]) -> Iterator[bytes]:
    """The names and texts of modules, and of all that they import."""
    folder, waiting, seen = _folder_of("tilec"), [*modules], {*modules}
    while waiting:
        path = folder.joinpath(*waiting.pop().split(".")[1:]).with_suffix(".py")
        with suppress(OSError):  # there is none for a name in a module, nor for a package
            yield from (str(path.relative_to(folder)).encode(), text := path.read_bytes())
            new = [name for name in _imported(text.decode()) if name not in seen and not _NO_PART.match(name)]
            waiting += new
            seen.update(new)


def _imported(text: str) -> dict[str, None]:
    """The modules that a text imports, inside of functions, too; and names behind `import`, each of which could be a module."""
    found = [(module, re.findall(r"\w+", names)) for module, names in _IMPORT.findall(text)]
    return dict.fromkeys(name for module, names in found for name in (module, *(f"{module}.{n}" for n in names)))


_IMPORT = re.compile(r"^ *from (tilec\b[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_NO_PART = re.compile(r"tilec\.(process|runtime\.cache)\b")


@cache
def compiler_digest() -> str:
    """A digest of tilec's sources and of the packages under them: the kernels of a program depend on each."""
    versions = (sys.version, *installed("tilec", "numba-cuda-mlir", "lark", "numpy"))
    return make_key(*versions, _digest_of(_folder_of("tilec")))


def _folder_of(package: str) -> Path:
    """Where a package's sources are, without importing it."""
    found = find_spec(package)
    assert found is not None and found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations)))


def _digest_of(folder: Path) -> str:
    """A digest of a folder's sources, equal for equal sources on any machine. The cache remembers it until one of them is written:
    reading them all would take as long as the rest of a start from the cache."""
    key = make_key("sources", _stamps(folder))
    if (known := load(key, local=True)) is not None and isinstance(known[0].get("digest"), str):
        return known[0]["digest"]
    digest = _contents(folder)
    save(key, {"digest": digest}, {}, local=True)
    return digest


def _stamps(folder: Path) -> str:
    """Sources by name, size and time of writing."""
    files, folders = _entries(folder)
    stamps = [(e.name, (s := e.stat()).st_size, s.st_mtime_ns) for e in files]
    return make_key(str(folder), repr(stamps), *(_stamps(folder / name) for name in folders))


def _contents(folder: Path) -> str:
    """Sources by name and contents."""
    files, folders = _entries(folder)
    texts = [part for e in files for part in (e.name.encode(), Path(e.path).read_bytes())]
    return make_key(*texts, "folders", *(part for name in folders for part in (name, _contents(folder / name))))


def _entries(folder: Path) -> tuple[list[os.DirEntry[str]], list[str]]:
    """A folder's sources, and the names of its folders, in order."""
    kinds = (".py", ".lark", ".tile")
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda e: e.name)
    return [e for e in found if e.name.endswith(kinds)], [e.name for e in found if e.is_dir() and e.name != "__pycache__"]


def installed(*names: str) -> tuple[str, ...]:
    """Each package's name and version, or "-" for one that is not there.

    From the names of `*.dist-info` folders: `importlib.metadata` takes milliseconds for each.
    """
    known = dict(_distributions())
    return tuple(f"{name} {known.get(_normal(name), '-')}" for name in names)


@cache
def _distributions() -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").rpartition("-")
                found.setdefault(_normal(name), version)
    return tuple(found.items())


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


Entry = tuple[dict[str, Any], dict[str, bytes]]
watchers: list[Callable[[str, dict[str, Any], dict[str, bytes]], object]] = []
"""Are called with each entry that is found or made, unless it is `local`: its key, properties and files."""


def load(key: str, local: bool = False) -> Entry | None:
    """The entry saved under `key`, or None if there is no whole one. `local`: it is of no use on another machine."""
    found = _load(key)
    if found is not None and not local:
        for watch in watchers:
            watch(key, *found)
    return found


def _load(key: str) -> Entry | None:
    folder = _folder("entries")
    if folder is None:
        return None
    try:
        index = json.loads(_read(folder / f"{key}.json"))
        if index["format"] != _FORMAT or index["key"] != key or index["digest"] != _digest(index):
            return None
        files = {name: _load_blob(folder, digest) for name, digest in index["files"].items()}
        return dict(index["properties"]), files
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


made = 0
"""Entries that were not found, and had to be made, since this process began: whether there is a cache or not."""


def save(key: str, properties: dict[str, Any], files: dict[str, bytes], local: bool = False) -> bool:
    """Saves JSON-able `properties` and named binaries under `key`; whether that worked. `local`: see `load`.

    Binaries are named by their contents and come before the index, so that readers and other writers of the
    same key see an entry that is whole, or none.
    """
    global made
    if not local:
        made += 1
        for watch in watchers:
            watch(key, properties, files)
    folder = _folder("entries")
    if folder is None:
        return False
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    index = {"format": _FORMAT, "key": key, "properties": properties, "files": digests}
    index["digest"] = _digest(index)
    try:
        for name, data in files.items():
            replace_file(folder / f"{digests[name]}.bin", data, 0o600)
        replace_file(folder / f"{key}.json", json.dumps(index, indent=1).encode(), 0o600)
    except OSError:
        return False
    return True


def _digest(index: dict[str, Any]) -> str:
    """A digest of an index, in JSON's form."""
    return make_key(json.dumps([index["properties"], index["files"]], sort_keys=True))


def _load_blob(folder: Path, digest: str) -> bytes:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ValueError("not a digest")
    data = _read(folder / f"{digest}.bin")
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("the binary is not what was saved")
    return data


# Files


def _folder(name: str) -> Path | None:
    root = directory()
    if root is None:
        return None
    folder = root / name
    with suppress(OSError):  # read-only: it may be there
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        status = os.lstat(folder)
    except OSError:
        return None
    return folder if stat.S_ISDIR(status.st_mode) and _private(status) else None


def _read(path: Path) -> bytes:
    """A regular file of ours that others cannot write. Raises OSError for anything else, and never waits, as for a pipe."""
    plain = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, plain), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _private(status):
            raise OSError(f"{path} may be someone else's")
        return file.read()


def _private(status: os.stat_result) -> bool:
    """Whether a file of this status is ours, and not writable by others."""
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


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

"""Where a program's text comes from: a path, or the text itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tilec.core.diagnostics import CallError, Diagnostic, Source, Span, TileError
from tilec.process.reading import MOST_BYTES, read_bytes


def read_source(source: str | Path, folders: Sequence[str | Path] = (), most: int = MOST_BYTES) -> Source:
    """The text of a program: the file, if `source` is a path or one line that ends in `.tile`, else `source` itself. Its imports
    lie below its own folder or `folders`."""
    if not isinstance(source, str | Path):
        message = f"the program must be a path or a text, not a value of the type {type(source).__name__}"
        raise CallError(message, hint='compile("softmax.tile"), or compile("y[i] = 2 * x[i]")')
    if isinstance(source, Path) or ("\n" not in source and source.strip().endswith(".tile")):
        path = Path(source)
        try:
            return Source(str(path), read_bytes(path, most).decode("utf-8"), tuple(map(str, folders)))
        except FileNotFoundError:
            raise TileError(Diagnostic(f"there is no file '{path}'", Span.none(), hint=_with_suffix(path))) from None
        except UnicodeDecodeError as error:
            message = f"'{path}' is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}"
            raise TileError(Diagnostic(message, Span.none())) from None
        except OSError as error:
            raise TileError(Diagnostic(f"cannot read '{path}': {error.strerror}", Span.none())) from None
    if _PATH.fullmatch(source.strip()):
        path = Path(source.strip())
        hint = _with_suffix(path) or (f"a file of another name is given as `Path('{path}')`" if _is_file(path) else None)
        raise TileError(Diagnostic(f"'{path}' is neither a program nor the path of a `.tile` file", Span.none(), hint=hint))
    return Source("<program>", source, tuple(map(str, folders)))


_PATH = re.compile(r"[\w.~/\\-]{1,255}")  # every program has a space, a bracket or `=`


def _with_suffix(path: Path) -> str | None:
    """The file that was meant, where its name lacks `.tile`."""
    meant = path.with_name(path.name + ".tile") if path.name else path
    return f"write '{meant}'" if meant.suffix == ".tile" and _is_file(meant) else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False

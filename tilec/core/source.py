"""Where a program's text comes from: a path, or the text itself."""

from __future__ import annotations

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
            raise TileError(Diagnostic(f"there is no file '{path}'", Span.none())) from None
        except UnicodeDecodeError as error:
            message = f"'{path}' is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}"
            raise TileError(Diagnostic(message, Span.none())) from None
        except OSError as error:
            raise TileError(Diagnostic(f"cannot read '{path}': {error.strerror}", Span.none())) from None
    return Source("<program>", str(source), tuple(map(str, folders)))

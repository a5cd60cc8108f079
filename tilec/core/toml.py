"""Files of TOML that others wrote: schedules and targets, read with limits."""

from __future__ import annotations

import re
import tomllib
from datetime import date, datetime, time
from pathlib import Path
from typing import TypeAlias

from tilec.core.diagnostics import CallError
from tilec.process.reading import read_bytes

MOST_BYTES = 1 << 20
Toml: TypeAlias = "str | int | float | bool | datetime | date | time | list[Toml] | dict[str, Toml]"
_DEEP = re.compile(r"""(?:[\w"'-]+[ \t]*\.[ \t]*){32}""")


def read_toml(path: str | Path, what: str) -> str:
    """The text of a file. `what` it is, messages say: "schedule", "target file". Raises CallError where it cannot be read."""
    try:
        return read_bytes(path, MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise CallError(f"{what} '{path}' is not UTF-8 text") from None
    except OSError as error:
        raise CallError(f"cannot read {what} '{path}': {error.strerror}") from None


def parse_toml(text: str, name: str) -> dict[str, Toml]:
    """The tables of a text. Raises CallError where it is not TOML, or nested without a limit."""
    try:
        if _DEEP.search(text):  # what tomllib takes for such keys grows with the square of their length
            raise RecursionError
        return tomllib.loads(text)
    except RecursionError:
        raise CallError(f"{name}: lists and tables are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise CallError(f"{name}: not TOML: {error}") from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise CallError(f"{name}: a number has too many digits") from None

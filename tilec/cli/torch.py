"""`tilec torch report`: partitions of compiled PyTorch models, from a dump."""

from __future__ import annotations

import argparse

from tilec.cli.common import show
from tilec.core.diagnostics import CallError
from tilec.torch.reports import read


def torch(args: argparse.Namespace) -> int:
    """Raises CallError for a folder without dumped graphs."""
    try:
        found = read(args.folder)
    except FileNotFoundError as error:
        raise CallError(str(error)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CallError(f"{args.folder} has a damaged report: {error}") from None
    show(str(found))
    return 0

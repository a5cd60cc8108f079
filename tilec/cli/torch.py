"""`tilec torch report`: partitions of compiled PyTorch models, from a dump."""

from __future__ import annotations

import argparse

from tilec.cli.common import note, show, working, write
from tilec.core.diagnostics import CallError
from tilec.torch.reports import read


def torch(args: argparse.Namespace) -> int:
    """Raises CallError for a folder without dumped graphs."""
    if args.target is not None and args.html is None:
        raise CallError("--target is for the page: partitions are planned for it", hint="add --html FILE")
    try:
        found = read(args.folder)
    except FileNotFoundError as error:
        raise CallError(str(error)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CallError(f"{args.folder} has a damaged report: {error}") from None
    show(str(found))
    if args.html is not None:
        from tilec.torch.model_page import model_page

        with working("planning partitions"):
            text = model_page(args.folder, found, args.target)
        write(args.html, text)
        note(f"wrote {args.html}", kind="")
    return 0

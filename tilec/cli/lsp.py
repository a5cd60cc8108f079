"""`tilec lsp`: the language server for editors, on the standard input and output."""

from __future__ import annotations

import argparse

from tilec.core.diagnostics import CallError


def lsp(args: argparse.Namespace) -> int:
    """Answers until the editor ends it. Raises CallError where pygls is not installed."""
    try:
        import pygls  # noqa: F401
    except ImportError:
        raise CallError("lsp takes pygls, which is not installed", hint='pip install "tilec[lsp]"') from None
    from tilec.lsp.server import made

    made().start_io()
    return 0

"""`tilec completion`: a script with which a shell completes commands, options and their values. shtab makes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilec.cli.common import STAGES, write
from tilec.core.diagnostics import CallError

_FOLDERS = {"path", "folder"}
_STAGES = {"after", "from_", "to", "interpret"}


def completion(args: argparse.Namespace) -> int:
    """Raises CallError where shtab is not installed."""
    try:
        import shtab
    except ImportError:
        hint = 'pip install "tilec[completion]"'
        raise CallError("completion takes shtab, which is not installed", hint=hint) from None
    from tilec.cli.parsers import parser
    from tilec.core.targets import names

    top = parser()
    files, folders, programs = shtab.FILE, shtab.DIRECTORY, shtab.glob("*.tile")
    for command in _commands(top):
        of_program = command.prog == "tilec fmt" or any(action.dest == "define" for action in command._actions)
        for action in command._actions:
            if action.dest == "target":
                action.choices = names()
            elif action.dest in _STAGES:
                action.choices = STAGES.split()
            elif action.type is Path:
                is_program = of_program and action.dest in ("file", "files")
                kind = folders if action.dest in _FOLDERS else programs if is_program else files
                vars(action)["complete"] = kind
    write(None, shtab.complete(top, args.shell) + "\n")
    return 0


def _commands(top: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return list(commands.choices.values())

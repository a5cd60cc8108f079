"""The extension of VS Code: what its manifest names is there. The hooks of pre-commit run commands that exist."""

import json
import re
import tomllib

from tools import ROOT

FOLDER = ROOT / "editors" / "vscode"
MANIFEST = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))


def test_the_manifest_names_files_that_exist():
    contributed = MANIFEST["contributes"]
    (language,), (grammar,) = contributed["languages"], contributed["grammars"]
    for path in (language["configuration"], grammar["path"]):
        assert (FOLDER / path).is_file(), path
    assert grammar["language"] == language["id"] == "tile" and language["extensions"] == [".tile"]
    assert grammar["scopeName"] == json.loads((FOLDER / grammar["path"]).read_text())["scopeName"]
    json.loads((FOLDER / language["configuration"]).read_text())


def test_the_extension_has_the_packages_version():
    assert MANIFEST["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_hooks_of_pre_commit_run_commands():
    from tilec.cli.parsers import parser

    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^  entry: tilec (\w+)$", text, re.MULTILINE)
    assert entries == ["check", "fmt"] and text.count("- id:") == len(entries)
    for command in entries:
        assert parser().parse_args([command, "a.tile", "b.tile"]).command

"""The extension of VS Code: what its manifest names is there. The hooks of pre-commit run commands that exist."""

import json
import re
import shutil
import subprocess
import tomllib

import pytest
from tools import ROOT

from tilec.lsp.costs import Settings, read_settings

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


STUBS = """
const registered = [], started = [];
const settings = { "server.enabled": true, "server.path": "tilec", target: "h200", sizes: { M: 4 } };
const modules = {
  vscode: {
    commands: { registerCommand: (name, run) => (registered.push(name), { name, run }) },
    window: { showWarningMessage: (text) => started.push(text) },
    workspace: { getConfiguration: () => ({ get: (key) => settings[key] }), onDidChangeConfiguration: () => ({}) },
  },
  "vscode-languageclient/node": {
    LanguageClient: class {
      constructor(id, name, server, options) { Object.assign(this, { server, options }); }
      async start() {
        registered.push([this.options.initializationOptions, this.options.synchronize.configurationSection]);
        started.push([this.server.command, ...this.server.args, this.options.documentSelector[0].language].join(" "));
        if (this.server.command === "missing") throw new Error("ENOENT");
      }
      async stop() { started.push("stop"); }
    },
  },
};
const Module = require("module"), load = Module._load;
Module._load = (name, ...rest) => modules[name] ?? load(name, ...rest);
const extension = require(process.argv[1]);
(async () => {
  const context = { subscriptions: [] };
  await extension.activate(context);
  settings["server.path"] = "missing";
  await context.subscriptions[0].run();
  settings["server.enabled"] = false;
  await context.subscriptions[0].run();
  await extension.deactivate();
  console.log(JSON.stringify({ registered, started }));
})();
"""


def test_the_extension_starts_the_server():
    """Beside stand-ins for VS Code: with its settings, again where they change, and with a message where there is no command."""
    properties = MANIFEST["contributes"]["configuration"]["properties"]
    commands = [c["command"] for c in MANIFEST["contributes"]["commands"]]
    main = FOLDER / MANIFEST["main"]
    assert main.is_file() and MANIFEST["activationEvents"] == ["onLanguage:tile"]
    assert set(re.findall(r'settings\.get\("([\w.]+)"\)', main.read_text())) == {name.removeprefix("tilec.") for name in properties}
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    done = subprocess.run([node, "-e", STUBS, str(main)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["registered"] == [*commands, *[[{"target": "h200", "sizes": {"M": 4}}, "tilec"]] * 2]
    assert read_settings(found["registered"][1][0]) == Settings("h200", {"M": 4})
    first, stopped, second, message = found["started"]
    assert (first, stopped, second) == ("tilec lsp tile", "stop", "missing lsp tile")
    assert "ENOENT" in message and 'pip install "tilec[lsp]"' in message


def test_the_extension_has_the_packages_version():
    assert MANIFEST["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_hooks_of_pre_commit_run_commands():
    from tilec.cli.parsers import parser

    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^  entry: tilec (\w+)$", text, re.MULTILINE)
    assert entries == ["check", "fmt"] and text.count("- id:") == len(entries)
    for command in entries:
        assert parser().parse_args([command, "a.tile", "b.tile"]).command

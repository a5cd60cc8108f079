// Starts `tilec lsp` for open .tile programs. Without the command, a message says how to install it, and colours go on working.
"use strict";

const { commands, window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function start() {
  const settings = workspace.getConfiguration("tilec");
  if (!settings.get("server.enabled")) return;
  const server = { command: settings.get("server.path"), args: ["lsp"] };
  client = new LanguageClient("tilec", "tilec", server, {
    documentSelector: [{ language: "tile" }],
    initializationOptions: { target: settings.get("target"), sizes: settings.get("sizes") },
    synchronize: { configurationSection: "tilec" },
  });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    window.showWarningMessage(
      `tilec: \`${server.command} lsp\` did not start (${error.message}). Run pip install "tilec[lsp]", or set tilec.server.path.`
    );
  }
}

async function stop() {
  const old = client;
  client = undefined;
  await old?.stop();
}

async function restart() {
  await stop();
  await start();
}

async function activate(context) {
  context.subscriptions.push(
    commands.registerCommand("tilec.restartServer", restart),
    workspace.onDidChangeConfiguration((change) => change.affectsConfiguration("tilec.server") && restart())
  );
  await start();
}

module.exports = { activate, deactivate: stop };

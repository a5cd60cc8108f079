"""`tilec lsp` through its protocol: a client, and the command as an editor starts it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tools import ROOT

pytest.importorskip("pygls")

from lsprotocol import types
from pygls.lsp.client import LanguageClient
from pygls.uris import from_fs_path, to_fs_path

from tilec.lsp.positions import Lines

LIBRARY = "def twice(v) { return 2 * v }\n"
PROGRAM = """import "library.tile"

# \U0001f600 takes two units of UTF-16
op f(x: f32[M, N]) -> (y: f32[M, N]) {
    m[i]    = max[j](x[i, j])
    y[i, j] = twice(gelu(x[i, j])) - m[i]
}
"""


class Editor:
    """Opens, changes and asks about one text."""

    def __init__(self, client: LanguageClient, folder: Path):
        self.client, self.folder = client, folder
        self.uri = from_fs_path(str(folder / "f.tile")) or ""
        self.text, self.version = "", 0
        self.published: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def publish(params: types.PublishDiagnosticsParams) -> None:
            self.published.put_nowait(params)

    def open(self, text: str) -> None:
        self.text = text
        item = types.TextDocumentItem(self.uri, "tile", self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, text: str) -> None:
        self.text, self.version = text, self.version + 1
        whole = types.TextDocumentContentChangeWholeDocument(text)
        document = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))

    async def messages(self) -> list[types.Diagnostic]:
        """Those of the text as it is now."""
        while (found := await asyncio.wait_for(self.published.get(), 30)).version != self.version:
            pass
        return list(found.diagnostics)

    @property
    def document(self) -> types.TextDocumentIdentifier:
        return types.TextDocumentIdentifier(self.uri)

    def place(self, text: str, within: int = 0) -> types.Position:
        return Lines(self.text).position(self.text.index(text) + within)

    async def hover(self, text: str, within: int = 0) -> str:
        found = await self.client.text_document_hover_async(types.HoverParams(self.document, self.place(text, within)))
        assert found is not None and isinstance(found.contents, types.MarkupContent)
        return found.contents.value

    async def definition(self, text: str, within: int = 0) -> tuple[str, str]:
        """The file's name, and the text that it points to."""
        asked = types.DefinitionParams(self.document, self.place(text, within))
        found = await self.client.text_document_definition_async(asked)
        assert isinstance(found, types.Location)
        path = Path(to_fs_path(found.uri) or "")
        lines = Lines(self.text if found.uri == self.uri else path.read_text())
        return path.name, lines.text[lines.offset(found.range.start) : lines.offset(found.range.end)]


@pytest.fixture
def session(tmp_path: Path) -> Callable[[Callable[[Editor], Awaitable[None]]], None]:
    (tmp_path / "library.tile").write_text(LIBRARY)

    async def run(steps: Callable[[Editor], Awaitable[None]]) -> None:
        client = LanguageClient("test", "1")
        editor = Editor(client, tmp_path)
        await client.start_io(sys.executable, "-m", "tilec", "lsp", cwd=ROOT)
        await client.initialize_async(types.InitializeParams(types.ClientCapabilities(), root_uri=from_fs_path(str(tmp_path))))
        client.initialized(types.InitializedParams())
        await steps(editor)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    return lambda steps: asyncio.run(run(steps))


def test_a_text_while_it_is_typed(session):
    async def steps(editor: Editor) -> None:
        editor.open(PROGRAM)
        assert await editor.messages() == []
        assert "x: f32[M, N]" in await editor.hover("x: f32") and "i in 0:M" in await editor.hover("max[j](x[i", 9)
        assert "m: f32[M]" in await editor.hover("- m[i]", 2) and "def gelu" in await editor.hover("gelu")
        assert await editor.definition("- m[i]", 2) == ("f.tile", "m")
        assert await editor.definition("twice") == ("library.tile", "twice")
        assert await editor.definition("gelu") == ("std.tile", "gelu")
        assert (await editor.definition("library.tile"))[0] == "library.tile"

        editor.change(PROGRAM.replace("- m[i]", "- n[i]").replace("x[i, j])\n", "x[i, j)\n"))
        unclosed, *_ = await editor.messages()
        assert unclosed.severity == types.DiagnosticSeverity.Error and unclosed.range.start.line == 4
        assert "f32[M, N]" in await editor.hover("x: f32"), "a text with mistakes is read as far as it can be"

        editor.change(PROGRAM.replace("- m[i]", "- n[i]").replace("gelu(x", "glu(x"))
        assert ["`glu`" in d.message or "`n`" in d.message for d in await editor.messages()] == [True, True]

        editor.change(PROGRAM.replace("m[i]    =", "m[i]="))
        (op,) = await editor.client.text_document_document_symbol_async(types.DocumentSymbolParams(editor.document))
        assert (op.name, [(s.name, s.detail) for s in op.children]) == (
            "f", [("x", "f32[M, N]"), ("y", "f32[M, N]  i in 0:M, j in 0:N"), ("m", "f32[M]  i in 0:M, j in 0:N")]
        )  # fmt: skip
        options = types.FormattingOptions(4, True)
        (edit,) = await editor.client.text_document_formatting_async(types.DocumentFormattingParams(editor.document, options))
        assert edit.new_text == PROGRAM

    session(steps)


def test_names_and_hints(session):
    async def steps(editor: Editor) -> None:
        editor.open(PROGRAM)
        await editor.messages()

        async def asked(request: str, kind: type, text: str, within: int = 0, **more: object) -> object:
            place = {"text_document": editor.document, "position": editor.place(text, within)}
            return await getattr(editor.client, request)(kind(**place, **more))

        def texts(found) -> list[tuple[int, str]]:
            spans = [(Lines(editor.text).offset(r.range.start), Lines(editor.text).offset(r.range.end)) for r in found]
            return [(start, editor.text[start:end]) for start, end in spans]

        places = [k for k in range(len(PROGRAM)) if PROGRAM.startswith("m[i]", k)]
        for declared in (True, False):
            context = types.ReferenceContext(declared)
            found = await asked("text_document_references_async", types.ReferenceParams, "- m[i]", 2, context=context)
            assert texts(found) == [(k, "m") for k in places][0 if declared else 1 :]
        edit = await asked("text_document_rename_async", types.RenameParams, "- m[i]", 2, new_name="most")
        assert texts(edit.changes[editor.uri]) == [(k, "m") for k in places]
        edit = await asked("text_document_rename_async", types.RenameParams, "y[i, j] =", 2, new_name="row")
        assert len(edit.changes[editor.uri]) == 3, "the index of one statement"
        for name, why in (("x", "`x` is an input here already"), ("op", "cannot be the name"), ("3", "cannot be the name")):
            with pytest.raises(Exception, match=why):
                await asked("text_document_rename_async", types.RenameParams, "- m[i]", 2, new_name=name)
        with pytest.raises(Exception, match="declared in another file"):
            await asked("text_document_rename_async", types.RenameParams, "twice(g", 2, new_name="double")
        assert await asked("text_document_prepare_rename_async", types.PrepareRenameParams, "twice(g", 2) is None

        whole = types.Range(types.Position(0, 0), types.Position(99, 0))
        hints = await editor.client.text_document_inlay_hint_async(types.InlayHintParams(editor.document, whole))
        assert [h.label for h in hints] == ["f32[M], i in 0:M, j in 0:N", "f32[M, N], i in 0:M, j in 0:N"]
        assert [h.position.line for h in hints] == [4, 5]

        items = await asked("text_document_completion_async", types.CompletionParams, "m[i]    =")
        found = {item.label: item.detail for item in items}
        assert found["x"] == "x: f32[M, N]" and found["twice"].startswith("def twice") and found["gelu"].startswith("def gelu")
        assert "bf16" in found

    session(steps)


@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-16", "utf-32"])
def test_places_of_a_text(encoding):
    """Every place between two characters, with a mark before the text or without, and the places that are none."""
    for mark in ("", "\ufeff"):
        text = "a\u00e9\U0001f600b\r\nc\rd\n\u6570"
        lines = Lines(mark + text, encoding)
        ends = [k for k in range(len(text) + 1) if text[k - 1 : k + 1] != "\r\n"]
        assert [lines.offset(lines.position(k)) for k in ends] == ends
        assert lines.offset(types.Position(0, 99)) == 4 and lines.offset(types.Position(9, 0)) == len(text)
    assert Lines("\U0001f600b").position(1) == types.Position(0, 2)


def test_without_pygls(monkeypatch, capsys):
    from tilec.cli.command import main

    monkeypatch.setitem(sys.modules, "pygls", None)
    assert main(["lsp"]) == 1 and 'pip install "tilec[lsp]"' in capsys.readouterr().err

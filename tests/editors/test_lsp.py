"""`tilec lsp` through its protocol: a client, and the command as an editor starts it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tools import ROOT

pytest.importorskip("pygls")

from lsprotocol import types
from pygls.lsp.client import LanguageClient
from pygls.uris import from_fs_path, to_fs_path

from tilec.core.diagnostics import Source
from tilec.lsp import edits
from tilec.lsp.costs import Question, Settings, planned, read_settings
from tilec.lsp.document import Document, with_open
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
def session(tmp_path: Path) -> Callable[..., None]:
    (tmp_path / "library.tile").write_text(LIBRARY)

    async def run(steps: Callable[[Editor], Awaitable[None]], settings: object) -> None:
        client = LanguageClient("test", "1")
        editor = Editor(client, tmp_path)
        await client.start_io(sys.executable, "-m", "tilec", "lsp", cwd=ROOT)
        await client.initialize_async(types.InitializeParams(
            types.ClientCapabilities(), root_uri=from_fs_path(str(tmp_path)), initialization_options=settings,
        ))  # fmt: skip
        client.initialized(types.InitializedParams())
        await steps(editor)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    return lambda steps, settings=None: asyncio.run(run(steps, settings))


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
        assert {"bf16", "exp", "sum", "inf"} <= set(found)

        def calls(text: str, within: int):
            return asked("text_document_signature_help_async", types.SignatureHelpParams, text, within)

        help_ = await calls("gelu(x[i, j])", 9)
        (signature,) = help_.signatures
        assert signature.label.startswith("def gelu(") and (help_.active_parameter, len(signature.parameters)) == (0, 1)
        assert (await calls("twice(gelu", 6)).signatures[0].label.startswith("def twice(")
        assert await calls("m[i]    =", 2) is None

        editor.change(PROGRAM.replace("gelu(x", "glu(x").replace("- m[i]", "+ pow(m[i], 2)"))
        assert "did you mean `gelu`" in (await editor.messages())[0].message
        assert (await calls("pow(m", 11)).active_parameter == 1, "a text with mistakes has calls, too"
        at = types.Range(editor.place("glu", 1), editor.place("glu", 1))
        asking = types.CodeActionParams(editor.document, at, types.CodeActionContext([]))
        (action,) = await editor.client.text_document_code_action_async(asking)
        (edit,) = action.edit.changes[editor.uri]
        assert (action.title, texts([edit])[0][1], edit.new_text) == ("Write `gelu`", "glu", "gelu")

    session(steps)


def test_a_text_that_is_read_twice_has_its_names_both_times():
    """An editor has the same text again after a change was undone."""
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = exp(x[i]) }\n"
    for _ in range(2):
        document = Document(Source("f.tile", text), with_open({}))
        (symbol, _) = document.at(text.index("x:"))
        assert len(symbol.spans) == 2 and len(edits.renamed(document, symbol, "z")) == 2


@pytest.mark.slow
def test_costs_of_statements(session):
    """Each is that of the plan, for the settings and the text as they are."""

    async def steps(editor: Editor) -> None:
        def configure(settings: object) -> None:
            editor.client.workspace_did_change_configuration(types.DidChangeConfigurationParams(settings))

        async def cost(text: str, within: int = 0) -> str:
            while "not ready yet" in (found := await editor.hover(text, within)):
                pass
            return found

        editor.open(PROGRAM)
        found = await cost("m[i]    =")
        assert "kernel `f" in found and "(on h200, M = 4096, N = 1024): " in found and " us predicted, bound by memory" in found
        assert "kernel" not in await cost("x: f32"), "no statement is there"

        editor.change(PROGRAM.replace("max[j](x[i, j])", "max[j](x[i, j]"))
        assert "kernel" not in await cost("m[i]    ="), "a text with mistakes has no plan"
        (editor.folder / "library.tile").write_text("def twice(v) { return x }\n")
        editor.change(PROGRAM)
        assert "kernel" not in await cost("m[i]    ="), "nor has one whose import is wrong"
        (editor.folder / "library.tile").write_text(LIBRARY)
        editor.change(PROGRAM + "# changed\n")
        assert await cost("m[i]    =") == found

        configure({"tilec": {"target": "cpu", "sizes": {"M": 8, "N": 8}}})
        assert "(on cpu, M = 8, N = 8): " in await cost("m[i]    =")
        configure({"tilec": {"target": "h20", "sizes": {"M": 8, "N": 8}}})
        assert "no cost on h20: unknown target 'h20'" in await cost("m[i]    =")
        configure({"tilec": {"sizes": {"M": 8}}})
        assert "no cost on cpu: the size `N` is not in the setting `tilec.sizes`" in await cost("m[i]    =")

        slow = "op f(x: f32[N, N]) -> (y: f32[N, N]) {\n" + "".join(
            f"    t{k}[i, j] = sum[n](x[i, n] * {f't{k - 1}' if k else 'x'}[n, j])\n" for k in range(60)
        ) + "    y[i, j] = t59[i, j]\n}\n"  # fmt: skip
        configure({"tilec": {"target": "h200", "sizes": {"M": 512, "N": 512}}})
        editor.change(slow)
        assert await editor.messages() == []
        late = asyncio.ensure_future(editor.hover("t3[i, j]"))
        await asyncio.sleep(0)  # it is sent
        editor.change(PROGRAM)
        assert "not ready yet" in await late, "the plan of a text that is gone has ended"
        assert "kernel `f" in await cost("m[i]    =")

    session(steps, {"target": "h200", "sizes": {"M": 4096, "N": 1024, "K": 7}})


@pytest.mark.parametrize("given, wrong", [
    ({"target": 3}, "`tilec.target` must be a name"), ({"sizes": [1]}, "`tilec.sizes` must be a table"),
    ({"tilec": {"sizes": {"M": "8"}}}, "M must be a whole number"), ({"sizes": {"M": True}}, "M must be a whole number"),
    (3, "must be a table"),
])  # fmt: skip
def test_wrong_settings(given, wrong):
    with pytest.raises(ValueError, match=wrong):
        read_settings(given)
    assert read_settings(None) == read_settings({}) == read_settings({"tilec": None}) == Settings()


def test_every_way_to_a_plan_has_its_answer(tmp_path):
    """The process that plans, without a process: a schedule file is obeyed, and imports come from open texts first."""
    text = 'import "library.tile"\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = twice(x[i]) }\n'
    (tmp_path / "library.tile").write_text("def thrice(v) { return 3 * v }\n")
    asked = Question(str(tmp_path / "f.tile"), text, (), {}, "f", "cpu", {"N": 64})
    assert "unknown function `twice`" in planned(asked).refused
    asked = replace(asked, opened={str(tmp_path / "library.tile"): LIBRARY})
    (kernel,) = planned(asked).kernels
    assert kernel.tensors == ["y"] and kernel.lines == [f"{tmp_path / 'f.tile'}:2"] and "100% of the op's time" in kernel.cost
    (tmp_path / "f.sched.toml").write_text("wrong = 1\n")
    assert planned(asked).refused


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

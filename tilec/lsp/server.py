"""The server: what editors ask, answered from documents. pygls speaks the protocol."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from tilec.core.diagnostics import Source, Span, TileError
from tilec.dsl.format import format_source
from tilec.dsl.symbols import Symbol
from tilec.lsp import edits
from tilec.lsp.costs import Answer, Costs, Settings, described, question, read_settings
from tilec.lsp.document import Document, file_of, with_open
from tilec.lsp.positions import Lines
from tilec.version import VERSION

DELAY = 0.15
"""Seconds without a change before a text is checked."""
PATIENCE = 5.0
"""Seconds that a hover waits for a plan. The server answers everything else meanwhile."""
_SEVERITIES = {"error": types.DiagnosticSeverity.Error, "warning": types.DiagnosticSeverity.Warning}
_KINDS = {
    "op": types.SymbolKind.Function, "function": types.SymbolKind.Function, "input": types.SymbolKind.Variable,
    "result": types.SymbolKind.Variable, "tensor": types.SymbolKind.Variable, "size": types.SymbolKind.Constant,
}  # fmt: skip

_COMPLETIONS = {
    "op": types.CompletionItemKind.Function, "function": types.CompletionItemKind.Function,
    "size": types.CompletionItemKind.Constant, "type": types.CompletionItemKind.Keyword,
}  # fmt: skip
REQUEST_FAILED = -32803  # of the protocol: a request that is right, and cannot be done


class Server(LanguageServer):
    """Keeps one document for each open text, until that text or another one changes."""

    def __init__(self) -> None:
        super().__init__("tilec", VERSION)
        self.changes = 0
        self.folders: tuple[str, ...] = ()
        self.settings, self.costs = Settings(), Costs()
        self._documents: dict[str, tuple[int, Document]] = {}

    def document(self, uri: str) -> Document:
        """Reads imports from open texts before files."""
        known = self._documents.get(uri)
        if known is not None and known[0] == self.changes:
            return known[1]
        changes, text = self.changes, self.workspace.get_text_document(uri).source
        made = Document(Source(_name(uri), text, self.folders), with_open(self.opened))
        self._documents[uri] = changes, made
        return made

    @property
    def opened(self) -> dict[str, str]:
        """The texts of open files by their paths."""
        return {_name(uri): text.source for uri, text in self.workspace.text_documents.items()}

    def change(self) -> None:
        """What was found of any text may be wrong now, since it may import another one."""
        self.changes += 1
        self.costs.forget()

    def forget(self, uri: str) -> None:
        self._documents.pop(uri, None)
        self.change()

    def configure(self, given: object) -> None:
        """Takes an editor's settings. Wrong ones change nothing, and a message says what is wrong."""
        try:
            self.settings = read_settings(given)
        except ValueError as error:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"tilec: {error}"))
        self.costs.forget()

    def lines(self, source: Source) -> Lines:
        """Of an open text as the editor has it, a mark before it included."""
        opened = self.workspace.text_documents.get(uri_of(source))
        return Lines(source.text if opened is None else opened.source, self.workspace.position_encoding)

    def location(self, span: Span) -> types.Location:
        return types.Location(uri_of(span.source), self.lines(span.source).range(span.start, span.end))

    def found(self, uri: str, position: types.Position) -> tuple[Document, int]:
        """The document, and the offset of a place in it."""
        document = self.document(uri)
        return document, self.lines(document.source).offset(position)


def _name(uri: str) -> str:
    """The path of a text; of one that is no file, a name that no import is looked for beside."""
    path = to_fs_path(uri) if urlsplit(uri).scheme == "file" else None
    return f"<{uri}>" if path is None else path


def uri_of(source: Source) -> str:
    if source.name.startswith("<") and source.name.endswith(">"):
        return source.name[1:-1]
    return from_fs_path(str(file_of(source))) or ""


def diagnostics(server: Server, document: Document) -> list[types.Diagnostic]:
    lines = server.lines(document.source)
    made = []
    for d in document.messages:
        span = document.shown_at(d)
        notes = [types.DiagnosticRelatedInformation(server.location(n.span), n.message) for n in d.notes]
        if span is not d.span and d.span is not Span.none():
            notes.insert(0, types.DiagnosticRelatedInformation(server.location(d.span), d.message))
        where = lines.range(span.start, span.end)
        made.append(types.Diagnostic(where, d.text, severity=_SEVERITIES[d.severity], source="tilec", related_information=notes))
    return made


def made() -> Server:
    """A server with every request that it answers."""
    server = Server()

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.configure(params.initialization_options)

    @server.feature(types.SHUTDOWN)
    def shutdown(_: None) -> None:
        server.costs.forget()

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configured(params: types.DidChangeConfigurationParams) -> None:
        server.configure(params.settings)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidOpenTextDocumentParams | types.DidChangeTextDocumentParams) -> None:
        server.change()
        await _check_all(server, DELAY if isinstance(params, types.DidChangeTextDocumentParams) else 0.0)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def saved(_: types.DidSaveTextDocumentParams) -> None:
        server.change()
        await _check_all(server, 0.0)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.forget(params.text_document.uri)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        document, offset = server.found(params.text_document.uri, params.position)
        if (at := document.at(offset)) is None:
            return None
        symbol, span = at
        text = "\n\n".join([f"```tile\n{document.described(symbol)}\n```\n{symbol.kind}", *await _costs(server, document, offset)])
        where = server.lines(document.source).range(span.start, span.end)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), where)

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> types.Location | None:
        document, offset = server.found(params.text_document.uri, params.position)
        if (at := document.at(offset)) is not None:
            return server.location(at[0].span)
        if (path := document.import_at(offset)) is not None:
            start = types.Position(0, 0)
            return types.Location(from_fs_path(str(path.absolute())) or "", types.Range(start, start))
        return None

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        document, offset = server.found(params.text_document.uri, params.position)
        if (at := document.at(offset)) is None:
            return []
        declared = at[0].span
        kept = [s for s in at[0].spans if params.context.include_declaration or s.start != declared.start]
        return [server.location(span) for span in kept]

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare_rename(params: types.PrepareRenameParams) -> types.Range | None:
        document, offset = server.found(params.text_document.uri, params.position)
        at = document.at(offset)
        if at is None or at[0].span.source is not document.source:
            return None
        return server.lines(document.source).range(at[1].start, at[1].end)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        document, offset = server.found(params.text_document.uri, params.position)
        if (at := document.at(offset)) is None:
            return None
        try:
            spans = edits.renamed(document, at[0], params.new_name)
        except edits.Refused as error:
            raise JsonRpcException(str(error), REQUEST_FAILED) from None
        lines = server.lines(document.source)
        changes = [types.TextEdit(lines.range(s.start, s.end), params.new_name) for s in spans]
        return types.WorkspaceEdit({params.text_document.uri: changes})

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def inlay_hint(params: types.InlayHintParams) -> list[types.InlayHint]:
        document = server.document(params.text_document.uri)
        lines, first, last = server.lines(document.source), params.range.start, params.range.end
        made = [(lines.position(offset), text) for offset, text in edits.hints(document)]
        return [
            types.InlayHint(position, text, types.InlayHintKind.Type, padding_left=True)
            for position, text in made
            if first.line <= position.line <= last.line
        ]

    @server.feature(types.TEXT_DOCUMENT_COMPLETION)
    def completion(params: types.CompletionParams) -> list[types.CompletionItem]:
        document, offset = server.found(params.text_document.uri, params.position)
        return [
            types.CompletionItem(name, kind=_COMPLETIONS.get(kind, types.CompletionItemKind.Variable), detail=detail)
            for name, kind, detail in edits.names_at(document, offset)
        ]

    @server.feature(types.TEXT_DOCUMENT_SIGNATURE_HELP, types.SignatureHelpOptions(["(", ","]))
    def signature_help(params: types.SignatureHelpParams) -> types.SignatureHelp | None:
        document, offset = server.found(params.text_document.uri, params.position)
        if (found := edits.call_at(document, offset)) is None:
            return None
        head, parameters, number = found
        named = [types.ParameterInformation(name) for name in parameters]
        return types.SignatureHelp([types.SignatureInformation(head, parameters=named)], 0, number)

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions([types.CodeActionKind.QuickFix]))
    def code_action(params: types.CodeActionParams) -> list[types.CodeAction]:
        uri = params.text_document.uri
        document, first = server.found(uri, params.range.start)
        lines, last = server.lines(document.source), server.found(uri, params.range.end)[1]
        found = []
        for span, meant, about in edits.corrections(document):
            if span.start <= last and first <= span.end:
                edit = types.WorkspaceEdit({uri: [types.TextEdit(lines.range(span.start, span.end), meant)]})
                made = [d for d in params.context.diagnostics if d.message == about.text]
                found.append(types.CodeAction(f"Write `{meant}`", types.CodeActionKind.QuickFix, made, True, edit=edit))
        return found

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        return outline(server, server.document(params.text_document.uri))

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
        source = server.document(params.text_document.uri).source
        try:
            text = format_source(source.text)
        except TileError:
            return None  # its mistakes are shown already
        return [] if text == source.text else [types.TextEdit(server.lines(source).whole, text)]

    return server


async def _costs(server: Server, document: Document, offset: int) -> list[str]:
    """What a hover says of the kernels of the statement at a place. A text with mistakes has none."""
    found = None if document.mistakes else document.equation_at(offset)
    if found is None:
        return []
    op, equation = found
    settings = server.settings
    asked = question(document.source, op, settings, server.opened)
    answer = asked if isinstance(asked, Answer) else await server.costs.answer(asked, PATIENCE)
    if answer is None:
        return [f"the plan for {settings.target} is not ready yet"]
    return list(described(answer, settings, op, equation))


async def _check_all(server: Server, delay: float) -> None:
    """Checks every open text, since any may import the one that changed; stops where another change follows."""
    changes = server.changes
    await asyncio.sleep(delay)
    for uri, opened in list(server.workspace.text_documents.items()):
        if server.changes != changes:
            return
        found = await asyncio.get_running_loop().run_in_executor(server.thread_pool, _checked, server, uri)
        if server.changes == changes:
            server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found, opened.version))


def _checked(server: Server, uri: str) -> list[types.Diagnostic]:
    return diagnostics(server, server.document(uri))


def outline(server: Server, document: Document) -> list[types.DocumentSymbol]:
    """Ops with their tensors, and functions."""
    if document.symbols is None:
        return []
    lines = server.lines(document.source)

    def entry(symbol: Symbol, whole: Span) -> types.DocumentSymbol:
        detail = document.described(symbol).removeprefix(f"{symbol.name}: ").replace("\n", "  ")
        own = lines.range(symbol.span.start, symbol.span.end)
        return types.DocumentSymbol(
            symbol.name, _KINDS[symbol.kind], lines.range(whole.start, whole.end), own, "" if symbol.node else detail
        )

    made: dict[str, types.DocumentSymbol] = {}
    for symbol in document.symbols.declared.values():
        assert symbol.node is not None, "a declaration"
        made[symbol.name] = entry(symbol, symbol.node.span)
    tensors = [s for s in document.symbols.all if s.kind in ("input", "result", "tensor")]
    for name, declared in made.items():
        declared.children = [entry(s, s.span) for s in tensors if s.owner == name]
    return [*made.values(), *(entry(s, s.span) for s in tensors if s.owner not in made)]  # the short form has no declaration

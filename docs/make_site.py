"""Pages of `make site` that are made from elsewhere: a hook of MkDocs (`mkdocs.yml`).

The home page is README.md. Each example has a page with its program, the table of `explain` and the page of `tilec report`. Links
to files outside of docs/ lead to copies of these files.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"h200": "an NVIDIA H200", "cpu": "a CPU"}
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files outside of docs/ that are pages."""
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)([^)]*\))")
BLOCK = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
NAMES = {  # on the page of the API, in this order
    "tilec": ["compile", "einsum", "op", "from_torch", "Op", "Kernel", "Plan", "interpret", "reference", "set_threads",
              "get_threads", "TileError", "CallError"],
    "tilec.torch": ["op", "report"],
}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages, and copies of files that pages link to."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    made = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in PAGES.items()}
    made["api.md"] = api()
    made |= dict(gallery())
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for page, text in [*made.items(), *((f.src_uri, f.content_string) for f in list(files) if f.src_uri.endswith(".md"))]:
        for path in filter(None, (outside(page, target) for _, target, _ in LINK.findall(BLOCK.sub("", text)))):
            copied = path not in PAGES and not path.startswith("docs/") and (ROOT / path).is_file()
            if copied and files.get_file_from_path(f"source/{path}") is None:
                files.append(File.generated(config, f"source/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The text with links that stay within the site. A link to a folder is left out."""
    here = page.file.src_uri

    def led(found: re.Match[str]) -> str:
        begin, target, end = found.groups()
        if (path := outside(here, target)) is None:
            return found[0]
        if path.startswith("docs/"):  # of a page that lies at the root
            return f"{begin}{relative(path.removeprefix('docs/'), here)}{end}"
        example = f"gallery/{Path(path).stem}.md"
        to = PAGES.get(path) or (example if files.get_file_from_path(example) and path.endswith(".tile") else f"source/{path}")
        if files.get_file_from_path(to) is None:
            return begin.lstrip("![").removesuffix("](")
        return f"{begin}{relative(to, here)}{end}"

    parts = BLOCK.split(markdown)
    return "".join(part if BLOCK.fullmatch(part) else LINK.sub(led, part) for part in parts)


def outside(page: str, target: str) -> str | None:
    """The path in the repository of what a page links to, where the site has no such page."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return None
    place = {to: name for name, to in PAGES.items()}.get(page, f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    return path if not path.startswith("docs/") or page in PAGES.values() else None


def relative(path: str, page: str) -> str:
    return posixpath.relpath(path, posixpath.dirname(page) or ".")


def api() -> str:
    parts = ["# API", "What a program of yours imports, from its docstrings. [Python](python.md) explains it with examples.", ""]
    for module, names in NAMES.items():
        parts += [f"::: {module}.{name}\n" for name in names]
    return "\n".join(parts)


def gallery() -> Iterator[tuple[str, str]]:
    """Pages of all examples, and their reports."""
    from expectations import EXAMPLES

    import tilec

    rows = []
    for name, example in EXAMPLES.items():
        text = example.path.read_text(encoding="utf-8")
        about = text.partition("\n")[0].lstrip("# ") if text.startswith("#") else ""
        sizes = ", ".join(f"{n} = {k}" for n, k in example.bench_sizes.items())
        parts = [f"# {name}", about, f"```tile\n{text.rstrip()}\n```", f"The op `{example.op}` at {sizes}:"]
        for target, machine in TARGETS.items():
            op = tilec.compile(example.path, op=example.op, target=target).build(**example.bench_sizes)
            yield f"gallery/{name}-{target}.html", op.report()
            table = f"```text\n{op.explain().rstrip()}\n```"
            parts += [f"## On {machine}", table, f"[The report of this plan]({name}-{target}.html)"]
        rows.append(f"| [{name}]({name}.md) | {about} |")
        yield f"gallery/{name}.md", "\n\n".join(parts) + "\n"
    head = "Every example with its program, its plan on two machines, and a report of each. The cost model predicts the times."
    yield "gallery/index.md", "\n".join(["# Gallery", "", head, "", "| example | what it computes |", "|---|---|", *rows, ""])

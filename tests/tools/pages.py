"""What tests of HTML pages share: a page's links and texts, and what a headless browser finds when it opens one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "link", "input", "br", "hr", "img"}

CHECKS = """
<script>
addEventListener("load", () => {
  const label = e => [e.getAttribute("aria-label"), ...(e.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean)
    .map(id => document.getElementById(id)?.textContent), e.closest("label")?.textContent, e.textContent];
  const parts = [...document.querySelectorAll("a, summary, input, button, nav, [role]:not([role=status]), [tabindex]")];
  const marked = [...document.querySelectorAll(".source > .used")].map(line => {
    line.click();
    const count = document.querySelectorAll(".on[data-l]").length;
    line.click();
    return count;
  });
  parent.document.title = JSON.stringify({
    nameless: parts.filter(e => !label(e).some(text => text?.trim())).map(e => e.outerHTML.slice(0, 100)),
    width: document.documentElement.scrollWidth, window: innerWidth, marked,
    background: getComputedStyle(document.body).backgroundColor,
  });
});
</script>
"""
"""Run in the page; its frame's title is what they find."""


class Page(HTMLParser):
    """The ids and targets of a page, addresses that it would load, and its text. Raises ValueError where tags do not nest."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.pieces: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"] or "")
        if tag == "a":
            self.targets.append(found["href"] or "")
        elif tag != "use":
            self.loaded += [found[key] or "" for key in ("href", "src", "srcset") if key in found]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and (last := self._open.pop()) != tag:
            if last not in ("tr", "th", "td", "li", "path", "rect", "circle"):
                raise ValueError(f"</{tag}> closes <{last}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self.pieces.append(data)


def opened(text: str, folder: Path, width: int, dark: bool = False) -> dict:
    """What the browser finds in a page of this width, and the messages of its console under `console`. The page is in a frame,
    since windows have a least width."""
    assert BROWSER is not None
    framed = html.escape(text.replace("</body>", CHECKS + "</body>"))
    path = folder / f"frame-{width}.html"
    path.write_text(f'<meta charset="utf-8"><iframe style="width: {width}px" srcdoc="{framed}"></iframe>', encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={folder}/profile",
               f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=5000"]  # fmt: skip
    done = subprocess.run([BROWSER, *options, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=60)
    found = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert found, done.stderr
    return {**json.loads(html.unescape(found[1])), "console": [row for row in done.stderr.splitlines() if "CONSOLE" in row]}

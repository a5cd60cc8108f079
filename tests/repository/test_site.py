"""`make site`: its pages are there, and what they link to; a browser opens them without a complaint."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tools import ROOT
from tools.pages import BROWSER

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")
pytestmark = pytest.mark.slow


FRAME = """<meta charset="utf-8"><iframe src="{page}" style="width: {width}px; height: 900px"></iframe><script>
addEventListener("load", () => {{
  const inside = document.querySelector("iframe").contentDocument;
  document.title = JSON.stringify({{
    width: inside.documentElement.scrollWidth, window: inside.documentElement.clientWidth,
    background: getComputedStyle(inside.body).backgroundColor, headings: inside.querySelectorAll("h1").length,
  }});
}});</script>"""
"""Windows have a least width, frames have none."""


class Links(HTMLParser):
    """What a page links to or loads, and its anchors. The generator's pages leave out the ends of some tags."""

    def __init__(self, page: Path):
        super().__init__()
        self.targets, self.anchors = list[str](), set[str]()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or found.get("name") or "")
        if target := found.get("href") or found.get("src"):
            self.targets.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Of the site, from a server: search takes one."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_links_lead_somewhere(site):
    pages = {p: Links(p) for p in site.rglob("*.html") if not re.search(r"-(h200|cpu)\.html$|404", p.name)}
    missing = []
    for page, found in pages.items():
        for target in found.targets:
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            to = (page.parent / path).resolve() if path else page
            if not to.exists() or (anchor and to in pages and anchor not in pages[to].anchors):
                missing.append(f"{page.relative_to(site)}: {target}")
    assert not missing, "\n".join(missing)


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(https?:[^\"]+)\"", page.read_text())
        assert not loaded, (page, loaded)


def test_every_example_is_in_the_gallery(site):
    from expectations import EXAMPLES

    text = (site / "gallery" / "index.html").read_text()
    for name in EXAMPLES:
        assert f'href="{name}.html"' in text
        page = (site / "gallery" / f"{name}.html").read_text()
        for target in ("h200", "cpu"):
            assert f'href="{name}-{target}.html"' in page and (site / "gallery" / f"{name}-{target}.html").stat().st_size > 10_000


def test_the_api_has_every_public_name(site):
    import tilec

    found = Links(site / "api.html").anchors
    assert [n for n in tilec.__all__ if f"tilec.{n}" not in found and n not in ("Diagnostic", "InternalError", "__version__")] == []


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1600, False)])
@pytest.mark.parametrize("page", ["index", "guides/numpy", "tutorial/1_first_op", "gallery/attention", "api"])
def test_a_browser_shows_it(site, address, page, width, dark, tmp_path):
    path = (site / page).with_suffix(".html")
    frame = path.with_name(f"frame-{path.stem}-{width}.html")
    frame.write_text(FRAME.format(page=path.name, width=width), encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               f"--user-data-dir={tmp_path}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
               "--virtual-time-budget=5000"]  # fmt: skip
    command = [BROWSER, *options, "--dump-dom", f"{address}/{frame.relative_to(site)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    frame.unlink()
    assert [row for row in done.stderr.splitlines() if "CONSOLE" in row] == []
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    found = json.loads(html.unescape(title))
    assert found["headings"] == 1 and found["width"] <= found["window"]
    shade = sum(map(int, re.findall(r"\d+", found["background"])[:3]))
    assert shade < 200 if dark else shade > 700

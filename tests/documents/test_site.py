"""The site: complete, its links right, and nothing in it that is loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.closure import PRODUCT

from .blocks import ROOT

# What a browser fetches by itself when it shows a page.
_LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src",),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
}
_FETCHING = {"stylesheet", "preload", "prefetch", "modulepreload", "icon", "manifest", "preconnect"}


class _Loads(HTMLParser):
    """Addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.found += [given[name] for name in _LOADED.get(tag, ()) if name in given]
        if tag == "link" and set(given.get("rel", "").split()) & _FETCHING:
            self.found.append(given.get("href", ""))


def loads(page: str) -> list[str]:
    """Addresses in a page, or in its styles, that are on another machine."""
    parser = _Loads()
    parser.feed(page)
    found = parser.found + re.findall(r"url\(\s*[\"']?([^)\"']+)", page)
    found += re.findall(r"@import\s+[\"']([^\"']+)", page)
    return [address for address in found if re.match(r"\s*(?:[a-z]+:)?//", address, re.I)]


def test_what_is_loaded_from_elsewhere_is_seen() -> None:
    for page in (
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="preload stylesheet" href="//fonts.example/css">',
        "<style>@import 'http://a.example/b.css'; a { background: url(//b.example/c.png) }</style>",
        '<img src="HTTPS://a.example/b.png">',
    ):
        assert loads(page), page
    assert (
        loads('<a href="https://a.example">a</a><img src="a.svg"><link rel="icon" href="b">') == []
    )


def test_every_document_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r": ([\w/-]+\.md)$", text[text.index("\nnav:") :], re.M)
    docs = ROOT / "docs"
    there = [str(path.relative_to(docs)) for path in docs.rglob("*.md")]
    assert sorted(named) == sorted(there)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What `make docs` built, if nothing that it shows is newer; otherwise built here."""
    built = ROOT / "build" / "site"
    page = built / "index.html"
    shown = [path for name in ("docs", *PRODUCT) for path in (ROOT / name).rglob("*.*")]
    shown = [path for path in (*shown, ROOT / "mkdocs.yml") if path.suffix != ".pyc"]
    if page.is_file() and page.stat().st_mtime > max(path.stat().st_mtime for path in shown):
        return built
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [p for p in site.rglob("*") if p.suffix in (".html", ".css", ".svg")]
    assert len(pages) > 25
    wrong = {str(p.relative_to(site)): loads(p.read_text(encoding="utf-8")) for p in pages}
    assert {name: found for name, found in wrong.items() if found} == {}
    tutorial = (site / "tutorials" / "board" / "index.html").read_text(encoding="utf-8")
    assert "Not run by the tests: it needs a board on the network." in tutorial
    assert 'href="../../arm/"' in tutorial and "benchmarks/" not in tutorial

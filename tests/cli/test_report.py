"""`ibert report`: the page's numbers beside the documents of the commands that they are from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.report.page import without_folders
from tests.commands import Ibert, Refused
from tests.encoder.small_encoders import bert, save_bert
from tests.report.pages import Page, resolve, says

pytest.importorskip("jinja2", reason="the page needs the extra report")

_TEXTS = ["hello world", "small big world", "big small hello hello", "world"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME.ibert, its float source and texts beside it."""
    folder = tmp_path_factory.mktemp("report")
    bert().save(folder / "small.ibert")
    save_bert(folder / "source")
    (folder / "texts.txt").write_text("\n".join(_TEXTS), encoding="utf-8")
    return folder / "small.ibert"


def _stable(document: dict[str, Any], *without: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in ("seconds", *without)}


@pytest.mark.slow
def test_the_pages_numbers_are_those_of_the_commands(
    ibert: Ibert, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ibert_tvm.frontend as frontend

    load, imported = frontend.load, []

    def counted(source: Path, **options: Any) -> Any:
        imported.append(source)
        return load(source, **options)

    monkeypatch.setattr(frontend, "load", counted)
    page = model.parent / "page.html"
    common = ("--against", model.parent / "source", "--text", model.parent / "texts.txt")
    words = ("--no-why", "--compare", model, "-o", page, "--seq-len", "8", "--json")
    made = ibert("report", model, *common, *words)
    assert made.code == 0, made.stderr
    assert imported == [model.parent / "source"]  # once for both
    assert page.stat().st_size == made.document["bytes"] < 2**20
    read = Page(page.read_text(encoding="utf-8"))
    for pointer, value, text in read.numbers:
        assert resolve(read.document, pointer) == value and says(text, value), pointer
    assert read.document == without_folders(_stable(made.document, "output", "bytes"))

    held, other = read.document["artefacts"]
    assert _stable(held["eval"]) == _stable(other["eval"])
    inspected = ibert("inspect", model, "--json").document
    assert held["inspect"] == without_folders(_stable(inspected, "values"))
    evaluated = ibert("eval", model, *common, "--seq-len", "8", "--json").document
    assert _stable(held["eval"]) == without_folders(_stable(evaluated))
    assert held["eval"]["layers"]
    certificate = model.parent / "of-the-model.json"
    ibert("verify", model, "--inputs", "1", "-o", certificate)
    (bits,) = (
        check["facts"]["bits"]
        for check in json.loads(certificate.read_text())["checks"]
        if check["name"] == "intervals"
    )
    assert {
        step["name"]: tuple(step[key] for key in ("low", "high", "width", "headroom"))
        for step in held["graph"]["steps"]
    } == {
        name: tuple(row[key] for key in ("low", "high", "width", "headroom"))
        for name, row in bits.items()
    }


@pytest.mark.slow
def test_a_library_is_measured_and_what_is_missing_says_why(
    ibert: Ibert, library: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    made = ibert("report", library, "-o", page, "--seconds", "0", "--json")
    assert made.code == 0, made.stderr
    (held,) = made.document["artefacts"]
    other = ibert("bench", library, "--threads", "1", "--seconds", "0", "--per-layer", "--json")

    def shape(value: Any) -> Any:
        """Keys and lengths: times are never the same twice."""
        if isinstance(value, dict):
            return {key: shape(part) for key, part in value.items()}
        return [shape(part) for part in value] if isinstance(value, list) else type(value).__name__

    assert shape(held["bench"]) == shape(other.document)
    assert held["missing"] == {
        "graph": "--model NAME.ibert was not given",
        "fidelity": "--against MODEL was not given",
        "certificate": f"there is no {library.name}.verify.json beside it",
    }
    assert "--against MODEL was not given" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_certificate_is_that_of_the_artefact_or_not_shown(
    ibert: Ibert, refused: Refused, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a.ibert"
    shutil.copytree(model, folder)
    certificate = tmp_path / "a.ibert.verify.json"
    ibert("verify", folder, "--inputs", "1", "-o", certificate)
    made = ibert("report", folder, "-o", tmp_path / "page.html", "--json").document
    (held,) = made["artefacts"]
    assert held["certificate"] == json.loads(certificate.read_text())
    assert "certificate" not in held["missing"]

    changed = json.loads(certificate.read_text())
    changed["passed"] = False
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    words = ("report", folder, "-o", tmp_path / "page.html", "--certificate")
    refused(*words, tmp_path / "changed.json")

    (tmp_path / "changed.json").replace(certificate)  # found, not asked for
    made = ibert("report", folder, "-o", tmp_path / "page.html", "--json").document
    assert made["artefacts"][0]["missing"]["certificate"] == (
        f"cannot use the certificate {certificate}: its sha256 is not that of its "
        "content: it was changed"
    )

    ibert("verify", folder, "--inputs", "1", "-o", certificate)
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + "\n")
    made = ibert("report", folder, "-o", tmp_path / "page.html", "--json").document
    reason = f"{certificate} is that of another artefact, or of another state of this one"
    assert made["artefacts"][0]["missing"]["certificate"] == reason
    refused(*words, certificate)


def test_the_graph_alone(ibert: Ibert, model: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the file needs the extra onnx")
    file = tmp_path / "graph.onnx"
    made = ibert("report", model, "--graph", file, "--json")
    assert (made.code, made.document) == (0, {"graph": str(file)})
    assert len(onnx.load(file).graph.node) == len(bert().program.steps)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.onnx"]


@pytest.mark.slow
def test_what_is_refused_before_anything_is_measured(
    refused: Refused, model: Path, library: Path, tmp_path: Path
) -> None:
    source, texts = model.parent / "source", model.parent / "texts.txt"
    for words in (
        (source,),
        (tmp_path / "none.so",),
        (library, "--text", texts),
        (library, "--compare-model", model),
        (library, "--model", model),
        (model, "--model", model.parent / "other.ibert"),
        (library, "--graph", tmp_path / "graph.onnx"),
    ):
        refused("report", *words, "-o", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    refused("report", model, "-o", tmp_path / "no" / "page.html")

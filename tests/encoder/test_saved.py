"""Encoders as folders: what is written, and that it is read only as it was written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import ArtefactError, LibraryError, OutputError, UsageError
from ibert_tvm.common.files import files_sha256
from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.encoder.saved import SavedEncoderError
from ibert_tvm.verification.certificate import Certificate, Check
from tests.artefact.conftest import make_quantized
from tests.encoder.small_encoders import bert
from tests.snapshots import Messages

Make = Callable[..., Encoder]
TEXTS = ["hello world", "small big small small small", "big"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ibert_tvm"


@pytest.fixture
def saved(encoder: Make, tmp_path: Path) -> Path:
    """A folder of an encoder with settings of its own."""
    model = Encoder(
        encoder("embedding").library, max_seq_length=5, prompts={"query": "small "},
        default_prompt_name="query", similarity_fn_name="dot", truncate_dim=2,
    )  # fmt: skip
    model.model_card_data.add({"mean_cosine": 0.9993, "layers": []})
    library = model.library.metadata.path
    checks = (Check("code", {}), Check("integers", {}, not_run="no model was given"))
    certificate = Certificate("tiny.so", files_sha256([library]), "", checks).to_json()
    (tmp_path / "verify.json").write_text(json.dumps(certificate))
    model.save_pretrained(tmp_path / "saved", "me/tiny|x", certificate=tmp_path / "verify.json")
    return tmp_path / "saved"


def test_a_saved_encoder_is_the_same(saved: Path, encoder: Make) -> None:
    names = {"README.md", "encoder.json", "manifest.json", "model.so", "model.so.verify.json"}
    assert {file.name for file in saved.iterdir()} == names
    model = Encoder.from_pretrained(saved)
    wanted = Encoder(encoder("embedding").library, max_seq_length=5)
    expected = wanted.encode(TEXTS, prompt="small ", truncate_dim=2)
    np.testing.assert_array_equal(model.encode(TEXTS), expected)
    assert (model.similarity_fn_name, model.truncate_dim, model.max_seq_length) == ("dot", 2, 5)
    assert Encoder(saved, truncate_dim=1).encode("big").shape == (1,)
    model.prompts["query"] = ""
    model.save(saved)  # in its own place
    np.testing.assert_array_equal(
        Encoder(saved).encode(TEXTS), wanted.encode(TEXTS, truncate_dim=2)
    )


def test_the_card_is_one_of_the_hub(saved: Path) -> None:
    text = (saved / "README.md").read_text(encoding="utf-8")
    card = huggingface_hub.ModelCard(text)
    assert card.data.library_name == "ibert-tvm" and card.data.pipeline_tag == "feature-extraction"
    for part in (
        "# me/tiny\\|x", '"me/tiny|x"', "| mean_cosine | 0.9993 |", "| code | passed |",
        "| integers | no model was given |", "| complete | no |", "| truncate dim | 2 |",
        "| longest text | 16 tokens, in batches of at most 4 |",
    ):  # fmt: skip
        assert part in text, part
    (saved / "README.md").write_text("edited on the hub")
    (saved / "model.so.verify.json").write_text("written again")
    Encoder(saved)


def _flip(folder: Path) -> None:
    content = bytearray((folder / "model.so").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.so").write_bytes(content)


def _unlist(folder: Path) -> None:
    library = (folder / "model.so").rename(folder.parent / "model.so")
    write_manifest(folder)
    library.rename(folder / "model.so")


def _settings(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        document = json.loads((folder / "encoder.json").read_text())
        (folder / "encoder.json").write_text(json.dumps({**document, **changes}))
        write_manifest(folder)

    return change


def test_settings_of_later_versions_are_not_looked_at(saved: Path) -> None:
    _settings(ault_prompt_name="query")(saved)
    Encoder(saved)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_flip, id="a bit"),
        pytest.param(lambda folder: (folder / "manifest.json").unlink(), id="no manifest"),
        pytest.param(lambda folder: (folder / "model.so").unlink(), id="no library"),
        pytest.param(_unlist, id="not listed"),
        pytest.param(_settings(version=2), id="newer"),
        pytest.param(_settings(prompts=["query"]), id="no prompts"),
    ],
)
def test_what_was_changed_is_refused(
    saved: Path, messages: Messages, damage: Callable[[Path], None]
) -> None:
    damage(saved)
    with messages.raises(SavedEncoderError):
        Encoder(saved)


def test_nothing_else_is_overwritten(
    saved: Path, encoder: Make, tmp_path: Path, messages: Messages
) -> None:
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "mine", saved):
        (folder / "notes.txt").write_text("mine")
        with messages.raises(OutputError):
            encoder("embedding").save_pretrained(folder)
        assert (folder / "notes.txt").read_text() == "mine"


def test_a_saved_encoder_with_files_of_others_is_kept(encoder: Make, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    for _ in range(2):
        encoder("embedding").save_pretrained(path)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="with nothing added but its card"):
        encoder("embedding").save_pretrained(path)
    assert (path / "notes.txt").read_text() == "mine"


def test_companions_must_be_the_librarys(
    encoder: Make, saved: Path, tmp_path: Path, messages: Messages
) -> None:
    other = encoder("classes")
    with messages.raises(LibraryError):
        other.save_pretrained(tmp_path / "other", certificate=tmp_path / "verify.json")
    made = make_quantized()
    foreign = replace(made, info=replace(made.info, source_sha256="1" * 64))
    artefact = foreign.save(tmp_path / "other.ibert")
    with messages.raises(UsageError):
        other.save_pretrained(tmp_path / "other", model=artefact)
    with pytest.raises(ArtefactError):
        other.save_pretrained(tmp_path / "other", model=saved)
    assert not (tmp_path / "other").exists()


@pytest.fixture
def published(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The saved encoder as the hub's cache holds it, under the name ``me/tiny``."""
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "hub"))
    entry = tmp_path / "hub" / "models--me--tiny"
    snapshot = entry / "snapshots" / "12ab"
    (entry / "blobs").mkdir(parents=True)
    for file in (file for file in saved.rglob("*") if file.is_file()):
        blob = entry / "blobs" / files_sha256([file])
        shutil.copyfile(file, blob)
        place = snapshot / file.relative_to(saved)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(blob, place.parent))
    return snapshot


def test_code_of_the_hub_runs_only_where_it_is_trusted(
    published: Path, messages: Messages, cache: Path
) -> None:
    with messages.raises(UsageError):
        Encoder("me/tiny")
    model = Encoder("me/tiny", trust_remote_code=True)
    assert model.library.metadata.path.is_relative_to(cache)  # not where others could change it
    assert Encoder(published).encode(TEXTS).tolist() == model.encode(TEXTS).tolist()
    (published / "model.so").resolve().write_bytes(b"other code")
    shutil.rmtree(cache)
    with pytest.raises(SavedEncoderError, match="it has 10 bytes"):
        Encoder("me/tiny", trust_remote_code=True)


def test_a_model_beside_the_library_is_compiled_instead(
    published: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, encoder: Make
) -> None:
    (saved / "model.ibert").mkdir()
    (saved / "model.ibert" / "quantization.json").write_text("{}")
    write_manifest(saved)
    made: list[Any] = []
    library = encoder("embedding").library.metadata.path

    def prepared(path: Path, options: Any) -> Path:
        made.append((path.name, options.target, options.max_seq_length))
        return library

    monkeypatch.setattr("ibert_tvm.encoder.prepared.prepared_library", prepared)
    from ibert_tvm.encoder.saved import open_saved

    _, settings = open_saved(saved, False, "x86-64", {})
    assert made == [("model.ibert", "x86-64", 5)] and settings.truncate_dim == 2
    open_saved(saved, True, "x86-64", {})
    assert len(made) == 1


@pytest.mark.slow
def test_a_model_beside_a_library_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "hub"))
    artefact = bert().save(tmp_path / "bert.ibert")
    encoder = Encoder(artefact, target="x86-64", max_seq_length=8)
    encoder.save_pretrained(tmp_path / "small-int8", model=artefact)
    (tmp_path / "hub" / "models--me--small" / "snapshots").mkdir(parents=True)
    shutil.copytree(
        tmp_path / "small-int8", tmp_path / "hub" / "models--me--small" / "snapshots" / "12ab"
    )
    expected = encoder.encode(TEXTS)
    encoder.library.metadata.path.unlink()
    compiled = Encoder("me/small", target="x86-64")
    assert compiled.library.metadata.path.is_relative_to(cache)
    assert compiled.max_seq_length == 8
    np.testing.assert_array_equal(compiled.encode(TEXTS), expected)

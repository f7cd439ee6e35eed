"""The check of the tokenizer: of folders, libraries and packages, without torch or transformers."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.model.tokenizer_behaviour import behaviour
from ibert_tvm.verification import verify
from ibert_tvm.verification.certificate import Check
from ibert_tvm.verification.checks import check_tokenizer
from tests.artefact.conftest import make_quantized
from tests.commands import Ibert
from tests.runtime.conftest import VOCABULARY


def exchanged(one: int, other: int) -> dict[str, bytes]:
    """The tokenizer with two words in each other's place."""
    words = list(VOCABULARY)
    words[one], words[other] = words[other], words[one]
    return {"vocab.txt": "\n".join(words).encode()}


def checked(model: QuantizedModel, files: Mapping[str, bytes] | None) -> Check:
    (check,) = check_tokenizer(model.info, lambda: files, model)
    return check


def test_a_tokenizer_with_two_words_exchanged(tmp_path: Path) -> None:
    """Words that no probe has, and digests of files that are right."""
    model = make_quantized()
    assert checked(model, model.tokenizer).passed
    other = exchanged(-1, -2)
    folder = replace(model, tokenizer=other).save(tmp_path / "exchanged.ibert")
    _, check, _ = verify(folder).checks
    assert check.name == "tokenizer"
    vocabulary, texts = check.findings
    assert vocabulary == f"vocabulary: {len(VOCABULARY)} tokens, which is not what was recorded"
    assert texts.startswith("texts of all words: ")
    # Beside the model that it came from, what both do is known.
    last, before = json.dumps([VOCABULARY[-1], 6]), json.dumps([VOCABULARY[-2], 6])
    assert checked(model, other).findings[0] == (
        f"vocabulary: {last}, and of the model's tokenizer {before}"
    )


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ('{"model_input_names": ["input_ids"]}', "('a question of one text?'"),
        ('{"truncation_side": "left"}', "settings: "),
        ('{"model_max_length": 9}', "settings: "),
        ('{"pad_token": "[SEP]"}', "settings: "),
    ],
)
def test_other_settings_are_named(settings: str, name: str) -> None:
    model = make_quantized()
    files = {**model.tokenizer, "tokenizer_config.json": settings.encode()}
    assert any(line.startswith(name) for line in checked(model, files).findings)


def test_inspect_shows_the_digest(ibert: Ibert, tmp_path: Path) -> None:
    model = make_quantized()
    said = {**model.info.tokenizer_behaviour, "compared_with": "transformers 5"}
    folder = replace(model, info=replace(model.info, tokenizer_behaviour=said))
    shown = ibert("inspect", folder.save(tmp_path / "tiny.ibert")).stdout
    digest = f"ids of the probe texts have sha256 {said['sha256'][:16]}, as transformers 5 does"
    assert digest in " ".join(shown.split())


def test_what_is_missing_is_no_silent_pass(tmp_path: Path) -> None:
    model = make_quantized()
    old = replace(model, info=replace(model.info, tokenizer_behaviour={}))
    certificate = verify(old.save(tmp_path / "old.ibert"))
    assert certificate.passed and not certificate.complete
    assert "an earlier version made the artefact" in certificate.checks[1].not_run
    newer = replace(model.info, tokenizer_behaviour={"version": "99"})
    assert "of other texts" in checked(replace(model, info=newer), model.tokenizer).not_run
    assert checked(model, {}).findings == (
        "it has no tokenizer, and the model that it was compiled from has one",
    )
    bare = replace(model, tokenizer={}, info=old.info)
    assert check_tokenizer(bare.info, lambda: {}, bare) == []
    assert checked(bare, model.tokenizer).findings == (
        "the model that it was compiled from has no tokenizer",
    )
    (damaged,) = checked(model, {"tokenizer.json": b"{"}).findings
    assert damaged.startswith("the tokenizer cannot be read")
    # Files that differ and do the same, as where a word has another comment.
    spaced = {**model.tokenizer, "tokenizer_config.json": b"{ }"}
    (same,) = checked(model, spaced).findings
    assert "do the same with every probe" in same


def test_a_package_has_the_digest_alone() -> None:
    model = make_quantized()
    assert checked(model, None).passed
    other = behaviour(Tokenizer(exchanged(4, 5)))
    forged = replace(model.info, tokenizer_behaviour=other)
    (check,) = check_tokenizer(forged, lambda: None, model)
    assert check.findings


def test_a_tokenizer_of_a_library_that_does_not_inflate() -> None:
    from ibert_tvm.runtime.library import _inflated

    model = make_quantized()
    text = base64.b64encode(zlib.compress(b"x")).decode()
    (check,) = check_tokenizer(model.info, lambda: {"a": _inflated("a", text)}, model)
    assert check.findings == (
        "the library's tokenizer cannot be read: a: no tokenizer has such a file",
    )

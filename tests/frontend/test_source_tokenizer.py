"""Tokenizers of model folders: the ids, types and cuts of transformers, from any of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.frontend import source_tokenizer as module
from ibert_tvm.frontend.errors import ModelSourceError
from ibert_tvm.frontend.source_tokenizer import PROBES, source_tokenizer
from ibert_tvm.model.tokenization import Tokenizer
from tests.frontend.tokenizer_folders import WORDS, pairs_of_bytes, pieces, words
from tests.snapshots import Messages

ADDED = {"content": "cat sat", "lstrip": False, "rstrip": False, "single_word": False}
ADDED |= {"normalized": False, "special": False}

LAYOUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lower case by default": (words, {}),
    "case kept": (words, {"do_lower_case": False}),
    "accents kept": (words, {"strip_accents": False}),
    "cut on the left": (words, {"truncation_side": "left", "model_max_length": 12}),
    "no token types": (words, {"model_input_names": ["input_ids", "attention_mask"]}),
    "added token": (words, {"added_tokens_decoder": {"12": ADDED}}),
    "pairs of bytes": (pairs_of_bytes, {}),
    "prefix space": (pairs_of_bytes, {"add_prefix_space": True}),
    "pieces": (pieces, {}),
    "code is named": (words, {"auto_map": {"AutoTokenizer": ["evil--T", None]}, "vocab_file": "/"}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tokenizer_is_that_of_transformers(tmp_path: Path, layout: str) -> None:
    from transformers import AutoTokenizer

    make, settings = LAYOUTS[layout]
    folder = make(tmp_path / "model", settings)
    stored = source_tokenizer(tmp_path / "nothing", folder)
    assert sorted(stored) == ["tokenizer.json", "tokenizer_config.json"]
    ours = Tokenizer(stored)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {key: settings[key] for key in settings if key not in ("auto_map", "vocab_file")}
        )
    )
    theirs = AutoTokenizer.from_pretrained(folder)
    assert ours.pad_id == theirs.pad_token_id
    assert ours.special_tokens["unk_token"] == theirs.unk_token
    assert ours.model_max_length == settings.get("model_max_length")
    for text in PROBES:
        pair = text if isinstance(text, tuple) else (text,)
        for length in (512, 10):
            wanted = theirs(*pair, truncation=True, max_length=length)
            batch = ours.encode([text], length, allow_empty=True)
            assert batch.input_ids[0].tolist() == wanted["input_ids"]
            types = wanted.get("token_type_ids", [0] * len(wanted["input_ids"]))
            assert batch.token_type_ids[0].tolist() == types
    assert source_tokenizer(folder) == stored or "code" in layout


def test_lower_case_of_sentence_transformers_comes_first(tmp_path: Path) -> None:
    folder = words(tmp_path / "model", {"do_lower_case": False})
    ids = [
        Tokenizer(source_tokenizer(folder, lower_case=lower)).encode(["C"], 8).input_ids[0, 1]
        for lower in (False, True)
    ]
    assert ids == [WORDS.index("C"), WORDS.index("c")]
    already = words(tmp_path / "lower", {})
    assert source_tokenizer(already, lower_case=True).keys() == source_tokenizer(already).keys()


def test_files_without_a_name_are_read_as_the_usual_models(tmp_path: Path) -> None:
    for make, model_type in ((words, "bert"), (pairs_of_bytes, "roberta")):
        folder = make(tmp_path / model_type, {})
        named = source_tokenizer(folder)
        (folder / "config.json").unlink()
        assert source_tokenizer(folder)["tokenizer.json"] == named["tokenizer.json"]
        (folder / "tokenizer.json").write_bytes(named["tokenizer.json"])
        (folder / "tokenizer_config.json").unlink()
        ids = [
            Tokenizer(f).encode(["the cat"], 9).input_ids for f in (named, source_tokenizer(folder))
        ]
        assert ids[0].tolist() == ids[1].tolist()


def test_a_tokenizer_in_python_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = words(tmp_path / "model", {"tokenizer_class": "EsmTokenizer"}, "esm")
    assert source_tokenizer(folder) == {}
    assert "EsmTokenizer of transformers is written in Python" in caplog.text


def test_what_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    folder = words(tmp_path / "model", {})
    changed = Tokenizer(source_tokenizer(folder))
    changed.truncation_side = "left"
    monkeypatch.setattr(module, "Tokenizer", lambda _files: changed)
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('["no object"]')
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text('{"model": {}}')
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)


def test_without_transformers_settings_have_to_agree_with_tokenizer_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    folder = words(tmp_path / "model", {})
    stored = source_tokenizer(folder)
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    with messages.raises(ModelSourceError):  # vocab.txt alone
        source_tokenizer(folder)
    (folder / "tokenizer.json").write_bytes(stored["tokenizer.json"])
    assert "tokenizer.json" in source_tokenizer(folder)
    with messages.raises(ModelSourceError):
        source_tokenizer(folder, lower_case=True)
    same = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "cls_token": "[CLS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(same))
    assert "tokenizer.json" in source_tokenizer(folder)
    other = {
        "do_lower_case": False,
        "split_special_tokens": True,
        "added_tokens_decoder": {"12": ADDED},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(other))
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)

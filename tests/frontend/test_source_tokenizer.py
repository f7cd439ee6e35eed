"""Tokenizers of model folders: the ids, types and cuts of transformers, from any of its files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.common.errors import ModelError
from ibert_tvm.frontend import source_tokenizer as module
from ibert_tvm.frontend import tokenizer_apart
from ibert_tvm.frontend.errors import ModelSourceError
from ibert_tvm.frontend.source_tokenizer import PROBES, SourceTokenizer, source_tokenizer
from ibert_tvm.frontend.tokenizer_settings import table
from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files
from ibert_tvm.model.tokenizer_behaviour import PROBE_LENGTHS, probe_rows
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


def of_sentences(place: Path, settings: Mapping[str, Any], sentence: Mapping[str, Any]) -> Path:
    """A folder whose texts sentence-transformers tokenises."""
    words(place, settings)
    kind = "sentence_transformers.models.Transformer"
    listed = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (place / "modules.json").write_text(json.dumps(listed))
    (place / "sentence_bert_config.json").write_text(json.dumps(sentence))
    return place


def test_lower_case_of_sentence_transformers_comes_first(tmp_path: Path) -> None:
    ids = [
        Tokenizer(
            source_tokenizer(
                of_sentences(tmp_path / str(low), {"do_lower_case": False}, {"do_lower_case": low})
            )
        )
        .encode(["C"], 8)
        .input_ids[0, 1]
        for low in (False, True)
    ]
    assert ids == [WORDS.index("C"), WORDS.index("c")]
    already = of_sentences(tmp_path / "lower", {}, {"do_lower_case": True})
    assert b"Lowercase" in source_tokenizer(already)["tokenizer.json"]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("config", "sentence", "length"),
    [({"model_max_length": 30}, {"max_seq_length": 12}, 12), ({"model_max_length": 30}, {}, 30)],
)
def test_texts_are_cut_where_sentence_transformers_cuts_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: Mapping[str, Any],
    sentence: Mapping[str, Any],
    length: int,
    installed: bool,
) -> None:
    if not installed:
        hide(monkeypatch, "sentence_transformers")
    folder = of_sentences(tmp_path / "model", config, sentence)
    tokenizer = Tokenizer(source_tokenizer(folder))
    assert tokenizer.model_max_length == length
    assert tokenizer.compared_with.startswith("transformers ")
    assert ("sentence-transformers" in tokenizer.compared_with) == installed


def test_positions_limit_a_tokenizer_without_a_limit_as_in_sentence_transformers(
    tmp_path: Path,
) -> None:
    folder = of_sentences(tmp_path / "model", {}, {})
    config = {
        "model_type": "bert",
        "max_position_embeddings": 40,
        "auto_map": {"AutoConfig": "e--C"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert Tokenizer(source_tokenizer(folder)).model_max_length == 40


def as_it_is(place: Path) -> Path:
    """A folder of sentence-transformers whose tokenizer.json says all."""
    folder = words(place, {})
    content = source_tokenizer(folder)["tokenizer.json"]
    of_sentences(folder, {"tokenizer_class": "BertTokenizer"}, {"max_seq_length": 9})
    (folder / "tokenizer.json").write_bytes(content)
    return folder


def test_another_process_compares_what_is_stored_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = as_it_is(tmp_path / "model")
    here = Tokenizer(source_tokenizer(folder))
    monkeypatch.delitem(sys.modules, "transformers")
    tokenizer = SourceTokenizer(folder)
    monkeypatch.setattr(module, "source_tokenizer", None)  # it is not compared here
    apart = Tokenizer(tokenizer.files())
    assert tokenizer.files() is tokenizer.files()
    assert apart.compared_with == f"transformers {version('transformers')}"
    assert apart.model_max_length == here.model_max_length == 9
    for probe in PROBES:
        for length in PROBE_LENGTHS:
            assert probe_rows(apart, probe, length) == probe_rows(here, probe, length)


def test_a_tokenizer_of_another_length_than_a_setting_says_is_compared_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = as_it_is(tmp_path / "model")
    (folder / "sentence_bert_config.json").write_text("{}")
    monkeypatch.setattr(module, "Apart", None)
    monkeypatch.delitem(sys.modules, "transformers")
    begun = SourceTokenizer(folder)
    monkeypatch.undo()
    assert "sentence-transformers" in Tokenizer(begun.files()).compared_with
    begun.end()


@pytest.mark.parametrize(
    "answer", ["", "raise SystemExit(1)", "print({})", 'print(\'{"same": "other"}\')']
)
def test_a_process_that_cannot_say_is_not_believed(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_apart, "_SCRIPT", answer)
    folder = as_it_is(tmp_path / "model")
    apart = tokenizer_apart.Apart({"tokenizer.json": b"{}"}, [folder])
    assert apart.result() is None
    monkeypatch.setattr(module, "_begin", lambda _folders: apart)
    assert "sentence-transformers" in Tokenizer(SourceTokenizer(folder).files()).compared_with


def test_what_another_process_refuses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = as_it_is(tmp_path / "model")
    monkeypatch.setattr(module, "probe_rows", lambda *_: ([], [], []))
    with pytest.raises(ModelSourceError) as here:
        source_tokenizer(folder)
    answer = module.compare_with_transformers([folder])
    monkeypatch.setattr(tokenizer_apart, "_SCRIPT", f"print({answer!r})")
    with pytest.raises(ModelSourceError) as caught:
        tokenizer_apart.Apart({}, [folder]).result()
    assert str(caught.value) == str(here.value)


def test_a_comparison_that_nobody_waits_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_apart, "_SCRIPT", "import time; time.sleep(600)")
    apart = tokenizer_apart.Apart({}, [tmp_path])
    process = apart._process
    assert process is not None
    assert process.poll() is None
    apart.end()
    assert process.returncode


def test_what_sentence_transformers_does_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """A setting that is not known here, and settings that hold arguments of functions."""
    shorter = {"processing_kwargs": {"text": {"max_length": 9, "truncation": True}}}
    folder = of_sentences(tmp_path / "model", {}, {"max_seq_length": 12, **shorter})
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)
    with monkeypatch.context() as patch:
        hide(patch, "sentence_transformers")
        with messages.raises(ModelSourceError):
            source_tokenizer(folder)
    of_sentences(folder, {}, {"tokenizer_args": {"vocab_file": "/x"}, "model_args": {"x": 1}})
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)


def test_what_sentence_transformers_cannot_read_is_compared_with_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = of_sentences(tmp_path / "model", {}, {"transformer_task": "dreams", "query_length": 9})
    assert Tokenizer(source_tokenizer(folder)).compared_with.count("transformers") == 1
    assert "compared with transformers alone: 'dreams'" in caplog.text
    assert "treats queries and documents differently (query_length)" in caplog.text


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


def test_a_mask_that_differs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    folder = words(tmp_path / "model", {})

    def masked(tokenizer: Tokenizer, text: Any, length: int) -> Any:
        ids, types, mask = probe_rows(tokenizer, text, length)
        return ids, types, [0, *mask[1:]]

    monkeypatch.setattr(module, "probe_rows", masked)
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(
        module, "find_spec", lambda name: None if name in packages else find_spec(name)
    )


def test_a_map_of_sentencepiece_that_says_it_is_larger_than_it_is(
    tmp_path: Path, messages: Messages
) -> None:
    from sentencepiece import sentencepiece_model_pb2 as protobuf

    folder = pieces(tmp_path / "model", {})
    file = folder / "sentencepiece.bpe.model"
    model = protobuf.ModelProto.FromString(file.read_bytes())
    model.normalizer_spec.precompiled_charsmap = b"\xff\xff\xff\xff" + bytes(8)
    file.write_bytes(model.SerializeToString())
    with messages.raises(ModelError):
        source_tokenizer(folder)


@pytest.mark.parametrize("file", ["vocab.json", "tokenizer.json"])
def test_an_id_far_behind_the_others(file: str, tmp_path: Path, messages: Messages) -> None:
    """The package tokenizers lists every id below it that no token has: 8 GiB of them, for this."""
    template = None if file == "vocab.json" else "<s> $A"
    folder = pairs_of_bytes(tmp_path / "model", {"pad_token": "<pad>"}, template=template)
    document = json.loads((folder / file).read_text())
    vocabulary = document if template is None else document["model"]["vocab"]
    vocabulary["a"] = 2**31
    (folder / file).write_text(json.dumps(document))
    with messages.raises(ModelError):
        source_tokenizer(folder)
    plain = Tokenizer(tokenizer_files(folder))
    with messages.raises(ModelError):
        plain.fast_copy()


def test_without_transformers_settings_have_to_agree_with_tokenizer_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    folder = words(tmp_path / "model", {})
    stored = source_tokenizer(folder)
    hide(monkeypatch, "transformers", "sentence_transformers")
    with messages.raises(ModelSourceError):  # vocab.txt alone
        source_tokenizer(folder)
    (folder / "tokenizer.json").write_bytes(stored["tokenizer.json"])
    assert "tokenizer.json" in source_tokenizer(folder)
    same = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "cls_token": "[CLS]"}
    of_sentences(folder, {**same, "compared_with": "x"}, {"do_lower_case": True})
    assert Tokenizer(source_tokenizer(folder)).compared_with == ""
    of_sentences(folder, same, {"max_seq_length": 9})
    assert Tokenizer(source_tokenizer(folder)).model_max_length == 9
    other = {
        "do_lower_case": False,
        "split_special_tokens": True,
        "added_tokens_decoder": {"12": ADDED},
        "eos_token": "</s>",
        "extra_special_tokens": {"end": {"content": "<end>"}, "mask": "[MASK]"},
        "strip_accents": None,
    }
    of_sentences(folder, other, {"query_expansion": None, "processing_kwargs": {"text": {}}})
    (folder / "added_tokens.json").write_text('{"[MASK]": 4, "cat sat": 12}')
    (folder / "special_tokens_map.json").write_text('{"cls_token": "[CLS]", "bos_token": "<s>"}')
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)
    (folder / "tokenizer.json").write_bytes(
        stored["tokenizer.json"].replace(b'"lowercase":true', b'"lowercase":false')
    )
    of_sentences(folder, {}, {"do_lower_case": True})
    (folder / "added_tokens.json").unlink()
    (folder / "special_tokens_map.json").unlink()
    with messages.raises(ModelSourceError):
        source_tokenizer(folder)


def _edited(document: dict[str, Any], path: str, value: Any) -> None:
    *places, last = path.split(".")
    for place in places:
        document = document[place]
    document[last] = value


_SPLIT = {"type": "WhitespaceSplit"}
CLASSES: dict[str, tuple[Callable[..., Path], dict[str, Any], dict[str, Any], str]] = {
    "words": (words, {}, {}, ""),
    "the same class": (words, {"tokenizer_class": "BertTokenizerFast"}, {}, ""),
    "without types": (words, {"tokenizer_class": "DistilBertTokenizer"}, {}, ""),
    "types by a setting": (words, {"model_input_names": ["input_ids", "attention_mask"]}, {}, ""),
    "cased": (words, {"do_lower_case": False}, {"normalizer.lowercase": False}, ""),
    "cased by tokenizer.json alone": (words, {}, {"normalizer.lowercase": False}, "normalizer"),
    "accents": (words, {}, {"normalizer.strip_accents": False}, "normalizer"),
    "no normaliser": (words, {}, {"normalizer": None}, "normalizer"),
    "another split": (words, {}, {"pre_tokenizer": _SPLIT}, "pre_tokenizer"),
    "short words": (words, {}, {"model.max_input_chars_per_word": 3}, "model"),
    "nothing around": (words, {}, {"post_processor": None}, "post_processor"),
    "as it is": (
        words,
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"normalizer.lowercase": False, "post_processor": None},
        "",
    ),
    "a class that is not known": (
        words,
        {"tokenizer_class": "MPNetTokenizer"},
        {},
        "its tokenizer is a MPNetTokenizer",
    ),
    "bytes": (pairs_of_bytes, {}, {}, ""),
    "bytes with a space": (
        pairs_of_bytes,
        {"add_prefix_space": True},
        {"pre_tokenizer.add_prefix_space": True},
        "",
    ),
    "a space by tokenizer.json alone": (
        pairs_of_bytes,
        {},
        {"pre_tokenizer.add_prefix_space": True},
        "pre_tokenizer",
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_without_transformers_its_classes_are_those_of_tokenizer_json(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, settings, edits, refused = CLASSES[case]
    document = json.loads(source_tokenizer(made(tmp_path / "plain", {}))["tokenizer.json"])
    folder = made(tmp_path / "model", settings)
    for path, value in edits.items():
        _edited(document, path, value)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    theirs = Tokenizer(source_tokenizer(folder))
    hide(monkeypatch, "transformers", "sentence_transformers")
    if refused:
        with pytest.raises(ModelSourceError, match=refused):
            source_tokenizer(folder)
        return
    ours = Tokenizer(source_tokenizer(folder))
    for probe in PROBES:
        for length in PROBE_LENGTHS:
            assert probe_rows(ours, probe, length) == probe_rows(theirs, probe, length)


def test_the_table_of_settings_is_that_of_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "importing.md").read_text(encoding="utf-8")
    assert (
        "| setting | file | with its library | without |\n| --- | --- | --- | --- |\n"
        + ("\n".join(table()) + "\n\n")
        in page
    )

"""Tokenisers built from every group of files that a model may come with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.common.errors import InputError, ModelError
from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files
from tests.snapshots import Messages

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "##s", "größe", "grosse"]
_VOCABULARY = "\n".join(_WORDS).encode()


@pytest.fixture
def wordpiece() -> Tokenizer:
    return Tokenizer({"vocab.txt": _VOCABULARY})


def test_special_tokens_padding_and_types(wordpiece: Tokenizer) -> None:
    batch = wordpiece.encode(["Hello worlds", ("hello", "world world")], max_length=16)
    np.testing.assert_array_equal(batch.input_ids, [[2, 4, 5, 6, 3, 0], [2, 4, 3, 5, 5, 3]])
    np.testing.assert_array_equal(batch.attention_mask, [[1, 1, 1, 1, 1, 0], [1] * 6])
    np.testing.assert_array_equal(batch.token_type_ids, [[0] * 6, [0, 0, 0, 1, 1, 1]])
    assert batch.truncated == ()
    assert {a.dtype for a in batch.inputs(["input_ids", "attention_mask"]).values()} == {
        np.dtype(np.int32)
    }


def test_truncation_keeps_the_special_tokens(wordpiece: Tokenizer) -> None:
    batch = wordpiece.encode(["hello", "hello world hello world"], max_length=4, pad_to=5)
    np.testing.assert_array_equal(batch.input_ids, [[2, 4, 3, 0, 0], [2, 4, 5, 3, 0]])
    assert batch.truncated == (1,)
    # The limit of one call does not stick to the next.
    assert wordpiece.encode(["hello world hello"], max_length=9).input_ids.shape == (1, 5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "template", "none"])
def test_texts_are_cut_as_by_the_package_tokenizers(kind: str, side: str) -> None:
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import models, pre_tokenizers, processors

    around = ("[SEP]", 3), ("[CLS]", 2)
    reversed_pair = {
        "single": "[CLS]:3 $A:1 [SEP]", "pair": "[CLS] $B:1 [SEP]:1 $A:0 [SEP]",
        "special_tokens": [("[CLS]", 2), ("[SEP]", 3)],
    }  # fmt: skip
    fast = FastTokenizer(models.WordLevel({w: i for i, w in enumerate(_WORDS)}, "[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    processor = {
        "bert": processors.BertProcessing(*around), "none": None,
        "roberta": processors.RobertaProcessing(*around),
        "template": processors.TemplateProcessing(**reversed_pair),
    }[kind]  # fmt: skip
    if processor is not None:
        fast.post_processor = processor
    settings = json.dumps({"truncation_side": side}).encode()
    ours = Tokenizer({"tokenizer.json": fast.to_str().encode(), "tokenizer_config.json": settings})
    texts = [" ".join(_WORDS[2 : 2 + n]) for n in (1, 2, 5, 6)]
    items = [*texts, *((a, b) for a in ["", *texts] for b in ["", *texts] if a or b)]
    for length in range(5, 10):
        fast.enable_truncation(length, direction=side)
        wanted = fast.encode_batch(items)
        rows, _ = ours.rows(items, length, allow_empty=True)
        for row, encoding in zip(rows, wanted, strict=True):
            assert row == (encoding.ids, encoding.type_ids)


def test_a_pair_of_long_texts_is_cut_without_encodings_of_what_is_left(
    wordpiece: Tokenizer,
) -> None:
    pair = ("hello " * 900, "world " * 900)  # tokenizers would make 810,000 encodings
    rows, truncated = wordpiece.rows([pair], 5)
    assert (rows, truncated) == ([([2, 4, 3, 5, 3], [0, 0, 0, 1, 1])], (0,))
    assert wordpiece._tokenizer.truncation is None


def test_casing_follows_the_configuration() -> None:
    uncased = Tokenizer({"vocab.txt": _VOCABULARY})
    cased = Tokenizer(
        {"vocab.txt": _VOCABULARY, "tokenizer_config.json": b'{"do_lower_case": false}'}
    )
    assert uncased.encode(["HELLO"], 8).input_ids[0, 1] == 4
    assert cased.encode(["HELLO"], 8).input_ids[0, 1] == 1


def test_tokenizer_json_with_its_own_padding_and_truncation(tmp_path: Path) -> None:
    """Settings that a checkpoint's tokenizer.json carries must not leak into ours."""
    from tokenizers.implementations import BertWordPieceTokenizer

    (tmp_path / "vocab.txt").write_bytes(_VOCABULARY)
    original = BertWordPieceTokenizer(str(tmp_path / "vocab.txt"))
    original.enable_truncation(3)
    original.enable_padding(length=64)
    original.save(str(tmp_path / "tokenizer.json"))
    files = tokenizer_files(tmp_path)
    assert list(files) == ["tokenizer.json"]
    batch = Tokenizer(files).encode(["hello world hello"], max_length=9)
    np.testing.assert_array_equal(batch.input_ids, [[2, 4, 5, 4, 3]])


def test_byte_level_bpe_has_the_special_tokens_of_roberta() -> None:
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "h": 4, "i": 5, "hi": 6, "Ġ": 7}
    tokenizer = Tokenizer(
        {
            "vocab.json": json.dumps(vocabulary).encode(),
            "merges.txt": b"#version: 0.2\nh i\n",
            "special_tokens_map.json": b'{"pad_token": {"content": "<pad>"}}',
        }
    )
    assert tokenizer.pad_id == 1
    batch = tokenizer.encode(["hi", "hhi"], max_length=8)
    np.testing.assert_array_equal(batch.input_ids, [[0, 6, 2, 1], [0, 4, 6, 2]])


def test_only_needed_files_are_taken(tmp_path: Path) -> None:
    for name in ("vocab.txt", "tokenizer_config.json", "README.md", "config.json"):
        (tmp_path / name).write_text("{}")
    assert sorted(tokenizer_files(tmp_path)) == ["tokenizer_config.json", "vocab.txt"]


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    assert tokenizer_files(tmp_path) == {}


def test_incomplete_files(messages: Messages) -> None:
    with messages.raises(ModelError):
        Tokenizer({"vocab.json": b"{}"})


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_damaged_file(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        Tokenizer({"vocab.txt": _VOCABULARY, name: b'{"version":'})
    lines = str(caught.value).split("\n")
    assert lines[0] == "the tokenizer cannot be read"
    assert lines[1] == f"  where: {name}"
    assert lines[3] == "  what to do: copy the tokenizer files of the model again"


@pytest.mark.parametrize("text", ["", " \n", ("hello", "")])
def test_empty_text(wordpiece: Tokenizer, text: str | tuple[str, str], messages: Messages) -> None:
    with messages.raises(InputError):
        wordpiece.encode(["hello", text], max_length=8)


@pytest.mark.parametrize("text", ["Hi \ud83d", ("hello", "Hi \ud83d\udc4b")])
@pytest.mark.parametrize("allow_empty", [False, True])
def test_half_a_surrogate_pair(
    wordpiece: Tokenizer, text: str | tuple[str, str], allow_empty: bool, messages: Messages
) -> None:
    with messages.raises(InputError):
        wordpiece.encode(["hello", text], max_length=8, allow_empty=allow_empty)
    with pytest.raises(InputError, match=r"^text 0 is no Unicode text"):
        wordpiece.windows(text, max_length=8)


def test_empty_texts_are_special_tokens_where_they_are_allowed(wordpiece: Tokenizer) -> None:
    batch = wordpiece.encode(["hello", "", ("", "hello")], max_length=8, allow_empty=True)
    np.testing.assert_array_equal(batch.input_ids, [[2, 4, 3, 0], [2, 3, 0, 0], [2, 3, 4, 3]])


def test_a_text_without_any_token(messages: Messages) -> None:
    vocabulary = {"hi": 0, "h": 1, "i": 2}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["h", "i"]]}
    bare = Tokenizer({"tokenizer.json": json.dumps({"model": model}).encode()})
    assert bare.encode(["hi"], max_length=8).input_ids.tolist() == [[0]]
    with messages.raises(InputError):
        bare.encode(["hi", ""], max_length=8, allow_empty=True)


@pytest.mark.parametrize("overlap", [0, 1])
def test_windows_hold_every_token_of_a_long_text(wordpiece: Tokenizer, overlap: int) -> None:
    text = "hello worlds hello hello worlds"
    for given, own, special in ((text, 0, 2), (("hello", text), 1, 4)):
        windows = wordpiece.windows(given, max_length=special + 3, overlap=overlap)
        seen: list[tuple[int, int]] = []
        for number, window in enumerate(windows):
            offsets = [o for o, t in zip(window.offsets, window.texts, strict=True) if t == own]
            assert len(window.ids) <= special + 3
            assert number == 0 or offsets[:overlap] == seen[-overlap:][:overlap]
            seen += offsets[overlap if number else 0 :]
        words = [text[start:end] for start, end in seen]
        assert words == ["hello", "world", "s", "hello", "hello", "world", "s"]
        batch = wordpiece.batch_of(windows)
        assert batch.attention_mask.sum(axis=1).tolist() == [len(w.ids) for w in windows]
    assert wordpiece._tokenizer.truncation is None  # other threads may encode meanwhile
    (whole,) = wordpiece.windows(text, max_length=99)
    np.testing.assert_array_equal([whole.ids], wordpiece.encode([text], 99).input_ids)


def test_no_texts_and_no_text(wordpiece: Tokenizer, messages: Messages) -> None:
    with messages.raises(InputError):
        wordpiece.encode([], max_length=8)
    with messages.raises(InputError):
        wordpiece.encode([7], max_length=8)  # type: ignore[list-item]


def test_a_text_with_an_id_beyond_the_table(messages: Messages) -> None:
    """A text must not fail the batch that it is computed in."""
    tokenizer = Tokenizer({"vocab.txt": _VOCABULARY}, rows=5)
    assert tokenizer.encode(["hello"], 8).input_ids.max() == 4
    with messages.raises(InputError):
        tokenizer.encode(["hello", "world"], 8)

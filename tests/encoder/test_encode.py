"""`Encoder.encode`: the library's own vectors, and sentence-transformers' arguments."""

from __future__ import annotations

import logging
import os
import pickle
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder, load_library
from ibert_tvm.common.errors import InputError, LibraryError, UsageError
from ibert_tvm.compiler import compile as compile_model
from ibert_tvm.runtime import Library
from tests.cache import cached, version_of
from tests.encoder.small_encoders import WORDS, bert, tiny
from tests.snapshots import Messages

Make = Callable[..., Encoder]


def texts_of(count: int, most: int = 13) -> list[str]:
    """Random texts of one to so many words, some of them empty."""
    chosen = random.Random(count)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(0, most))) for _ in range(count)]


def alone(library: Library, text: str) -> np.ndarray:
    """The vector of a text that nothing else is run with."""
    assert library.tokenizer is not None
    batch = library.tokenizer.encode([text], library.metadata.max_seq_len, allow_empty=True)
    names = [record.name for record in library.metadata.inputs]
    (record,) = (r for r in library.metadata.outputs if r.kind == "embedding")
    vector: np.ndarray = library.run(**batch.inputs(names))[record.name][0]
    return vector


@pytest.fixture(scope="module")
def whole_model() -> Encoder:
    """An encoder of a BERT with the kernels of real models, which compute no padding."""
    with cached("bert", version_of(bert, compile_model)) as (place, work):
        if work is not None:
            compile_model(bert(), "x86-64", [(1, 16), (4, 16)]).export(work / "bert.so")
        library = load_library((work or place) / "bert.so")
    assert all(function.packed for function in library.metadata.functions)
    return Encoder(library)


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_vectors_are_the_librarys_whatever_a_text_is_run_with(
    whole_model: Encoder, batch_size: int
) -> None:
    texts = texts_of(23)
    assert "" in texts
    expected = np.stack([alone(whole_model.library, text) for text in texts])
    vectors = whole_model.encode(texts, batch_size=batch_size)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(whole_model.encode(texts[3]), expected[3])
    np.testing.assert_array_equal(whole_model.encode(texts[::-1], batch_size=5), expected[::-1])


def test_they_are_where_padding_is_computed_too(encoder: Make) -> None:
    tiny, texts = encoder("embedding"), texts_of(9)
    assert not any(function.packed for function in tiny.library.metadata.functions)
    expected = np.stack([alone(tiny.library, text) for text in texts])
    np.testing.assert_array_equal(tiny.encode(texts, batch_size=4), expected)
    assert tiny.embedding_size == expected.shape[1]


def test_forms_of_the_result(encoder: Make) -> None:
    torch = pytest.importorskip("torch", reason="tensors need torch")
    tiny, texts = encoder("embedding"), ["hello world", "big"]
    vectors = tiny.encode(texts)
    tensor = tiny.encode(texts, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), vectors)
    listed = tiny.encode(texts, convert_to_numpy=False)
    assert isinstance(listed, list) and all(isinstance(v, torch.Tensor) for v in listed)
    np.testing.assert_array_equal(torch.stack(listed).numpy(), vectors)
    np.testing.assert_array_equal(tiny.encode(np.array(texts)), vectors)
    assert tiny.encode([]).shape == (0, 3)
    one = tiny.encode("big", convert_to_tensor=True, normalize_embeddings=True)
    assert one.shape == (3,)
    assert float(torch.linalg.norm(one.double())) == pytest.approx(1, abs=1e-7)


def test_vectors_of_tokens_have_no_padding(encoder: Make) -> None:
    pytest.importorskip("torch", reason="tensors need torch")
    tiny, texts = encoder("embedding"), ["hello world", "big", "big small big small"]
    tokens = tiny.encode(texts, output_value="token_embeddings")
    assert [len(t) for t in tokens] == [4, 3, 6]  # [CLS], words, [SEP]
    everything = tiny.encode(texts, output_value=None)
    for text, own, features in zip(texts, tokens, everything, strict=True):
        batch = tiny.tokenizer.encode([text], 16)
        expected = tiny.library.run(batch.input_ids)["hidden"][0]
        np.testing.assert_array_equal(own.numpy(), expected)
        np.testing.assert_array_equal(features["token_embeddings"][: len(own)].numpy(), expected)
        np.testing.assert_array_equal(features["sentence_embedding"].numpy(), tiny.encode(text))


def test_prompts_are_put_before_texts(messages: Messages, encoder: Make) -> None:
    prompts = {"query": "small ", "passage": "big "}
    tiny = encoder("embedding", prompts=prompts, default_prompt_name="passage")
    small, big, none = (tiny.encode(f"{p}world", prompt="") for p in ("small ", "big ", ""))
    assert not np.array_equal(small, big)
    np.testing.assert_array_equal(tiny.encode("world"), big)
    np.testing.assert_array_equal(tiny.encode("world", prompt_name="query"), small)
    np.testing.assert_array_equal(tiny.encode(["world"], prompt="small ")[0], small)
    np.testing.assert_array_equal(tiny.encode_query("world"), small)
    np.testing.assert_array_equal(tiny.encode_document("world"), none)  # it is called passage
    np.testing.assert_array_equal(tiny.encode_document("world", prompt_name="passage"), big)
    np.testing.assert_array_equal(tiny.encode_document("world", prompt=""), none)
    with messages.raises(UsageError):
        tiny.encode("world", prompt_name="quest")


def test_a_text_that_is_too_long_is_cut_off_and_said(
    encoder: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = encoder("embedding")
    with caplog.at_level(logging.WARNING):
        vectors = tiny.encode(["big " * 14, "big " * 99])
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert caplog.messages == ["1 of 2 texts were cut off at 16 tokens"]
    shorter = Encoder(tiny.library, max_seq_length=5)
    np.testing.assert_array_equal(shorter.encode("big " * 99), shorter.encode("big big big"))


def test_a_copy_has_its_own_settings_and_a_pickle_the_same_library(
    tmp_path: Path, messages: Messages
) -> None:
    model = tiny("embedding", prompts={"query": "small "}, default_prompt_name="query")
    path = model.build(tmp_path / "model.so")
    encoder = Encoder(path)
    long, expected = "big " * 14, encoder.encode("big " * 14)
    copied = deepcopy(encoder)
    assert copied.library is encoder.library
    encoder.max_seq_length, encoder.prompts["query"], encoder.default_prompt_name = 5, "", None
    np.testing.assert_array_equal(copied.encode(long), expected)
    stored = pickle.dumps(encoder)
    loaded = pickle.loads(stored)
    assert (loaded.max_seq_length, loaded.prompts, loaded.default_prompt_name) == (
        5, {"query": ""}, None,
    )  # fmt: skip
    np.testing.assert_array_equal(loaded.encode(long), encoder.encode(long))
    os.replace(tiny("classes").build(tmp_path / "other.so"), path)
    with messages.raises(LibraryError):
        pickle.loads(stored)


def test_a_bar_is_shown_on_demand(encoder: Make, capfd: pytest.CaptureFixture[str]) -> None:
    encoder("embedding").encode(["big"] * 5)
    assert capfd.readouterr() == ("", "")
    encoder("embedding").encode(["big"] * 5, show_progress_bar=True)
    out, err = capfd.readouterr()
    assert out == "" and "5/5" in err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sentences": ["big", 7]}, InputError),
        ({"sentences": ["big"], "batch_size": 0}, UsageError),
        ({"sentences": ["big"], "output_value": "tokens"}, UsageError),
    ],
    ids=["number", "no batch", "another value"],
)
def test_arguments_without_meaning(
    messages: Messages, encoder: Make, arguments: dict[str, object], error: type[Exception]
) -> None:
    with messages.raises(error):
        encoder("embedding").encode(**arguments)


def test_a_length_that_was_not_compiled(messages: Messages, encoder: Make) -> None:
    library = encoder("embedding").library
    with messages.raises(UsageError):
        Encoder(library, max_seq_length=17)

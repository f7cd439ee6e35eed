"""How texts become batches, and which integers of a value are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm
from ibert_tvm.common.errors import UsageError
from ibert_tvm.evaluation.agreements import (
    Agreement,
    AnyAgreement,
    LabelAgreement,
    SpanAgreement,
    TagAgreement,
)
from ibert_tvm.evaluation.evaluate import _comparable, check_seq_len, fidelity, vector_of_text
from ibert_tvm.model.tokenization import TokenizedBatch
from tests.runtime.conftest import TinyModel
from tests.snapshots import Messages


def _tokens(lengths: list[int]) -> TokenizedBatch:
    rng = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    ids = (rng.integers(1, 8, mask.shape) * mask).astype(np.int32)
    return TokenizedBatch(ids, mask, np.zeros_like(ids), ())


def test_every_text_is_in_one_batch_and_its_tokens_with_it() -> None:
    tokens = _tokens([3, 40, 5, 100, 33, 32, 31, 7, 8, 9, 10, 11, 12])
    seen: list[int] = []
    for rows, batch in tokens.batches(8, 32, longest=100, pad_id=5):
        height, width = batch.input_ids.shape
        assert height == 8
        assert width in (32, 64, 100)
        for position, row in enumerate(rows):
            count = int(tokens.attention_mask[row].sum())
            assert batch.attention_mask[position].sum() == count <= width
            np.testing.assert_array_equal(
                batch.input_ids[position, :count], tokens.input_ids[row, :count]
            )
        assert not batch.attention_mask[len(rows) :].any()
        assert (batch.input_ids[len(rows) :] == 5).all()
        seen += rows
    assert sorted(seen) == list(range(13))


def test_the_stream_is_compared_before_the_operand_and_the_accumulator() -> None:
    native = {"value": "a", "form": "native", "scale": 0.1, "zero_point": 0}
    operand = {"value": "b", "form": "matmul", "scale": 0.3, "zero_point": 1}
    stream = {"value": "c", "form": "stream", "scale": 0.2, "zero_point": 0}
    values = {"x": [native, operand, stream], "y": [native, operand], "z": [native], "none": []}
    chosen = _comparable({"values": values})
    assert chosen == {"x": stream, "y": operand, "z": native}


def test_what_stands_for_a_text() -> None:
    value = np.array([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]])
    mask = np.array([1, 1, 0])
    np.testing.assert_array_equal(vector_of_text("hidden_state", value, mask), [2, 3])
    np.testing.assert_array_equal(vector_of_text("embedding", value[0], mask), [1, 2])


def test_length_beyond_the_positions(messages: Messages) -> None:
    with messages.raises(UsageError):
        check_seq_len(17, TinyModel().info)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "small", "cat", "saw", "the", "##s", "dog", "ran"]
TEXTS = [
    "a small cat",
    "the dogs saw a cat",
    "ran",
    "cats ran the small dogs",
    "a dog saw the cats",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BertModel", Agreement),
        ("BertForSequenceClassification", LabelAgreement),
        ("BertForTokenClassification", TagAgreement),
        ("BertForQuestionAnswering", SpanAgreement),
    ],
)
def test_models_are_compared_as_their_head_asks(
    name: str, kind: type[AnyAgreement], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="importing a model needs torch")
    transformers = pytest.importorskip("transformers", reason="importing needs transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=24,
        num_labels=2 if name.endswith("Answering") else 3,
    )  # fmt: skip
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    loaded = ibert_tvm.load(tmp_path, verify=False)
    quantised = ibert_tvm.quantize(loaded, TEXTS, seq_len=12)
    found = fidelity(quantised, loaded, TEXTS, 12, layers=False)
    assert type(found.agreement) is kind
    assert 0 < found.drop < 0.01
    document = found.to_json()
    shares = [v for key, v in document.items() if key.startswith("same_")]
    assert shares and min(shares) >= 0.8
    assert 0 < document["max_abs_error"] < 0.5
    if isinstance(found.agreement, TagAgreement):
        assert set(found.agreement.tags) <= {"LABEL_0", "LABEL_1", "LABEL_2"}
    if not isinstance(found.agreement, Agreement):
        assert 0 < document["score_difference_max"] < 0.1
        pairs = [(text, "the small cat ran") for text in TEXTS]
        assert type(fidelity(quantised, loaded, pairs, 12, layers=False).agreement) is kind

"""How texts become batches, and which integers of a value are compared."""

from __future__ import annotations

import numpy as np

from ibert_tvm.common.errors import UsageError
from ibert_tvm.evaluation.evaluate import _comparable, check_seq_len, vector_of_text
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

"""Statistics of the float model's values: the same however the work is divided, without padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from ibert_tvm.quantization import CalibrationOptions, batches, in_order
from ibert_tvm.quantization.batches import Batch, packed
from ibert_tvm.quantization.observe import observe
from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.relay_passes.canonical import FloatModel
from tests.quantization.models import random_model


def padded_batches(lengths: tuple[tuple[int, ...], ...], width: int) -> list[Batch]:
    """Batches of random tokens; a length of 0 is a row of padding."""
    random = np.random.default_rng(2)
    result = []
    for rows in lengths:
        mask = (np.arange(width) < np.array(rows)[:, None]).astype(np.int64)
        ids = random.integers(4, 90, mask.shape) * mask
        result.append(Batch({"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}))
    return result


def observed(data: list[Batch]) -> dict[str, Statistics]:
    model = random_model("bert")
    names = FloatModel(model.module, model.parameters, "all").capture_names
    options = CalibrationOptions(sample_tokens=20).observation
    return observe(model, data, names, names, options, lambda: None)


def test_threads_change_no_bit_and_packing_only_the_last(monkeypatch) -> None:
    data = padded_batches(((1, 5, 9, 0), (11, 13, 17, 3), (2, 2, 0, 0)), 40)
    monkeypatch.setattr(in_order, "default_threads", lambda: 3)
    found = observed(data)
    assert {entry.tokens for entry in found.values()} == {63, 9}
    monkeypatch.setattr(in_order, "default_threads", lambda: 1)
    alone = observed(data)
    monkeypatch.setattr(batches, "_TOKENS", 1)
    apart = observed(data)
    for name, entry in found.items():
        assert entry.sample.shape[0] > 0
        for part in ("sample", "low", "high", "first_sum", "first_square_sum", "first_count"):
            value, other = getattr(entry, part), getattr(apart[name], part)
            np.testing.assert_array_equal(value, getattr(alone[name], part), err_msg=name)
            # BLAS adds up small products of few rows in another order.
            np.testing.assert_allclose(value, other, rtol=1e-3, atol=1e-3, err_msg=name)


def test_rows_are_packed_in_their_order_with_little_padding(monkeypatch) -> None:
    monkeypatch.setattr(batches, "_TOKENS", 32)
    data = padded_batches(((3, 3, 0, 4), (9, 10, 40)), 40) + padded_batches(((2,),), 2)
    parts = list(packed(data))
    assert [part.mask.shape for part, _ in parts] == [(3, 4), (2, 10), (1, 40), (1, 2)]
    assert [part.lengths.tolist() for part, _ in parts] == [[3, 3, 4], [9, 10], [40], [2]]
    for name in data[0].inputs:
        before, after = (
            np.concatenate([part.inputs[name][part.mask] for part in parted])
            for parted in (data, [part for part, _ in parts])
        )
        np.testing.assert_array_equal(after, before, err_msg=name)
    known = [np.arange(batch.mask.size).reshape(batch.mask.shape) % 3 == 0 for batch in data]
    marked = [tokens[part.mask] for part, tokens in packed(data, known)]
    wanted = [tokens[batch.mask] for batch, tokens in zip(data, known, strict=True)]
    np.testing.assert_array_equal(np.concatenate(marked), np.concatenate(wanted))


def test_tokens_behind_a_hole_of_a_mask_and_images_stay() -> None:
    ids = np.array([[5, 6, 7, 8, 0]])
    hole = Batch({"input_ids": ids, "attention_mask": np.array([[0, 1, 0, 1, 0]])})
    ((part, _),) = packed([hole])
    np.testing.assert_array_equal(part.inputs["input_ids"], ids[:, :4])
    image = Batch({"pixel_values": np.zeros((2, 3, 4, 4), np.float32)}, tokens=5)
    assert [part for part, _ in packed([image])] == [image]


def test_results_come_in_order_and_few_wait(monkeypatch) -> None:
    monkeypatch.setattr(in_order, "default_threads", lambda: 3)
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(20):
            assert number - len(taken) <= 4
            yield number

    def threads_of_blas(number: int) -> int:
        (count,) = {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}
        return number * 10 + count

    for result in in_order.in_order(threads_of_blas, items()):
        taken.append(result)
    assert taken == [number * 10 + 1 for number in range(20)]


def test_an_error_ends_the_work() -> None:
    begun: list[int] = []

    def fail(number: int) -> None:
        begun.append(number)
        raise ValueError(str(number))

    with pytest.raises(ValueError, match=r"^0$"):
        list(in_order.in_order(fail, range(1000)))
    assert len(begun) < 500

"""Calibration batches from files."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.quantization.batch_file import read_batches


def test_long_arrays_become_batches_of_few_rows(tmp_path):
    ids = np.arange(20 * 3).reshape(20, 3)
    np.savez(tmp_path / "b.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    batches = read_batches(tmp_path / "b.npz")
    assert [len(batch["input_ids"]) for batch in batches] == [8, 8, 4]
    np.testing.assert_array_equal(np.concatenate([b["input_ids"] for b in batches]), ids)
    assert all(set(batch) == {"input_ids", "attention_mask"} for batch in batches)
    limited = read_batches(str(tmp_path / "b.npz"), limit=10)
    assert [len(batch["input_ids"]) for batch in limited] == [8, 2]


def test_batches_of_several_lengths(tmp_path):
    arrays = {"input_ids.0": np.ones((2, 4), int), "input_ids.1": np.ones((3, 9), int)}
    arrays |= {"attention_mask.1": np.ones((3, 9), int)}
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    batches = read_batches(tmp_path / "b.npz")
    assert [batch["input_ids"].shape for batch in batches] == [(2, 4), (3, 9)]
    assert [sorted(batch) for batch in batches] == [["input_ids"], ["attention_mask", "input_ids"]]
    assert len(read_batches(tmp_path / "b.npz", limit=2)) == 1


def test_arrays_that_do_not_belong_together(messages, tmp_path):
    file = tmp_path / "b.npz"
    np.savez(file, input_ids=np.ones((2, 4)), attention_mask=np.ones((3, 4)))
    with messages.raises(UsageError):
        read_batches(file)


def test_unreadable_files(messages, tmp_path):
    file = tmp_path / "b.npz"
    with messages.raises(UsageError):
        read_batches(file)
    file.write_bytes(b"PK\x03\x04 but no archive")
    with pytest.raises(UsageError) as error:
        read_batches(file)
    assert error.value.what == "cannot read the calibration batches"
    np.savez(file)
    with messages.raises(UsageError):
        read_batches(file)
    np.save(tmp_path / "b.npy", np.ones(3))
    (tmp_path / "b.npy").rename(file)
    with pytest.raises(UsageError) as error:
        read_batches(file)
    assert error.value.why == "it is not an .npz file"

"""Latency, layers and the ceiling: what is counted, and that parts make up the whole."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.bench.ceiling import measure_ceiling
from ibert_tvm.bench.latency import Latency, full_batch, measure_latency, text_batches
from ibert_tvm.bench.measure import OUTSIDE, Part, Profile, measure_layers
from ibert_tvm.model.tokenization import TokenizedBatch
from ibert_tvm.runtime import Library, load_library
from ibert_tvm.runtime.metadata import KernelRecord
from ibert_tvm.targets import TargetError, get_target


@pytest.fixture
def library(small_library: Path) -> Library:
    return load_library(small_library, num_threads=1)


def test_statistics_of_latency() -> None:
    latency = Latency(((3.0, 1.0, 2.0), (40.0, 10.0, 20.0)), (5, 7), 4)
    assert latency.all_ms == [1.0, 2.0, 3.0, 10.0, 20.0, 40.0]
    assert latency.median_ms == 6.5
    assert latency.min_ms == 1.0
    assert latency.p90_ms == 40.0
    # One pass over both batches takes 2 + 20 ms: 8 rows, 12 real tokens.
    assert latency.sequences_per_second == pytest.approx(8 / 0.022)
    assert latency.tokens_per_second == pytest.approx(12 / 0.022)


@pytest.mark.parametrize(("count", "place"), [(1, 1), (9, 9), (10, 9), (11, 10), (100, 90)])
def test_nine_of_ten_calls_take_at_most_p90(count: int, place: int) -> None:
    assert Latency((tuple(map(float, range(1, count + 1))),), (1,), 1).p90_ms == place


def test_full_batches_hold_no_padding(library: Library) -> None:
    batch = full_batch(library.metadata, 2, 8)
    ids = batch.inputs["input_ids"]
    assert (ids.shape, ids.dtype) == ((2, 8), np.int32)
    assert ids.min() >= 0 and ids.max() < 50
    assert library.metadata.info.pad_token_id not in ids
    assert (batch.tokens, batch.places) == (16, 16)
    np.testing.assert_array_equal(ids, full_batch(library.metadata, 2, 8).inputs["input_ids"])


def test_a_model_of_images_gets_images(library: Library) -> None:
    info = replace(library.metadata.info, inputs=("pixel_values",), image_size=(3, 4, 6))
    batch = full_batch(replace(library.metadata, info=info), 2, 8)
    (pixels,) = batch.inputs.values()
    assert list(batch.inputs) == ["pixel_values"]
    assert (pixels.shape, pixels.dtype) == ((2, 3, 4, 6), np.float32)
    assert (batch.rows, batch.tokens, batch.places) == (2, 16, 16)


def test_texts_fill_batches_in_order(library: Library) -> None:
    ids = np.array([[1, 2, 3], [4, 5, 0], [6, 0, 0]], np.int32)
    mask = (ids != 0).astype(np.int32)
    encoded = TokenizedBatch(ids, mask, np.zeros_like(ids), ())
    one, two, three = text_batches(library.metadata, encoded, batch=1, seq_len=4)
    np.testing.assert_array_equal(two.inputs["input_ids"], [[4, 5, 0, 0]])
    np.testing.assert_array_equal(two.inputs["attention_mask"], [[1, 1, 0, 0]])
    assert [batch.tokens for batch in (one, two, three)] == [3, 2, 1]
    (pair,) = text_batches(library.metadata, encoded, batch=2, seq_len=3)  # the third is left over
    np.testing.assert_array_equal(pair.inputs["input_ids"], ids[:2])
    (five,) = text_batches(library.metadata, encoded, batch=5, seq_len=3)  # repeated
    np.testing.assert_array_equal(five.inputs["input_ids"], ids[[0, 1, 2, 0, 1]])


def test_latency_runs_each_batch_and_at_least_as_often_as_asked(library: Library) -> None:
    batches = [full_batch(library.metadata, 2, 8, seed) for seed in range(3)]
    latency = measure_latency(library, batches, seconds=0, least=7)
    assert [len(times) for times in latency.times_ms] == [3, 2, 2]
    assert (latency.rows, latency.tokens) == (2, (16, 16, 16))
    assert latency.min_ms > 0


def test_kernels_are_those_of_the_metadata_and_shares_sum_to_one(library: Library) -> None:
    function = library.metadata.functions[1]
    assert (function.batch, function.seq_len) == (2, 8)
    profile = measure_layers(library, full_batch(library.metadata, 2, 8), function.kernels, 0.05)
    *kernels, rest = profile.parts
    assert [(part.name, part.kind, part.layer, part.macs, part.num_bytes) for part in kernels] == [
        (record.name, record.kind, record.layer, record.macs, record.num_bytes)
        for record in function.kernels
    ]
    assert (rest.name, rest.calls, rest.macs) == (OUTSIDE, 0, 0)
    for parts in (profile.parts, profile.by_kind(), profile.by_role(), profile.by_block()):
        assert math.isclose(sum(part.share for part in parts), 1, abs_tol=1e-9)
        assert all(part.share >= 0 for part in parts)
        assert sum(part.macs for part in parts) == function.macs == 2 * 2 * 8 * 8 * 8
    # The library works as before: nothing observes it any more.
    before = library.run(**full_batch(library.metadata, 2, 8).inputs, dequantize=False)
    assert before["sentence_embedding"].values.shape == (2, 8)


def test_a_kernel_that_the_metadata_does_not_list_keeps_its_name(library: Library) -> None:
    function = library.metadata.functions[0]
    listed = function.kernels[:1]
    profile = measure_layers(library, full_batch(library.metadata, 1, 4), listed, 0)
    assert [(part.name, part.kind) for part in profile.parts[:-1]] == [
        (listed[0].name, listed[0].kind),
        *((record.name, "unlisted") for record in function.kernels[1:]),
    ]


def _part(layer: str, kind: str, milliseconds: float, macs: int = 0) -> Part:
    return Part("kernel_" + layer, kind, layer, 1, milliseconds, milliseconds / 10, macs)


def test_parts_by_kind_role_and_layer() -> None:
    profile = Profile(
        (
            _part("embeddings.word", "embedding", 1.0),
            _part("encoder.layer.0.output.dense", "linear", 2.0, 4_000_000),
            _part("encoder.layer.0.output.norm", "layer_norm", 0.5),
            _part("encoder.layer.1.output.dense", "linear", 4.0, 4_000_000),
            _part("encoder.layer.1.output.norm", "layer_norm", 0.5),
            Part(OUTSIDE, "", "", 0, 2.0, 0.2, 0),
        )
    )
    assert [(p.name, p.calls, p.milliseconds) for p in profile.by_kind()] == [
        ("linear", 2, 6.0),
        (OUTSIDE, 0, 2.0),
        ("embedding", 1, 1.0),
        ("layer_norm", 2, 1.0),
    ]
    assert [(p.name, p.kind, p.calls, p.milliseconds) for p in profile.by_role()] == [
        ("embeddings.word", "embedding", 1, 1.0),
        ("encoder.layer.*.output.dense", "linear", 2, 6.0),
        ("encoder.layer.*.output.norm", "layer_norm", 2, 1.0),
        (OUTSIDE, "", 0, 2.0),
    ]
    assert [(p.name, p.calls, p.milliseconds) for p in profile.by_block()] == [
        ("embeddings", 1, 1.0),
        ("encoder.layer.0", 2, 2.5),
        ("encoder.layer.1", 2, 4.5),
        (OUTSIDE, 0, 2.0),
    ]
    assert profile.by_role()[1].gmacs == pytest.approx(8 / 6)
    assert profile.by_role()[2].gmacs is None


def test_bytes_of_parts_are_known_where_those_of_every_call_are() -> None:
    dense = Part("a", "linear", "encoder.layer.0.dense", 1, 2.0, 0.4, 6_000_000, 3_000_000)
    norm = Part("b", "layer_norm", "encoder.layer.0.norm", 1, 1.0, 0.2, 0, 1_000_000)
    outside = Part(OUTSIDE, "", "", 0, 2.0, 0.4, 0)
    assert (dense.gbytes, dense.macs_per_byte) == (pytest.approx(1.5), 2.0)
    assert (norm.gbytes, norm.macs_per_byte) == (pytest.approx(1.0), None)
    (layer, rest) = Profile((dense, norm, outside)).by_block()
    assert (layer.num_bytes, layer.macs_per_byte) == (4_000_000, 1.5)
    assert (rest.num_bytes, rest.gbytes) == (0, None)
    unknown = Part("c", "linear", "encoder.layer.0.out", 1, 1.0, 0.2, 5)
    (layer,) = Profile((dense, unknown)).by_block()
    assert (layer.num_bytes, layer.gbytes, layer.macs_per_byte) == (0, None, None)


def test_records_of_kernels_without_a_number_are_their_own_role() -> None:
    record = KernelRecord("main_pooler", "linear", "pooler.dense", 3)
    part = Part(record.name, record.kind, record.layer, 1, 1.0, 1.0, record.macs)
    profile = Profile((part,))
    assert [p.name for p in profile.by_role()] == ["pooler.dense"]
    assert [p.name for p in profile.by_block()] == ["pooler"]


def test_the_ceiling_needs_no_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    if get_target("host").dot.name == "none":
        pytest.skip("nothing measures the limit of this processor's instructions")
    monkeypatch.setenv("CC", "/no/such/compiler")
    monkeypatch.setenv("PATH", "")
    ceiling = measure_ceiling(1, seconds=0)
    assert ceiling.instruction == get_target("host").dot.name
    assert ceiling.missing == ""
    # Faster than scalar code could be, slower than any processor of today.
    assert ceiling.gmacs is not None and 5 < ceiling.gmacs < 5000


def test_a_machine_without_the_instruction_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from ibert_tvm import targets

    plain = get_target("x86-64")
    monkeypatch.setattr(targets, "get_target", lambda name: plain)
    ceiling = measure_ceiling(1)
    assert (ceiling.gmacs, ceiling.missing) == (
        None,
        "nothing measures the limit of this processor's instructions",
    )


def test_an_unknown_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from ibert_tvm import targets

    def refuse(name: str) -> None:
        raise TargetError("cannot compile", where="here", why="an unknown machine", todo="nothing")

    monkeypatch.setattr(targets, "get_target", refuse)
    assert measure_ceiling(1).missing == "an unknown machine"

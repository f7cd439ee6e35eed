"""The table of words in 4 bits: what it stands for, what it costs, and compiled code of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError, VerificationError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization.vocabulary import cut_vocabulary
from ibert_tvm.quantization.word_table import packed_rows, with_word_bits, within_bytes
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.operators.tokens import NibbleEmbedding
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.types import TensorType
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.spec import nibbles
from tests.encoder.small_encoders import bert
from tests.integration.whole_models import one_layer, random_inputs
from tests.snapshots import Messages


def unpacked(packed: nibbles.NibbleRows, channels: int) -> np.ndarray:
    """The definition, entry by entry."""
    entries = np.zeros((len(packed.rows), channels), np.int64)
    for channel in range(channels):
        group, within = divmod(channel, 32)
        byte = packed.table[:, 16 * group + within % 16].astype(np.int64)
        scales = packed.scales[:, group // 2].astype(np.int64)
        half = byte // 16 if within >= 16 else byte % 16
        scale = 1 + (scales // 16 if group % 2 else scales % 16)
        entries[:, channel] = (half - 8) * scale * packed.rows
    return entries


@pytest.mark.parametrize("channels", [1, 16, 17, 32, 48, 96, 97])
def test_packed_rows_are_close_to_the_table(channels: int) -> None:
    random = np.random.default_rng(channels)
    table = np.clip(np.rint(random.normal(0, 35, (60, channels))), -127, 127).astype(np.int8)
    table[3] = 0
    factors = random.uniform(0.05, 1.0, 60) / 100
    packed, unit = packed_rows(table, factors)
    assert packed.table.shape[1:] + packed.scales.shape[1:] == nibbles.bytes_of(channels)
    real, found = table * factors[:, None], unpacked(packed, channels) * unit
    # Half a step of a group is at most 1/14 of its largest entry, and 1/32 of its row's beside it.
    steps = np.abs(real).max(axis=1, keepdims=True) * (1 / 14 + 1 / 16 + 0.02)
    assert (np.abs(found - real) <= steps).all()
    assert not found[3].any()
    if channels > 40:
        assert np.linalg.norm(found - real) < 0.1 * np.linalg.norm(real)


def test_a_step_computes_what_its_table_stands_for() -> None:
    whole = one_layer()
    narrow = with_word_bits(whole, 4)
    step, before = narrow.program.steps[0], whole.program.steps[0]
    assert isinstance(step.operator, NibbleEmbedding) and step.name == before.name
    constants = {k: v for k, v in step.operands.items() if v in narrow.parameters}
    arrays = {name: narrow.parameters[place] for name, place in constants.items()}
    entries = unpacked(
        nibbles.NibbleRows(arrays["table"], arrays["scales"], arrays["rows"]),
        step.operator.channels,
    )
    shift = step.operator.shift
    wanted = (entries * int(arrays["multiplier"][0]) + (1 << shift - 1)) >> shift
    given = random_inputs(list(narrow.program.inputs), 3, 20, 90, 4, padding=True)
    given = {name: given[name].astype(type_.dtype) for name, type_ in narrow.program.inputs.items()}
    _, values = evaluate_all(narrow.program, given, narrow.parameters)
    np.testing.assert_array_equal(values[step.name], wanted[given["input_ids"]])
    _, wide = evaluate_all(whole.program, given, whole.parameters)
    error = np.linalg.norm(values[step.name] - wide[step.name]) / np.linalg.norm(wide[step.name])
    assert 0.02 < error < 0.12
    report = analyse_ranges(narrow.program, narrow.parameters)
    details = report.details
    assert check_unbounded(narrow.program, given, narrow.parameters, details, np.int64) == []


def test_it_is_stored_and_cut_as_others_are(tmp_path: Path) -> None:
    narrow = with_word_bits(bert(), 4)
    assert narrow.quantization["word_table_bits"] == 4
    loaded = QuantizedModel.load(narrow.save(tmp_path / "narrow.ibert"))
    assert loaded.program == narrow.program
    words = bert().parameters[bert().program.steps[0].operands["table"]].nbytes
    assert narrow.num_bytes < bert().num_bytes - words // 3
    cut = cut_vocabulary(loaded, ["hello"])
    assert cut.info.vocab_size < narrow.info.vocab_size
    assert with_word_bits(narrow, 8) is narrow


def test_the_form_that_fits(messages: Messages) -> None:
    whole = bert()
    narrow = with_word_bits(whole, 4)
    assert within_bytes(whole, whole.num_bytes) is whole
    assert within_bytes(whole, whole.num_bytes - 1).num_bytes == narrow.num_bytes
    assert within_bytes(whole, narrow.num_bytes).num_bytes == narrow.num_bytes
    for model in (whole, narrow):
        with messages.raises(VerificationError):
            within_bytes(model, narrow.num_bytes - 1)
    with messages.raises(UsageError):
        with_word_bits(narrow, 4)
    with messages.raises(UsageError):
        with_word_bits(whole, 5)


def test_rows_of_another_size_are_refused(messages: Messages) -> None:
    types = {
        "ids": TensorType((2, 5), "int32"),
        "table": TensorType((9, 32), "uint8"),
        "scales": TensorType((9, 1), "uint8"),
        "rows": TensorType((9,), "uint8"),
        "multiplier": TensorType((1,), "int32"),
    }
    assert NibbleEmbedding("e", 3, 40).result_type(types) == TensorType((2, 5, 40), "int32")
    for channels in (32, 65):
        with messages.raises(LoweringError):
            replace(NibbleEmbedding("e", 3, 40), channels=channels).result_type(types)


@pytest.mark.slow
def test_compiled_code_gives_the_same_integers(tmp_path: Path) -> None:
    narrow = with_word_bits(one_layer(), 4)
    ibert.compile(narrow, target="host", shapes=[(3, 20)]).export(tmp_path / "m.so")
    library = ibert.load_library(tmp_path / "m.so", num_threads=1)
    given = random_inputs(list(narrow.program.inputs), 3, 20, 90, 4, padding=True)
    outputs, _ = evaluate_all(narrow.program, given, narrow.parameters)
    for found, wanted in zip(library.run(**given, dequantize=False).values(), outputs, strict=True):
        np.testing.assert_array_equal(np.asarray(found.values), wanted)

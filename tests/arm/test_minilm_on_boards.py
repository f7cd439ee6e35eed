"""MiniLM with its real weights on every ARM board, under its emulator, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.targets.library_audit import audit_library
from tests.arm.tools import BOARDS, board, run_library
from tests.examples import examples
from tests.integration.whole_models import minilm

pytestmark = [pytest.mark.qemu, pytest.mark.slow(seconds=40)]

VOCABULARY = 30000
# As many tokens as the emulator gets through in a few seconds.
LENGTHS = {"rpi4": 32, "armv6-softfloat": 32, "rv64gc": 32, "rv64gcv": 32}


@pytest.mark.parametrize("name", examples(BOARDS, "rpi4", otherwise="record"))
def test_minilm_is_bit_exact(name: str, tmp_path: Path) -> None:
    target, model = board(name), minilm()
    seq_len = LENGTHS.get(name, 128)
    compiled = ibert.compile(model, target=name, shapes=[(1, seq_len)], runtime="none")
    path = compiled.export(tmp_path / "model.so", require_load=True)
    assert audit_library(path, target).findings == ()
    random = np.random.default_rng(3)
    # Whole, and with a third of it padding; on a processor without floating-point unit where the
    # target is for one.
    for tokens in (seq_len, seq_len - seq_len // 3):
        mask = np.zeros((1, seq_len), np.int32)
        mask[:, :tokens] = 1
        values = {
            "input_ids": random.integers(3, VOCABULARY, (1, seq_len)).astype(np.int32),
            "attention_mask": mask,
            "token_type_ids": np.zeros((1, seq_len), np.int32),
        }
        arrays = {key: values[key] for key in model.input_names}
        outputs = run_library(path, target, arrays)
        wanted = evaluate(model.module, arrays, model.parameters)
        for (label, got), want in zip(outputs.items(), wanted, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=label)

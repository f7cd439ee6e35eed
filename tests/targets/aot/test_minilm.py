"""MiniLM with its real weights, without runtime: bit for bit what the specification says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.targets import get_target
from ibert_tvm.targets.library_audit import audit_library
from tests.integration.whole_models import minilm
from tests.targets.aot.bare_bert import assert_equal, expected
from tests.targets.aot.c_interface import Caller

SHAPES = [(1, 32), (2, 128)]


@pytest.mark.record
def test_minilm_is_bit_exact(tmp_path: Path) -> None:
    quantized = minilm()
    compiled = ibert.compile(quantized, "host", SHAPES, runtime="none")
    path = compiled.export(tmp_path / "minilm.so")
    assert compiled.bare is not None
    caller = Caller(path, max(compiled.bare.arena_bytes.values()))
    random = np.random.default_rng(0)
    for batch, seq_len in SHAPES:
        mask = np.ones((batch, seq_len), "int32")
        mask[-1, seq_len // 2 :] = 0
        inputs = {
            "input_ids": random.integers(1000, 30000, (batch, seq_len)).astype("int32"),
            "attention_mask": mask,
            "token_type_ids": np.zeros((batch, seq_len), "int32"),
        }
        inputs = {name: inputs[name] for name in quantized.input_names}
        assert_equal(caller.run(inputs), expected(quantized, inputs))
    # The arena holds what a step needs, and hardly more.
    for function in compiled.bare.functions:
        assert function.arena_bytes <= 1.1 * function.lower_bound
    assert audit_library(path, get_target("host")).findings == ()

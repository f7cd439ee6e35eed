"""Long texts: buffers of attention that no stack holds, in places of the workspace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.runtime import load_library
from ibert_tvm.targets.aot import lower
from tests.cache import quantised_once
from tests.random_models import random_bert, random_ids

# A task for each sequence and head: more than there are places, which do not divide them. The
# packed values of one, 64 channels of 16 bits, take more than a stack gets.
_BATCH, _LENGTH = 17, 544


@quantised_once
def _long() -> QuantizedModel:
    """BERT of one layer and one head."""
    sizes = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 1, "intermediate_size": 64, "max_position_embeddings": _LENGTH}
    canonical = ibert.load(random_bert(3, **sizes), head="pooled", verify=False)
    return ibert.quantize(canonical, calibration=[random_ids(50, 2, 24, 1, types=2)])


@pytest.mark.slow
def test_long_attention_runs_on_threads_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[tuple[int, int]] = []
    original = lower._in_places

    def noted(loop):
        result = original(loop)
        placed.append((int(loop.extent), int(result.extent)))
        return result

    monkeypatch.setattr(lower, "_in_places", noted)
    model = _long()
    compiled = ibert.compile(model, target="host", shapes=[(_BATCH, _LENGTH)], runtime="none")
    assert placed == [(_BATCH, 9)]  # two tasks in each place but the last
    path = compiled.export(tmp_path / "long.so")
    arrays = random_ids(50, _BATCH, _LENGTH, 2, _LENGTH - 70, types=2)
    wanted = evaluate(model.module, arrays, model.parameters)
    for threads in (1, 2, 3):
        with load_library(path, num_threads=threads) as library:
            for _ in range(3):
                outputs = library.run(**arrays, dequantize=False)
                for output, want in zip(outputs.values(), wanted, strict=True):
                    np.testing.assert_array_equal(output.values, want)
            assert library.engine.pool.started() >= threads - 1

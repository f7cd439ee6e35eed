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

# 34 blocks of 32 rows and 64 channels, which no number of places divides.
_LENGTH = 544


@quantised_once
def _long() -> QuantizedModel:
    """BERT of one layer and two heads."""
    sizes = {"vocab_size": 50, "hidden_size": 128, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": _LENGTH}
    canonical = ibert.load(random_bert(3, **sizes), head="pooled", verify=False)
    return ibert.quantize(canonical, calibration=[random_ids(50, 2, 24, 1, types=2)])


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
    compiled = ibert.compile(model, target="host", shapes=[(1, _LENGTH)], runtime="none")
    assert placed and all(1 < after <= lower._PLACES < before for before, after in placed)
    path = compiled.export(tmp_path / "long.so")
    arrays = random_ids(50, 1, _LENGTH, 2, _LENGTH - 70, types=2)
    wanted = evaluate(model.module, arrays, model.parameters)
    for threads in (1, 2, 3):
        with load_library(path, num_threads=threads) as library:
            for _ in range(3):
                outputs = library.run(**arrays, dequantize=False)
                for output, want in zip(outputs.values(), wanted, strict=True):
                    np.testing.assert_array_equal(output.values, want)
            assert library.engine.pool.started() >= threads - 1

"""A whole small BERT, compiled without runtime for this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.random_models import random_bert, random_ids


@quantised_once
def _bert() -> QuantizedModel:
    """BERT of one layer, 64 wide, with random weights; hidden states and a pooled output."""
    import ibert_tvm as ibert

    sizes = {"vocab_size": 211, "num_hidden_layers": 1, "intermediate_size": 192}
    canonical = ibert.load(random_bert(3, **sizes), head="pooled")
    batches = [random_ids(211, 4, 24, seed, types=2) for seed in range(3)]
    return ibert.quantize(canonical, calibration=batches)


@pytest.fixture(scope="session")
def quantized() -> QuantizedModel:
    return _bert()


@pytest.fixture(scope="session")
def compiled(quantized):
    """It, compiled without runtime for this machine, in several shapes."""
    import ibert_tvm as ibert
    from tests.targets.aot.bare_bert import SHAPES

    return ibert.compile(quantized, target="host", shapes=SHAPES, runtime="none")


@pytest.fixture(scope="session")
def library_path(compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, with its header beside it."""
    return compiled.export(tmp_path_factory.mktemp("bare") / "model.so")

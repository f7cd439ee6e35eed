"""Random batches, what is trained beside the reference and compiled libraries: `record.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.examples import examples
from tests.train.record import BATCHES, CASES, Comparison


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset"), examples(CASES, ("llama", "accurate"), unpack=True, otherwise="record")
)
def test_random_batches_have_the_integers_of_libraries(
    name: str, preset: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A few of one model; of the others, for the record, all."""
    recorded = request.node.get_closest_marker("record") is not None
    comparison = Comparison(name, preset, tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small
    try:
        for seed in range(BATCHES if recorded else 10):
            comparison.check(seed)
    finally:
        torch.set_num_threads(threads)

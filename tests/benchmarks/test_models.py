"""What is measured: work, shapes, peers that are not there."""

import numpy as np
import pytest

from benchmarks.models import MODELS, Cell
from benchmarks.peers.base import Peer


@pytest.mark.parametrize(
    ("model", "cell", "gmacs"),
    [
        ("minilm", "1x32", 0.34446),
        ("minilm", "1x128", 1.434),
        ("minilm", "8x128", 11.48),
        ("bert-base", "1x128", 11.17),
        ("bert-base", "8x256", 183.6),
        ("bert-large", "1x128", 39.46),
        ("modernbert-base", "1x128", 14.67),
        ("qwen3-0.6b", "1x128", 58.25),  # heads of 128 channels, half as many of keys
    ],
)
def test_work_counts_linear_layers_and_both_attention_products(model, cell, gmacs):
    assert MODELS[model].macs(Cell.parse(cell)) == pytest.approx(gmacs * 1e9, rel=1e-3)


def test_cell_round_trip_and_inputs():
    cell = Cell.parse("3x17")
    assert str(cell) == "3x17"
    inputs = cell.inputs()
    assert inputs["input_ids"].shape == (3, 17)
    assert inputs["input_ids"].dtype == np.int64
    np.testing.assert_array_equal(inputs["attention_mask"], np.ones((3, 17), np.int64))
    np.testing.assert_array_equal(inputs["input_ids"], Cell(3, 17).inputs()["input_ids"])


@pytest.mark.parametrize("text", ["", "8", "8x", "x128", "0x128", "8x-1", "8 x 128"])
def test_cell_refuses_what_is_not_a_shape(text):
    with pytest.raises(ValueError) as caught:
        Cell.parse(text)
    assert str(caught.value) == f"cell {text!r}: expected BATCHxLENGTH, for example 8x128"


class _Absent(Peer):
    name, title, precision = "absent", "not installed anywhere", "fp32"
    packages = (("no_such_module_here", "no-such-distribution"), ("numpy", "numpy"))

    def build(self, spec, cell, source, folder, cache):
        raise AssertionError("never built")

    def load(self, folder, spec, cell, threads):
        raise AssertionError("never loaded")


def test_missing_peer_says_what_to_install():
    assert _Absent().missing() == ("not installed: no-such-distribution (make bench installs them)")


def test_weights_are_those_of_the_linear_layers():
    assert MODELS["bert-base"].weight_bytes(1) == 12 * (4 * 768**2 + 2 * 768 * 3072) == 84934656
    assert MODELS["minilm"].weight_bytes(4) == 4 * 6 * (4 * 384**2 + 2 * 384 * 1536)

"""Presets by name."""

from __future__ import annotations

from ibert_tvm.relay_passes.errors import PresetError
from ibert_tvm.relay_passes.spec.exponential import PolynomialExponential
from ibert_tvm.relay_passes.spec.presets import ACCURATE, PAPER, RELEASED, preset
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from tests.snapshots import Messages


def test_presets_are_found_by_name() -> None:
    assert preset("accurate") is ACCURATE and preset("paper") is PAPER
    assert preset("released") is RELEASED


def test_an_unknown_preset_is_refused_with_the_allowed_ones(messages: Messages) -> None:
    with messages.raises(PresetError):
        preset("fast")


def test_each_preset_derives_the_exponential_of_its_softmax() -> None:
    accurate, paper = ACCURATE.exponential_for(1e-3), PAPER.exponential_for(1e-3)
    assert isinstance(accurate, ShortExponential) and accurate.maximum == 255
    assert isinstance(paper, PolynomialExponential) and paper.maximum == 32767


def test_the_released_exponential_needs_the_scale_of_its_result(messages: Messages) -> None:
    with messages.raises(PresetError):
        RELEASED.exponential_for(1e-3)

"""Presets by name."""

from __future__ import annotations

import pytest

from ibert_tvm.relay_passes.errors import PresetError
from ibert_tvm.relay_passes.spec.exponential import PolynomialExponential
from ibert_tvm.relay_passes.spec.presets import ACCURATE, PAPER, RELEASED, preset
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential


def test_presets_are_found_by_name() -> None:
    assert preset("accurate") is ACCURATE and preset("paper") is PAPER
    assert preset("released") is RELEASED


def test_an_unknown_preset_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(PresetError) as caught:
        preset("fast")
    assert str(caught.value) == (
        "unknown preset 'fast'\n"
        "  why: a preset chooses the form of every approximation\n"
        "  what to do: use one of: accurate, paper, released"
    )


def test_each_preset_derives_the_exponential_of_its_softmax() -> None:
    accurate, paper = ACCURATE.exponential_for(1e-3), PAPER.exponential_for(1e-3)
    assert isinstance(accurate, ShortExponential) and accurate.maximum == 255
    assert isinstance(paper, PolynomialExponential) and paper.maximum == 32767


def test_the_released_exponential_needs_the_scale_of_its_result() -> None:
    with pytest.raises(PresetError) as caught:
        RELEASED.exponential_for(1e-3)
    assert str(caught.value) == (
        "the exponential of the preset 'released' has no constants for a scale alone\n"
        "  why: the scale of its result was calibrated in training\n"
        "  what to do: use ibert_tvm.relay_passes.spec.released.ReleasedExponential.from_scales"
    )

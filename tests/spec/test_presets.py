"""Presets by name."""

from __future__ import annotations

import pytest

from relay_passes.errors import PresetError
from relay_passes.spec.exponential import BinaryExponential, PolynomialExponential
from relay_passes.spec.presets import ACCURATE, PAPER, preset


def test_presets_are_found_by_name() -> None:
    assert preset("accurate") is ACCURATE and preset("paper") is PAPER


def test_an_unknown_preset_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(PresetError) as caught:
        preset("fast")
    assert str(caught.value) == (
        "unknown preset 'fast'\n"
        "  why: a preset chooses the form of every approximation\n"
        "  what to do: use one of: accurate, paper"
    )


def test_each_preset_derives_the_exponential_of_its_softmax() -> None:
    accurate, paper = ACCURATE.exponential_for(1e-3), PAPER.exponential_for(1e-3)
    assert isinstance(accurate, BinaryExponential) and accurate.maximum == 255
    assert isinstance(paper, PolynomialExponential) and paper.maximum == 32767

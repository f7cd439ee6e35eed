"""Where scales come from is decided once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.quantization.scale_source import Calibrated, Given, Released, Trained, scale_source
from tests.quantization.models import random_model


class Own:
    """Stands for what a model came with."""

    def __init__(self, trained: bool = True, preset: str = "accurate") -> None:
        self.trained, self.preset = trained, preset


@pytest.mark.parametrize(
    ("came_with", "preset", "calibrated", "kind", "chosen"),
    [
        ({}, None, True, Calibrated, "accurate"),
        ({}, "paper", False, Calibrated, "paper"),
        ({"trained": Own(preset="paper")}, None, False, Trained, "paper"),
        ({"trained": Own(preset="paper")}, "paper", False, Trained, "paper"),
        ({"trained": Own(preset="paper")}, "accurate", False, Calibrated, "accurate"),
        ({"trained": Own(preset="paper")}, None, True, Calibrated, "accurate"),
        ({"released": Own()}, None, True, Released, "released"),
        ({"released": Own(trained=False)}, None, False, Released, "released"),
        ({"released": Own(trained=False)}, None, True, Calibrated, "accurate"),
        ({"released": Own()}, "accurate", True, Calibrated, "accurate"),
        ({"given": Own()}, None, False, Given, "accurate"),
        ({"given": Own()}, "paper", True, Given, "paper"),
    ],
)
def test_the_source_is_what_model_preset_and_data_say(
    came_with: dict[str, Any], preset: str | None, calibrated: bool, kind: type, chosen: str
) -> None:
    model = replace(random_model("bert"), **came_with)
    source = scale_source(model, preset, calibrated)
    assert (type(source), source.preset) == (kind, chosen)
    assert source.needs_data == (kind is Calibrated)


def test_a_fidelity_is_chosen_where_calibration_chooses_scales() -> None:
    """A checkpoint that was never trained with quantisation is calibrated like any float model."""
    model = replace(random_model("bert"), released=Own(trained=False))
    assert scale_source(model, None, True).fidelity(None) == "default"
    assert scale_source(model, None, True).fidelity("best") == "best"
    assert scale_source(model, None, False).fidelity(None) is None
    with pytest.raises(UsageError, match="it came with its scales"):
        scale_source(model, None, False).fidelity("best")


def test_the_preset_of_trained_checkpoints_is_for_them_alone() -> None:
    with pytest.raises(UsageError, match="the preset released cannot quantise this model"):
        scale_source(random_model("bert"), "released")

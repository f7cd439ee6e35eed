"""Settings of calibration: three groups, and each by its own name."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.quantization import CalibrationOptions, Forms, Observation, Search, options_of
from tests.snapshots import Messages


def test_settings_go_by_their_own_names_or_in_groups() -> None:
    options = CalibrationOptions(observer="minmax", split_share=1 / 48, alphas=(0.5,))
    assert options == CalibrationOptions(
        Observation(observer="minmax"), Forms(split_share=1 / 48), Search(alphas=(0.5,))
    )
    changed = options.but(observer="mse", centre=True)
    assert (changed.observation.observer, changed.search.centre) == ("mse", True)
    assert changed.forms == options.forms
    assert options.observation.observer == "minmax"


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="CalibrationOptions has no setting 'alpha'"):
        CalibrationOptions(alpha=0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"observer": "median"},
        {"seq_len": 0},
        {"percentile": 0.999},
        {"alphas": (1.0,)},
        {"sample_tokens": 0},
        {"most_texts": 0},
        {"margin": 0.9},
        {"margin": 5.0},
        {"margin": float("nan")},
        {"balance": (0.0,)},
        {"balance": (1.0, float("inf"))},
        {"balance": (float("nan"),)},
        {"split_share": 1.5},
        {"copied_share": 1.5},
        {"row_scales": "sometimes"},
    ],
)
def test_settings_without_meaning_are_refused(
    messages: Messages, settings: dict[str, object]
) -> None:
    with messages.raises(UsageError):
        CalibrationOptions(**settings)


def test_no_two_groups_have_a_setting_of_one_name() -> None:
    names = [field.name for group in (Observation, Forms, Search) for field in fields(group)]
    assert len(names) == len(set(names)) == 22


def test_artefacts_record_settings_by_their_own_names() -> None:
    document = options_of("default").to_json()
    assert json.loads(json.dumps(document)) == document
    assert (document["observer"], document["balance"]) == ("minmax", [0.1, 0.3, 1.0])
    assert CalibrationOptions(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in document.items()}
    ) == options_of("default")

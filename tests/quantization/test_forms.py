"""Forms of values in a table come back from a document; others are refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ibert_tvm.relay_passes.quantization_table import (
    FARTHEST_ZERO_POINT,
    MOST_COLUMNS,
    WIDE_RANGE,
    ActivationQuant,
    QuantizationTable,
    QuantizationTableError,
)
from ibert_tvm.relay_passes.spec.parts import OPERAND_LIMIT
from tests.snapshots import Messages

POINTS = np.array([0, 100, -300, 7, -1])
SIGNED: dict[str, Any] = {"scale": 0.5, "low": -127, "high": 127}
BY_ROW: dict[str, Any] = {"scale": 0.01, "low": -16383, "high": 16383, "by_row": True}
WIDE: dict[str, Any] = {"scale": 0.5, "low": -1000, "high": 1000}
FORMS: dict[str, dict[str, Any]] = {
    "plain": SIGNED,
    "unsigned, split": {
        **SIGNED, "low": 0, "high": 255, "zero_point": 9,
        "splits": np.array([1, 4, 2, 1, MOST_COLUMNS]),
    },
    "zero points": {**SIGNED, "channel_zero_point": POINTS, "phase": np.full(5, 0.25)},
    "divided": {**SIGNED, "channel_divisor": np.array([0.5, 2.0])},
    "by row": BY_ROW,
    "wide value": {**SIGNED, "low": WIDE_RANGE[0], "high": WIDE_RANGE[1]},
    "wide operand": {**SIGNED, "low": -OPERAND_LIMIT, "high": OPERAND_LIMIT},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_they_come_back_from_a_document(name: str) -> None:
    quant = ActivationQuant(**FORMS[name])
    back = ActivationQuant.from_json(json.loads(json.dumps(quant.to_json())))
    for field in fields(quant):
        found, wanted = getattr(back, field.name), getattr(quant, field.name)
        assert type(found) is type(wanted), field.name
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "form",
    [
        {**SIGNED, "splits": np.array([1.0, 2.0])},
        {**SIGNED, "splits": np.array([[1]])},
        {**SIGNED, "splits": np.array([0, 2])},
        {**SIGNED, "splits": np.array([1, MOST_COLUMNS + 1])},
        {**SIGNED, "channel_zero_point": np.ones((2, 2), np.int64)},
        {**SIGNED, "channel_zero_point": np.ones(2)},
        {**SIGNED, "channel_zero_point": np.array([FARTHEST_ZERO_POINT + 1])},
        {**SIGNED, "channel_zero_point": POINTS, "by_row": True},
        {**SIGNED, "phase": np.array([0.6])},
        {**SIGNED, "phase": np.array([np.nan])},
        {**SIGNED, "phase": np.array([[0.1]])},
        {**SIGNED, "phase": np.array([])},
        {**BY_ROW, "phase": np.zeros(3)},
        {**BY_ROW, "zero_point": 1},
        {**BY_ROW, "low": -5},
        {**BY_ROW, "splits": np.array([2])},
    ],
)
def test_what_no_integers_hold(messages: Messages, form: dict[str, Any]) -> None:
    with messages.raises(QuantizationTableError):
        ActivationQuant(**form)


@pytest.mark.parametrize(
    ("preset", "section", "form"),
    [
        ("accurate", "matmul", {**WIDE, "low": -OPERAND_LIMIT - 1, "high": OPERAND_LIMIT + 1}),
        ("accurate", "matmul", {**WIDE, "high": 999}),
        ("accurate", "matmul", {**WIDE, "low": 0}),
        ("accurate", "matmul", {**WIDE, "zero_point": 3}),
        ("accurate", "matmul", {**WIDE, "splits": np.array([1, 2])}),
        ("accurate", "matmul", {**WIDE, "channel_zero_point": np.array([1, 2])}),
        ("accurate", "matmul", {**BY_ROW, "low": -32768, "high": 32768}),
        ("released", "matmul", BY_ROW),
        ("accurate", "stream", BY_ROW),
        ("accurate", "stream", FORMS["zero points"]),
    ],
)
def test_what_a_section_cannot_have(
    messages: Messages, preset: str, section: str, form: dict[str, Any]
) -> None:
    with messages.raises(QuantizationTableError):
        QuantizationTable(preset, **{section: {"x": ActivationQuant(**form)}})

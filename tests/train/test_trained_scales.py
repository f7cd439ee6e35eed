"""Scales of a training: their file gives them back, and is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm.common.errors import ModelError
from ibert_tvm.model.trained_scales import FILE, TrainedScales, read_scales
from ibert_tvm.relay_passes.lower import requirements
from tests.golden.models import canonical, table
from tests.snapshots import Messages


def scales(name: str = "bert-default") -> TrainedScales:
    return TrainedScales.of_table(table(name), "none")


@pytest.mark.parametrize("name", ["bert", "bert-default", "bert-paper"])
def test_the_same_integers_come_back(name: str, tmp_path: Path) -> None:
    wanted = table(name)
    scales(name).save(tmp_path)
    model = canonical(name.partition("-")[0])
    needed = requirements(model.module, wanted.preset)
    found = read_scales(tmp_path / FILE).table(needed, model.parameters)
    assert TrainedScales.of_table(found, "none").to_json() == scales(name).to_json()
    for section in ("weights", "embeddings"):
        for key, rows in getattr(wanted, section).items():
            again = getattr(found, section)[key].values
            np.testing.assert_array_equal(again, rows.values, err_msg=key)


def _set(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for key in path[:-1]:
            document = document[key] if key != "*" else next(iter(document.values()))
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_set("preset", value="exact"), "unknown preset 'exact'; a preset chooses the form of "),
        (_set("schema_version", value=9), "it has schema version 9; this version of ibert_tvm"),
        (_set("matmul", "*", "scale", value=0), "it is 0; a number from 2^-126 to 2^127 is needed"),
        (_set("matmul", "*", "scale", value="1"), 'it is "1"; a number from 2^-126 to 2^127'),
        (_set("matmul", "*", "high", value=300), "a matrix operand uses integers"),
        (_set("weights", "x", value=["a"]), 'it is ["a"]; a list of numbers is needed'),
        (_set("embeddings", "*", "bits", value=32), "it is 32; 8 or 16 is needed"),
        (_set("groups", value={"x": [1]}), "there are 1 scales of groups; the matrix has 0 rows"),
        (_set("groups", value={"x": [0.5]}), "it is [0.5]; a list of integers is needed"),
    ],
)
def test_a_file_that_was_edited_is_refused(
    change: Callable[[dict[str, Any]], None], why: str, tmp_path: Path
) -> None:
    document = scales().to_json()
    change(document)
    file = tmp_path / FILE
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ModelError) as caught:
        read_scales(file)
    assert caught.value.what == f"cannot read {file}"
    assert caught.value.why.startswith(why)


def test_scales_of_another_model_are_refused(messages: Messages) -> None:
    model = canonical("bert")
    needed = requirements(model.module, "accurate")
    found = scales()
    rows = dict(found.weights)
    gone = sorted(rows)[0]
    del rows[gone]
    with messages.raises(ModelError):
        TrainedScales(found.activations, rows, found.embeddings, "none").table(
            needed, model.parameters
        )


def test_scales_of_groups_come_back_and_are_those_of_the_model(tmp_path: Path) -> None:
    model = canonical("bert")
    needed = requirements(model.module, "accurate")
    layer, rows = next(iter(scales().weights.items()))
    columns = model.parameters[needed[layer].weight].shape[1]
    groups = np.arange(len(rows) * -(-columns // 32)).reshape(len(rows), -1) % 16 + 1
    found = replace(scales(), groups={layer: groups})
    found.save(tmp_path)
    np.testing.assert_array_equal(read_scales(tmp_path / FILE).groups[layer], groups)
    values = found.table(needed, model.parameters).weights[layer].values
    by_column = np.repeat(groups, 32, axis=1)[:, :columns]
    assert not (values % by_column).any() and np.abs(values // by_column).max() <= 8
    wrong = replace(found, groups={layer: groups[:, :-1]})
    with pytest.raises(ModelError, match="groups in a row, and scales of"):
        wrong.table(needed, model.parameters)
    document = found.to_json()
    document["groups"][layer][0] = 17
    (tmp_path / FILE).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ModelError, match="a scale of a group is out of range"):
        read_scales(tmp_path / FILE)


def test_scales_by_channel_and_weights_are_checked(messages: Messages) -> None:
    model = canonical("bert")
    needed = requirements(model.module, "accurate")
    found = scales()
    name, quant = next(
        item for item in found.activations.matmul.items() if item[1].channel_divisor is not None
    )
    matmul = {**found.activations.matmul, name: replace(quant, channel_divisor=np.ones(3))}
    wrong = replace(found, activations=replace(found.activations, matmul=matmul))
    channels = needed[name].channels
    with pytest.raises(ModelError, match=f"{name} has {channels} channels, and 3 of its scales"):
        wrong.table(needed, model.parameters)
    layer = next(iter(found.weights))
    weight = np.full_like(model.parameters[needed[layer].weight], np.nan)
    with messages.raises(ModelError):
        found.table(needed, {**model.parameters, needed[layer].weight: weight})

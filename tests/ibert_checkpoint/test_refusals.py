"""What an `ibert` folder can hold that is refused, or that calibration has to complete."""

from __future__ import annotations

import copy
import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ibert_tvm as ibert
from ibert_tvm.common.errors import ModelError, UsageError
from ibert_tvm.frontend import ModelSourceError, UnsupportedModelError
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.post_training import calibrate
from ibert_tvm.relay_passes.errors import RangeError
from tests.ibert_checkpoint.checkpoints import batch, quant_acts

LAYER = "encoder.layer.2"


@pytest.fixture
def edited(checkpoint, tmp_path):
    """``edited(arrays={name: array or None}, config={field: value})``: a changed copy."""

    def edit(arrays=None, config=None, head="none"):
        folder = tmp_path / "edited"
        shutil.copytree(checkpoint(head).folder, folder)
        state = load_file(folder / "model.safetensors")
        for name, array in (arrays or {}).items():
            state.pop(name)
            if array is not None:
                state[name] = array
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        document = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**document, **(config or {})}))
        return folder

    return edit


def tokens():
    return [{k: v for k, v in batch([12, 5], seed=seed).items()} for seed in (7, 8)]


def uncalibrated(source, *endings):
    source = copy.deepcopy(source)
    for name, act in quant_acts(source).items():
        if name.endswith(endings):
            act.x_min.fill_(-1e-5)
            act.x_max.fill_(1e-5)
    return source


def test_ranges_that_were_never_calibrated_are_listed(checkpoint, tmp_path, messages):
    source = uncalibrated(
        checkpoint().source, "layer.1.pre_output_act", "layer.3.output.ln_input_act"
    )
    source.embeddings.embeddings_act1.x_min.zero_()
    source.embeddings.embeddings_act1.x_max.zero_()
    source.save_pretrained(tmp_path)
    model = ibert.load(tmp_path, verify=False)
    missing = (
        "embeddings.embeddings_act1, encoder.layer.1.pre_output_act, "
        "encoder.layer.3.output.ln_input_act"
    )
    assert model.info.notes == (f"3 of 50 ranges were never calibrated: {missing}",)
    with messages.raises(ModelError):
        ibert.quantize(model)


def test_calibration_supplies_what_is_missing_and_nothing_else(checkpoint, tmp_path):
    saved = checkpoint()
    source = uncalibrated(
        saved.source, "layer.1.pre_output_act", "layer.2.attention.self.softmax.act"
    )
    source.save_pretrained(tmp_path)
    model = ibert.load(tmp_path, verify=False)
    table, summary = calibrate(model, tokens(), None, CalibrationOptions())
    whole = saved.model.released.table()
    changed = {
        (section, name)
        for section in ("matmul", "stream", "grids")
        for name, quant in getattr(table, section).items()
        if quant.scale != getattr(whole, section)[name].scale
    }
    gelu, exponential = "encoder.layer.1.intermediate.gelu", f"{LAYER}.attention.self.exponential"
    assert changed == {("matmul", gelu), ("stream", exponential)}
    assert 0.5 < table.matmul[gelu].scale / whole.matmul[gelu].scale < 2
    assert 0.5 < table.stream[exponential].scale / whole.stream[exponential].scale < 2
    assert summary["calibrated_here"] == [
        "encoder.layer.1.pre_output_act",
        "encoder.layer.2.attention.self.softmax.act",
    ]
    assert (summary["sequences"], summary["tokens"]) == (4, 34)
    assert ibert.quantize(model, tokens()).preset == "released"


def test_calibration_changes_nothing_where_nothing_is_missing(checkpoint):
    model = checkpoint().model
    with_texts, without = ibert.quantize(model, tokens()), ibert.quantize(model)
    for name, array in without.parameters.items():
        np.testing.assert_array_equal(with_texts.parameters[name], array)


@pytest.mark.slow
def test_a_float_checkpoint_needs_calibration_and_is_then_like_any_other(checkpoint, messages):
    saved = checkpoint(quant_mode=False)
    assert saved.model.info.notes == (
        "quant_mode is false: float weights only, to be quantised with calibration like those of "
        "any float model",
    )
    with messages.raises(ModelError):
        ibert.quantize(saved.model)
    with messages.raises(ModelError):
        ibert.quantize(saved.model, tokens(), "released")
    assert ibert.quantize(saved.model, tokens()).preset == "accurate"


def test_a_float_checkpoint_may_lack_all_ranges(checkpoint, tmp_path):
    saved = checkpoint(quant_mode=False)
    folder = tmp_path / "float"
    shutil.copytree(saved.folder, folder)
    state = load_file(folder / "model.safetensors")
    kept = {n: a for n, a in state.items() if not n.endswith(("x_min", "x_max", "shift"))}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    model = ibert.load(folder, verify=False)
    for name, array in saved.model.parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)


def test_other_presets_take_the_float_weights_of_a_trained_checkpoint(checkpoint, messages):
    model = checkpoint().model
    assert ibert.quantize(model, tokens(), "paper").preset == "paper"
    with messages.raises(UsageError):
        ibert.quantize(model, preset="accurate")


def test_the_preset_is_for_checkpoints_only(checkpoint, messages):
    from dataclasses import replace

    model = checkpoint().model
    other = replace(model, released=None, info=replace(model.info, architecture="bert"))
    with messages.raises(UsageError):
        ibert.quantize(other, tokens(), "released")


CONFIGS = {
    "activation": {"hidden_act": "relu"},
    "force_dequant": {"force_dequant": "all"},
    "quant_mode": {"quant_mode": "yes"},
    "size": {"hidden_size": -1},
    "heads": {"num_attention_heads": 5},
    "padding": {"pad_token_id": None},
    "epsilon": {"layer_norm_eps": -1.0},
    "sizes of another model": {"intermediate_size": 256},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_that_are_refused(edited, name, messages):
    folder = edited(config=CONFIGS[name])
    with messages.raises((ModelSourceError, UnsupportedModelError)):
        ibert.load(folder, verify=False)


ACT = f"{LAYER}.pre_output_act"
ARRAYS = {
    "missing": {f"{ACT}.x_min": None, f"{ACT}.x_max": None},
    "not finite": {f"{ACT}.x_max": np.full(1, np.nan, np.float32)},
    "integers": {f"{LAYER}.output.dense.bias": np.zeros(64, np.int32)},
    "shift": {f"{LAYER}.output.LayerNorm.shift": np.full(1, 2.5, np.float32)},
}


@pytest.mark.parametrize("name", ARRAYS)
def test_weights_that_are_refused(edited, name, messages):
    folder = edited(ARRAYS[name])
    with messages.raises(ModelSourceError):
        ibert.load(folder, verify=False)


def test_a_head_that_is_not_there(checkpoint, messages):
    folder = checkpoint().folder
    with messages.raises(ModelSourceError, folder=folder):
        ibert.load(folder, head="token_classification", verify=False)


def test_a_damaged_pickle(edited, messages):
    folder = edited()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"version https://git-lfs")
    with messages.raises(ModelSourceError, why=re.compile(r"(?<=why: ).*")):
        ibert.load(folder, verify=False)


LOWERED = {
    "a gamma of 0": ("output.LayerNorm", {"weight": 0.0}),
    "a dead channel before GELU": ("intermediate.dense", {"weight": 0.0, "bias": 0.0}),
    "a bias beside no weights": ("output.dense", {"weight": 0.0, "bias": 0.25}),
    "a softmax range of another training": ("attention.self.softmax.act", {"x_max": 1e30}),
}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", LOWERED)
def test_values_of_channels_that_are_refused_when_lowered(edited, checkpoint, name, messages):
    place, values = LOWERED[name]
    state = checkpoint().source.state_dict()
    arrays = {}
    for part, value in values.items():
        arrays[f"{LAYER}.{place}.{part}"] = array = state[f"{LAYER}.{place}.{part}"].numpy().copy()
        array[3 if len(array) > 3 else 0] = value
    model = ibert.load(edited(arrays), verify=False)
    with messages.raises(
        RangeError, number=re.compile(r"\d+\.\d{3,}(e[+-]\d+)?|\d+(\.\d+)?e[+-]\d+")
    ):
        ibert.quantize(model)

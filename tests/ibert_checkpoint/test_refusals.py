"""What an `ibert` folder can hold that is refused, or that calibration has to complete."""

from __future__ import annotations

import copy
import json
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


def text_of(kind, action):
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def tokens():
    return [{k: v for k, v in batch([12, 5], seed=seed).items()} for seed in (7, 8)]


def uncalibrated(source, *endings):
    source = copy.deepcopy(source)
    for name, act in quant_acts(source).items():
        if name.endswith(endings):
            act.x_min.fill_(-1e-5)
            act.x_max.fill_(1e-5)
    return source


def test_ranges_that_were_never_calibrated_are_listed(checkpoint, tmp_path):
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
    assert text_of(ModelError, lambda: ibert.quantize(model)) == (
        "3 of 50 ranges of the checkpoint were never calibrated\n"
        f"  where: {tmp_path}\n"
        f"  why: x_min and x_max are 0 or +-1e-5 in: {missing}\n"
        "  what to do: train with quantisation for some steps, or give calibration texts "
        "(--calibration FILE), from which these ranges, and no others, are taken"
    )


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


def test_a_float_checkpoint_needs_calibration_and_is_then_like_any_other(checkpoint):
    saved = checkpoint(quant_mode=False)
    assert saved.model.info.notes == (
        "quant_mode is false: float weights only, to be quantised with calibration like those of "
        "any float model",
    )
    want = (
        "the checkpoint was not trained with quantisation\n"
        f"  where: {saved.folder}\n"
        "  why: quant_mode is false in config.json, so it has float weights and no ranges that "
        "belong to them\n"
        "  what to do: give calibration texts (--calibration FILE): it is then quantised like any "
        "float model"
    )
    assert text_of(ModelError, lambda: ibert.quantize(saved.model)) == want
    assert text_of(ModelError, lambda: ibert.quantize(saved.model, tokens(), "released")) == want
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


def test_other_presets_take_the_float_weights_of_a_trained_checkpoint(checkpoint):
    model = checkpoint().model
    assert ibert.quantize(model, tokens(), "paper").preset == "paper"
    assert text_of(UsageError, lambda: ibert.quantize(model, preset="accurate")) == (
        "there is no calibration data\n"
        "  why: with the preset accurate scales are chosen by running texts through the model\n"
        "  what to do: give a list of texts, or a list of batches"
    )


def test_the_preset_is_for_checkpoints_only(checkpoint):
    from dataclasses import replace

    model = checkpoint().model
    other = replace(model, released=None, info=replace(model.info, architecture="bert"))
    assert text_of(UsageError, lambda: ibert.quantize(other, tokens(), "released")) == (
        "the preset released cannot quantise this model\n"
        "  why: its scales are those of a checkpoint of transformers' ibert; this is a bert model\n"
        "  what to do: use the preset accurate or paper"
    )


CONFIGS = {
    "force_dequant": (
        {"force_dequant": "all"},
        "force_dequant is 'all'\n"
        "  where: {file}\n"
        "  why: it must be one of none, gelu, softmax, layernorm, nonlinear\n"
        "  what to do: check config.json",
    ),
    "quant_mode": (
        {"quant_mode": "yes"},
        "quant_mode is 'yes'\n"
        "  where: {file}\n"
        "  why: it must be true or false\n"
        "  what to do: check config.json",
    ),
    "size": (
        {"hidden_size": -1},
        "hidden_size is -1\n"
        "  where: {file}\n"
        "  why: it must be a positive integer\n"
        "  what to do: check config.json",
    ),
    "heads": (
        {"num_attention_heads": 5},
        "num_attention_heads is 5\n"
        "  where: {file}\n"
        "  why: it must be a divisor of hidden_size, 64\n"
        "  what to do: check config.json",
    ),
    "padding": (
        {"pad_token_id": None},
        "pad_token_id is None\n"
        "  where: {file}\n"
        "  why: it must be the id of the padding token\n"
        "  what to do: check config.json",
    ),
    "epsilon": (
        {"layer_norm_eps": -1.0},
        "layer_norm_eps is -1.0\n"
        "  where: {file}\n"
        "  why: it must be a number that is not negative\n"
        "  what to do: check config.json",
    ),
    "sizes of another model": (
        {"intermediate_size": 256},
        "encoder.layer.0.intermediate.dense.weight has shape [128, 64]\n"
        "  where: {weights}\n"
        "  why: config.json asks for [256, 64]\n"
        "  what to do: check that config.json belongs to these weights",
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_that_are_refused(edited, name):
    config, text = CONFIGS[name]
    folder = edited(config=config)
    got = text_of(ModelSourceError, lambda: ibert.load(folder, verify=False))
    assert got == text.format(file=folder / "config.json", weights=folder / "model.safetensors")


def test_another_activation_is_unsupported(edited):
    folder = edited(config={"hidden_act": "relu"})
    assert text_of(UnsupportedModelError, lambda: ibert.load(folder, verify=False)) == (
        "hidden_act is 'relu'\n"
        f"  where: {folder / 'config.json'}\n"
        "  why: an I-BERT encoder has i-GELU and nothing else\n"
        "  what to do: check config.json"
    )


ACT = f"{LAYER}.pre_output_act"
ARRAYS = {
    "missing": (
        {f"{ACT}.x_min": None, f"{ACT}.x_max": None},
        "the checkpoint lacks 2 arrays\n"
        "  where: {weights}\n"
        f"  why: there is no {ACT}.x_min, {ACT}.x_max\n"
        "  what to do: check that config.json and the head belong to these weights",
    ),
    "not finite": (
        {f"{ACT}.x_max": np.full(1, np.nan, np.float32)},
        f"{ACT}.x_max holds a number that is not finite\n"
        "  where: {weights}\n"
        "  why: training diverged, or the file is damaged\n"
        "  what to do: check the checkpoint",
    ),
    "integers": (
        {f"{LAYER}.output.dense.bias": np.zeros(64, np.int32)},
        f"{LAYER}.output.dense.bias has dtype int32\n"
        "  where: {weights}\n"
        "  why: float weights are float32, float64, float16 or bfloat16\n"
        "  what to do: save the checkpoint in float32",
    ),
    "shift": (
        {f"{LAYER}.output.LayerNorm.shift": np.full(1, 2.5, np.float32)},
        "the shift of a LayerNorm is 2.5\n"
        f"  where: {LAYER}.output.LayerNorm\n"
        "  why: it is the number of bits by which deviations are shifted, 0 to 31\n"
        "  what to do: check the checkpoint",
    ),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_weights_that_are_refused(edited, name):
    arrays, text = ARRAYS[name]
    folder = edited(arrays)
    got = text_of(ModelSourceError, lambda: ibert.load(folder, verify=False))
    assert got == text.replace("{weights}", str(folder / "model.safetensors"))


def test_a_head_that_is_not_there(checkpoint):
    folder = checkpoint().folder
    action = lambda: ibert.load(folder, head="token_classification", verify=False)  # noqa: E731
    assert text_of(ModelSourceError, action) == (
        "the checkpoint has no head token_classification\n"
        f"  where: {folder / 'model.safetensors'}\n"
        "  why: it lacks classifier.weight\n"
        "  what to do: choose the head that it was trained with, or head='none'"
    )


def test_a_damaged_pickle(edited):
    folder = edited()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"version https://git-lfs")
    got = text_of(ModelSourceError, lambda: ibert.load(folder, verify=False)).splitlines()
    assert got[0] == "the weight file pytorch_model.bin is damaged"
    assert got[1] == f"  where: {folder / 'pytorch_model.bin'}"
    assert got[3] == (
        "  what to do: copy the file again: it is truncated, or a Git LFS pointer (git lfs pull)"
    )


def refused_when_lowered(folder):
    model = ibert.load(folder, verify=False)
    return text_of(RangeError, lambda: ibert.quantize(model))


def test_a_gamma_of_zero_is_refused_with_its_layer(edited, checkpoint):
    gamma = checkpoint().source.encoder.layer[2].output.LayerNorm.weight.detach().numpy().copy()
    gamma[7] = 0.0
    assert refused_when_lowered(edited({f"{LAYER}.output.LayerNorm.weight": gamma})) == (
        "gamma of channel 7 is 0, and 0 more\n"
        f"  where: {LAYER}.output.LayerNorm\n"
        "  why: the released layer norm divides beta by gamma\n"
        "  what to do: quantise the float weights with calibration: the other presets take any "
        "gamma"
    )


def test_a_dead_channel_before_gelu_is_refused(edited, checkpoint):
    dense = checkpoint().source.encoder.layer[2].intermediate.dense
    weight, bias = dense.weight.detach().numpy().copy(), dense.bias.detach().numpy().copy()
    weight[3], bias[3] = 0.0, 0.0
    got = refused_when_lowered(
        edited(
            {
                f"{LAYER}.intermediate.dense.weight": weight,
                f"{LAYER}.intermediate.dense.bias": bias,
            }
        )
    ).splitlines()
    assert got[0].endswith("of i-GELU, channel 3, is too fine")
    assert got[1] == f"  where: {LAYER}.intermediate.gelu"


def test_a_bias_beside_no_weights_is_refused(edited, checkpoint):
    dense = checkpoint().source.encoder.layer[2].output.dense
    weight, bias = dense.weight.detach().numpy().copy(), dense.bias.detach().numpy().copy()
    weight[3], bias[3] = 0.0, 0.25
    got = refused_when_lowered(
        edited({f"{LAYER}.output.dense.weight": weight, f"{LAYER}.output.dense.bias": bias})
    ).splitlines()
    assert got[0].startswith("the bias of channel 3 is 0.25, which is ")
    assert got[1:] == [
        f"  where: {LAYER}.output.dense",
        "  why: an accumulator is int32; the released code would cut the bias off",
        "  what to do: the weights of this row are all but 0: prune the channel, or quantise the "
        "float weights with calibration",
    ]


def test_a_softmax_range_of_another_training_is_refused(edited):
    huge = np.full(1, 1e30, np.float32)
    got = refused_when_lowered(edited({f"{LAYER}.attention.self.softmax.act.x_max": huge}))
    first, where, _, todo = got.splitlines()
    assert first == ("the range of the softmax's exponentials, 1e+30, does not fit its scores")
    assert where == f"  where: {LAYER}.attention.self"
    assert todo == (
        "  what to do: the ranges of Q, K and the softmax are not of one training run: calibrate "
        "them again"
    )

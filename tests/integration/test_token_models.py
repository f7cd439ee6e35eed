"""Encoders that join, shift, mask and scale tokens: from torch to the loaded library."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.pack_tokens import PackTokens
from tests.examples import examples
from tests.frontend.token_modules import made
from tests.integration.token_model import MODELS, TOKENS, float_inputs, inputs, token_model

PRESETS = ("accurate", "paper")
ALL = [(name, preset) for name in MODELS for preset in PRESETS]
NEIGHBOURS, REGISTERS = ("neighbours", "accurate"), ("registers", "accurate")
CASES = examples(ALL, NEIGHBOURS, unpack=True)
# One preset of each, in turns.


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_integers_stand_for_the_float_model(name: str, preset: str) -> None:
    import torch

    model, given = token_model(name, preset), float_inputs(name, 64, 24, 99, 11)
    (found,) = evaluate(model.module, inputs(model, name, 64, 24, 99, 11), model.parameters)
    found = found * model.quantization["outputs"][0]["scale"]
    tensors = (
        torch.tensor(a if a.dtype == np.float32 else a.astype("int64")) for a in given.values()
    )
    with torch.no_grad():
        wanted = made(*MODELS[name])(*tensors).numpy()
    if wanted.ndim == 3:
        real = given["attention_mask"] != 0
        found, wanted = found[real], wanted[real]
    # Of all texts together: a head of five numbers comes near 0 for some, which then are noise.
    cosine = np.vdot(found, wanted) / (np.linalg.norm(found) * np.linalg.norm(wanted))
    # 8 bits of 32 channels, and scores with weights that are far larger than those of a trained
    # model: what attention gives has 19 dB in the models of images, and single tokens of the model
    # that returns all of them are small beside the others.
    assert cosine > (0.97 if name in (*TOKENS, "tokens") else 0.985)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "packed"), [("masked", True), ("tokens", False)])
def test_programs_leave_padding_out_where_nothing_sees_it(name: str, packed: bool) -> None:
    """Embeddings times the mask are packed like any; neighbours have to be where they were."""
    model = token_model(name)
    program = IntegerProgram(model.module, model.parameters)
    assert (PackTokens()(program) is not program) == packed

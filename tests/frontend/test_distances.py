"""Attention that asks for distances: windows and biases, however a torch module makes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ibert_tvm.frontend import load
from ibert_tvm.relay_passes.canonical import FloatModel
from ibert_tvm.relay_passes.dialect.heads import UNBOUNDED
from tests.examples import examples
from tests.frontend.imports import calls_of, run, verified
from tests.frontend.onnx.exports import export
from tests.frontend.test_modules import HEADS, VOCABULARY, WIDTH, Block

LONGEST = 50
WINDOW = ("before", "after")


class Distances(Block):
    """A block whose scores are changed by a subclass; [batch, 1, 1, key] says which are tokens."""

    def scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        return q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS), v

    def attend(self, x, mask):
        scores, v = self.scores(x)
        return self.changed(scores, mask[:, None, None, :].bool()).softmax(-1) @ v

    def distance(self, length: int) -> torch.Tensor:
        place = torch.arange(length)
        return place[None, :] - place[:, None]


class Causal(Distances):
    """A stored triangle, cut to the length, as GPT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("triangle", torch.ones(LONGEST, LONGEST).tril()[None, None])

    def changed(self, scores, tokens):
        length = scores.shape[-1]
        scores = scores.masked_fill(self.triangle[:, :, :length, :length] == 0, float("-inf"))
        return scores + (1 - tokens.float()) * -1e9


class FusedCausal(Distances):
    """Torch's own causal attention, which takes no padding mask."""

    def attend(self, x, mask):
        q, k, v = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, input_ids):
        return super().forward(input_ids, None)


class Sliding(Distances):
    """A window to both sides, wider than the traced example, by comparison of positions."""

    reach = 17

    def changed(self, scores, tokens):
        near = self.distance(scores.shape[-1]).abs() <= self.reach
        low = torch.finfo(torch.float32).min
        return scores + torch.where(near & tokens, 0.0, low)


class CausalWindow(Distances):
    """What is near, before and no padding, multiplied."""

    def changed(self, scores, tokens):
        distance = self.distance(scores.shape[-1])
        near = ((distance > -20) & (distance <= 0)).long() * tokens.long()
        return scores.masked_fill(near == 0, -1e9)


class Buckets(Distances):
    """The bias of T5: buckets of distances, logarithmic from 4 on, added to the mask first."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(16, HEADS)

    def changed(self, scores, tokens):
        distance = self.distance(scores.shape[-1])
        bucket, near = (distance > 0).to(torch.long) * 8, distance.abs()
        far = 4 + (torch.log(near.float() / 4) / math.log(20 / 4) * 4).to(torch.long)
        far = torch.min(far, torch.full_like(far, 7))
        bucket += torch.where(near < 4, near, far)
        bias = self.relative_attention_bias(bucket).permute(2, 0, 1)[None]
        return scores + (bias + (1.0 - tokens.float()) * torch.finfo(torch.float32).min)


class Slopes(Distances):
    """ALiBi: a slope per head, symmetric, in a window."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", 0.5 ** torch.arange(1.0, HEADS + 1)[:, None, None])

    def changed(self, scores, tokens):
        distance = self.distance(scores.shape[-1])
        scores = scores - self.slopes * distance.abs()
        return scores.masked_fill(~(tokens & (distance.abs() < 9)), float("-inf"))


class Unlimited(Buckets):
    """Without a table of positions nothing but the bias limits the length."""

    def embed(self, ids):
        return self.norm(self.words(ids))


def padded(length: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(length)
    mask = torch.ones(4, length, dtype=torch.int64)
    for row, tokens in enumerate((length, 2 * length // 3, 1)):
        mask[row, tokens:] = 0
    mask[3, : length // 4] = 0  # padded in front
    ids = torch.randint(0, VOCABULARY, mask.shape, generator=random)
    return {"input_ids": ids * mask, "attention_mask": mask}


def check(module: nn.Module, model, lengths) -> None:
    """As torch computes it, at real tokens of padded batches."""
    float_model = FloatModel(model.module, model.parameters)
    for length in lengths:
        batch = padded(length)
        with torch.no_grad():
            result = module(**batch)
        expected = getattr(result, "last_hidden_state", result).numpy()
        arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        output = float_model.run(arrays).outputs[0]
        tokens = arrays["attention_mask"] != 0
        np.testing.assert_allclose(output[tokens], expected[tokens], atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "window", "bias"),
    examples(
        [
            (Causal, (UNBOUNDED, 0), ""),
            (Sliding, (17, 17), ""),
            (CausalWindow, (19, 0), ""),
            (Buckets, (UNBOUNDED, UNBOUNDED), "relative_attention_bias.weight"),
            (Slopes, (8, 8), "bias_by_distance"),
        ],
        (Sliding, (17, 17), ""),
        unpack=True,
    ),
)
def test_a_window_or_bias_holds_at_every_length(kind, window, bias):
    torch.manual_seed(0)
    module = kind().eval()
    model = load(module)
    (call,) = calls_of(model, "attention")
    assert (int(call.attrs["before"]), int(call.attrs["after"])) == window
    assert [a.name for a in call.args[4:]] == ([bias] if bias else [])
    assert model.info.max_sequence_length == LONGEST
    if bias:
        assert model.parameters[bias].shape == (HEADS, 2 * LONGEST - 1)
    check(module, model, (7, 23, LONGEST))


@pytest.mark.slow
def test_causal_attention_that_takes_no_mask_gets_one():
    torch.manual_seed(0)
    module = FusedCausal().eval()
    model = load(module)
    assert model.info.inputs == ("input_ids", "attention_mask")
    assert [int(call.attrs["after"]) for call in calls_of(model, "attention")] == [0]
    batch = padded(31)
    whole = {name: tensor[:1].numpy() for name, tensor in batch.items()}
    with torch.no_grad():
        expected = module(batch["input_ids"][:1]).numpy()
    np.testing.assert_allclose(run(model, whole), expected, atol=1e-4)


@pytest.mark.slow
def test_a_bias_without_positions_has_512_of_them():
    torch.manual_seed(0)
    module = Unlimited().eval()
    model = load(module)
    assert model.info.max_sequence_length == 512
    check(module, model, (13, 200, 512))


def mpnet(layers: int = 2):
    from transformers import MPNetConfig, MPNetModel

    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=202,
        pad_token_id=1,
    )
    model = MPNetModel(config).eval()
    with torch.no_grad():  # transformers' own initial values are near 0
        model.encoder.relative_attention_bias.weight.normal_()
    return model


@pytest.mark.slow
def test_mpnet():
    module = mpnet()
    model = verified(module, 1e-4)
    calls = calls_of(model, "attention")
    name = "encoder.relative_attention_bias.weight"
    assert [call.args[4].name for call in calls] == [name, name]
    assert (model.info.architecture, model.info.max_sequence_length) == ("mpnet", 200)
    assert model.parameters[name].shape == (4, 399)
    check(module, model, (9, 70, 200))  # one bucket from a distance of 128 on


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Sliding, Buckets])
def test_the_same_from_onnx(kind, tmp_path):
    torch.manual_seed(0)
    module = kind().eval()
    file = tmp_path / "model.onnx"
    export(module, file, ["input_ids", "attention_mask"], dynamo=False, opset=17)
    model, same = load(file), load(module)
    (call,), (other,) = calls_of(model, "attention"), calls_of(same, "attention")
    assert [int(call.attrs[n]) for n in WINDOW] == [int(other.attrs[n]) for n in WINDOW]
    for a, b in zip(call.args[4:], other.args[4:], strict=True):
        np.testing.assert_array_equal(model.parameters[a.name], same.parameters[b.name])
    check(module, model, (7, 23, LONGEST))

"""Models of images in canonical form: ViT, DeiT and plain modules, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ibert_tvm.frontend import ModelSourceError, UnsupportedModelError, load
from ibert_tvm.relay_passes.canonical import FloatModel, canonical_calls
from tests.examples import examples

WIDTH, HEADS, PATCH = 24, 3, 4


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("architecture", "head", "tokens", "attention"),
    [("vit", "pooled", 10, "sdpa"), ("deit", "image_classification", 11, "eager")],
)
def test_transformers_models(make, pixels, architecture, head, tokens, attention):
    model = make(architecture, head)
    model.set_attn_implementation(attention)
    loaded = load(model, head=head)
    assert loaded.verified_error is not None and loaded.verified_error <= 1e-5
    info = loaded.info
    assert (info.architecture, info.head, info.num_layers) == (architecture, head, 1)
    assert (info.inputs, info.image_size) == (("pixel_values",), (3, 24, 24))
    assert (info.hidden_size, info.max_sequence_length, info.vocab_size) == (32, tokens, 0)
    expected = {f"LABEL_{i}" for i in range(5)} if head == "image_classification" else set()
    assert set(info.id2label.values()) == expected
    ops = [call.op.name.removeprefix("canonical.") for _, call in canonical_calls(loaded.module)]
    assert ops[:5] == ["patches", "linear", "prepend_tokens", "add_positions", "layer_norm"]
    assert [len(call.args) for _, call in canonical_calls(loaded.module)][
        ops.index("attention")
    ] == 3
    batch = pixels(3, seed=4)
    (output,) = FloatModel(loaded.module, loaded.parameters).run({"pixel_values": batch}).outputs
    with torch.no_grad():
        result = model(pixel_values=torch.from_numpy(batch))
    want = result.logits if head == "image_classification" else result.pooler_output
    np.testing.assert_allclose(output, want.numpy(), atol=1e-4)


class Block(nn.Module):
    """Pre-norm block with torch's fused attention and a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.first(x)).reshape(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + self.out(context.transpose(1, 2).reshape(x.shape)) * self.scale
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Rearranged(nn.Module):
    """Patches by reshape and transpose, pixels of a patch in the order row, column, colour, and
    normalised; no class token: the mean over all patches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        inside = PATCH * PATCH * 3
        self.before, self.project = nn.LayerNorm(inside), nn.Linear(inside, WIDTH)
        nn.init.normal_(self.before.weight)
        nn.init.normal_(self.before.bias)
        self.places = nn.Parameter(torch.randn(1, 6, WIDTH) * 0.3)
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        batch, planes, height, width = pixel_values.shape
        x = pixel_values.reshape(batch, planes, height // PATCH, PATCH, width // PATCH, PATCH)
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, PATCH * PATCH * planes)
        x = self.project(self.before(x)) + self.places
        return self.head(self.norm(self.block(x)).mean(1))


class Convolution(nn.Module):
    """Patches by a convolution, one learned token, its output."""

    def __init__(self, **convolution: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        settings = {"kernel_size": PATCH, "stride": PATCH, **convolution}
        self.patches = nn.Conv2d(3, WIDTH, **settings)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.block = Block()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.block(x)[:, -1]


@pytest.mark.slow
def test_patches_by_reshapes_normalised_and_pooled():
    loaded = load(Rearranged(), image_size=(3, 8, 12))
    assert loaded.verified_error is not None and loaded.verified_error <= 1e-5
    ops = [call.op.name.removeprefix("canonical.") for _, call in canonical_calls(loaded.module)]
    assert ops[:4] == ["patches", "layer_norm", "linear", "add_positions"]
    assert ops[-2:] == ["mean_pool", "linear"]
    assert loaded.info.max_sequence_length == 6
    assert any("moved to the weights" in f.what for f in loaded.report.foldings)


@pytest.mark.slow
def test_patches_by_a_convolution_and_the_last_token():
    loaded = load(Convolution(), image_size=(3, 8, 12))
    assert loaded.verified_error is not None and loaded.verified_error <= 1e-5
    select = [c for _, c in canonical_calls(loaded.module) if c.op.name == "canonical.select_token"]
    assert [int(call.attrs["index"]) for call in select] == [6]


@pytest.mark.slow
def test_an_exported_program_of_images():
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(
        Convolution().eval(), (torch.zeros(3, 3, 8, 12),), dynamic_shapes={"images": batch}
    )
    loaded = load(program)
    assert loaded.verified_error is not None and loaded.verified_error <= 1e-5
    assert (loaded.info.inputs, loaded.info.image_size) == (("pixel_values",), (3, 8, 12))
    assert loaded.info.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "tokens"),
    examples(
        [
            ({"stride": 2}, 15),
            ({"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 1)}, 20),
            ({"kernel_size": 2, "stride": 3}, 12),
        ],
        # They overlap in one direction and lie apart in the other.
        ({"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 1)}, 20),
        unpack=True,
    ),
)
def test_patches_that_overlap_or_lie_apart(settings, tokens):
    loaded = load(Convolution(**settings), image_size=(3, 8, 12))
    assert loaded.verified_error is not None and loaded.verified_error <= 1e-5
    ops = [call.op.name.removeprefix("canonical.") for _, call in canonical_calls(loaded.module)]
    assert ops[:2] == ["windows", "linear"]
    assert loaded.info.max_sequence_length == tokens + 1


@pytest.mark.slow
def test_images_that_were_moved_before_are_refused(messages):
    class Turned(Convolution):
        def forward(self, images):
            return super().forward(images.transpose(2, 3))

    with messages.raises(UnsupportedModelError):
        load(Turned(), image_size=(3, 8, 8), verify=False)


def test_images_of_unknown_size_are_refused(messages):
    with messages.raises(ModelSourceError):
        load(Convolution())


def test_heads_of_texts_are_refused(make, messages):
    with messages.raises(ModelSourceError):
        load(make("vit", "none"), head="sentence_embedding")

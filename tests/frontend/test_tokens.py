"""Importing what joins, shifts, masks and scales tokens: by values, compared with torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ibert_tvm.frontend import CanonicalModel, UnsupportedModelError, load
from tests.examples import examples
from tests.frontend.imports import calls_of, ops, run, verified
from tests.frontend.token_modules import (
    PLANES,
    SIDE,
    VOCABULARY,
    WIDTH,
    Neighbours,
    Registers,
    made,
)
from tests.snapshots import Messages

Hidden = torch.Tensor


class Words(nn.Module):
    """Words, a function of them and the mask, and torch's own layer where it is asked for."""

    def __init__(self, function: Callable[..., Hidden], *parts: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.parts = nn.ModuleList(parts)
        self.function = function

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Hidden:
        return self.function(self.words(input_ids), attention_mask, *self.parts)


def words(function: Callable[..., Hidden], *parts: nn.Module) -> CanonicalModel:
    """Import such a module, compared with torch on padded batches of two shapes."""
    torch.manual_seed(0)
    return verified(Words(function, *parts), 1e-4)


def encoder(**settings: object) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True, **settings).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu6", "leaky", "hard swish", "hard sigmoid"])
def test_neighbours_agree_with_torch(name: str) -> None:
    found = ops(verified(made(Neighbours, name, True), 1e-4))
    assert found.count("shift_tokens") == 2
    assert found.count("scale_channels") + found.count("add_row") >= 2
    assert "mask_tokens" in found  # neighbours see padding


@pytest.mark.slow
def test_registers_agree_with_torch() -> None:
    loaded = verified(made(Registers), image_size=(PLANES, SIDE, SIDE))
    found = ops(loaded)
    assert found.count("prepend_tokens") == found.count("slice_tokens") == 1
    assert loaded.parameters["token"].shape == (3, WIDTH)  # the class token and two registers
    np.testing.assert_array_equal(loaded.parameters["places"][1:3], 0)


# -- the padding mask as a factor ------------------------------------------------------------------


def masked(x: Hidden, mask: torch.Tensor) -> Hidden:
    return x * mask[:, :, None].float()


def attended(x: Hidden, mask: torch.Tensor, layer: nn.Module) -> Hidden:
    return layer(masked(x, mask), src_key_padding_mask=mask == 0)


@pytest.mark.slow
def test_nothing_sees_that_padding_is_0_behind_attention() -> None:
    loaded = words(attended, encoder())
    assert "mask_tokens" not in ops(loaded)
    folded = [f for f in loaded.report.foldings if f.what.startswith("nothing sees")]
    assert [folding.name for folding in folded] == ["words.masked"]


@pytest.mark.slow
def test_a_pool_with_the_mask_does_not_see_it_either() -> None:
    def pooled(x: Hidden, mask: torch.Tensor, layer: nn.Module) -> Hidden:
        y = attended(x, mask, layer)
        return masked(y, mask).sum(1) / mask.sum(1, keepdim=True)

    assert "mask_tokens" not in ops(words(pooled, encoder()))


@pytest.mark.slow
def test_a_token_that_may_be_padding_sees_it() -> None:
    """The first token of a batch that is padded on the left."""
    torch.manual_seed(0)
    module = Words(lambda x, mask, layer: attended(x, mask, layer)[:, 0], encoder()).eval()
    loaded = load(module)
    assert "mask_tokens" in ops(loaded)
    inputs = {
        "input_ids": np.arange(12).reshape(2, 6) + 1,
        "attention_mask": np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]),
    }
    # With gradients torch takes no fused kernel, which would give 0 for padding.
    wanted = module(*(torch.tensor(array) for array in inputs.values())).detach().numpy()
    np.testing.assert_allclose(run(loaded, inputs), wanted, atol=1e-5)


# -- channels --------------------------------------------------------------------------------------


def batch_norm() -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(WIDTH)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_(1, 0.2)
        norm.bias.normal_()
    return norm.eval()


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def applied(x: Hidden, mask: torch.Tensor, layer: nn.Module) -> Hidden:
    return layer(x)


def convolved(x: Hidden, mask: torch.Tensor, layer: nn.Module) -> Hidden:
    return layer(x.transpose(1, 2)).transpose(1, 2)


def normed(x: Hidden, mask: torch.Tensor, layer: nn.Module, norm: nn.Module) -> Hidden:
    return convolved(layer(x), mask, norm)


def weight_norm(kind: str) -> nn.Module:
    return getattr(nn.utils.parametrizations, kind)(linear()).eval()


FORMS: dict[str, tuple[Callable[..., Hidden], Callable[[], list[nn.Module]], str]] = {
    "a mask that no attention has": (
        lambda x, mask, layer: layer(masked(x, mask)),
        lambda: [linear()],
        "mask_tokens linear",
    ),
    "a batch norm": (normed, lambda: [linear(), batch_norm()], "linear"),
    "a batch norm of a sum": (
        lambda x, mask, layer, norm: convolved(x + layer(x), mask, norm),
        lambda: [linear(), batch_norm()],
        "linear add scale_channels add_row",
    ),
    "a token's convolution": (convolved, lambda: [nn.Conv1d(WIDTH, 48, 1)], "linear"),
    "one in groups": (convolved, lambda: [nn.Conv1d(WIDTH, 48, 1, groups=4)], "linear"),
    "one of neighbours": (
        convolved,
        lambda: [nn.Conv1d(WIDTH, 48, 3, padding=1)],
        "unfold_tokens linear",
    ),
    "normalised weights": (applied, lambda: [weight_norm("weight_norm")], "linear"),
    "weights of norm 1": (applied, lambda: [weight_norm("spectral_norm")], "linear"),
    "joined channels that no matrix reads": (
        lambda x, mask: functional.gelu(torch.cat([x, 2 * x], dim=2)),
        list,
        "embedding concatenate gelu",
    ),
}
SLOW = ("a batch norm of a sum", "a token's convolution", "weights of norm 1")


@pytest.mark.parametrize("name", examples(FORMS, *(name for name in FORMS if name not in SLOW)))
def test_forms_of_layers(name: str) -> None:
    function, parts, expected = FORMS[name]
    assert ops(words(function, *parts())) == ["embedding", *expected.split()]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "settings",
    [{"padding": 1, "groups": 4}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"padding": 3}],
)
def test_convolutions_of_tokens_that_are_refused(
    settings: dict[str, int], messages: Messages
) -> None:
    with messages.raises(UnsupportedModelError):
        words(convolved, nn.Conv1d(WIDTH, 48, 3, **settings))


# -- bounds ----------------------------------------------------------------------------------------


_HUGE = np.finfo(np.float32).max
BOUNDS: list[tuple[Callable[..., Hidden], list]] = [
    (lambda x: functional.relu6(x), [(0.0, 6.0)]),
    (lambda x: torch.clamp(functional.gelu(x), -10, 10), [(-10.0, 10.0)]),
    (lambda x: torch.clamp(x, -1000.0, 1000.0), [(-1000.0, 1000.0)]),
    (lambda x: torch.clamp(0.001 * x, max=5.0), [(-_HUGE, 5.0)]),
    (lambda x: torch.clamp(torch.relu(x), max=100.0), [(-_HUGE, 100.0)]),
    (lambda x: functional.relu(x) + functional.relu(x), []),
    (lambda x: 3 * functional.relu(x), []),
]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("function", "found"), examples(BOUNDS, BOUNDS[1], BOUNDS[4], BOUNDS[5], unpack=True)
)
def test_bounds_are_kept_where_they_are(function: Callable[..., Hidden], found: list) -> None:
    loaded = words(lambda x, mask, layer: layer(function(layer(x))), nn.Linear(WIDTH, WIDTH))
    calls = calls_of(loaded, "clip")
    bounds = [float(call.attrs[name]) for call in calls for name in ("low", "high")]
    assert bounds == pytest.approx([bound for pair in found for bound in pair])


# -- torch's own layers ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_causal_mask_of_torchs_layers_is_a_window() -> None:
    def function(x: Hidden, mask: torch.Tensor, layer: nn.Module) -> Hidden:
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return layer(x, mask=causal, src_key_padding_mask=(1.0 - mask) * -1e9)

    stack = nn.TransformerEncoder(encoder(norm_first=True), 1, nn.LayerNorm(WIDTH)).eval()
    loaded = words(function, stack)
    (attention,) = calls_of(loaded, "attention")
    assert int(attention.attrs["after"]) == 0


@pytest.mark.slow
def test_torchs_settings_are_as_before() -> None:
    layers = nn.modules.transformer
    before = layers._detect_is_causal_mask, torch.backends.mha.get_fastpath_enabled()
    words(attended, encoder())
    after = layers._detect_is_causal_mask, torch.backends.mha.get_fastpath_enabled()
    assert before == after


def test_sinusoids_that_are_a_constant_are_positions() -> None:
    angles = torch.arange(40)[:, None] / 10 ** torch.linspace(0, 3, WIDTH // 2)
    table = torch.stack([angles.sin(), angles.cos()], dim=2).reshape(1, 40, WIDTH)
    loaded = words(lambda x, mask: x * WIDTH**0.5 + table[:, : x.shape[1]])
    assert loaded.info.max_sequence_length == 40
    assert ops(loaded) == ["position_ids", "embedding", "embedding", "add"]


def test_learned_rows_behind_tokens_are_refused(messages: Messages) -> None:
    rows = torch.ones(1, 2, WIDTH)
    with messages.raises(UnsupportedModelError):
        words(lambda x, mask: torch.cat([x, rows.expand(len(x), -1, -1)], dim=1))

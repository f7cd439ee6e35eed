"""Disentangled attention as transformers computes it, and what of it is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibert_tvm.frontend import UnsupportedModelError, load
from ibert_tvm.relay_passes.canonical import FloatModel
from ibert_tvm.relay_passes.dialect.calls import operands_of
from tests.examples import examples
from tests.frontend.disentangled import KINDS, POSITIONS, VOCABULARY, disentangled
from tests.frontend.imports import calls_of, verified
from tests.snapshots import Messages


def batch(length: int) -> dict[str, np.ndarray]:
    mask = np.ones((2, length), np.int64)
    mask[1, length // 3 :] = 0
    ids = np.random.default_rng(1).integers(3, VOCABULARY, mask.shape)
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_imported_models_compute_what_transformers_does(kind: str) -> None:
    # With positions of its own the model says how long sequences may be.
    module = disentangled(kind, position_biased_input=True)
    imported = load(module, head="none", verify=False)
    assert imported.info.max_sequence_length == POSITIONS
    for call in calls_of(imported, "attention"):
        given = operands_of(call)
        assert "key_positions" in given
        assert ("query_positions" in given) == (kind != "of_queries")
        assert [int(n) for n in given["key_positions"].ty.shape] == [2 * POSITIONS - 1, 32]
    executable = FloatModel(imported.module, imported.parameters)
    for length in (7, POSITIONS):
        arrays = batch(length)
        (output,) = executable.run(arrays).outputs
        with torch.no_grad():
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            expected = module(**tensors).last_hidden_state.numpy()
        real = arrays["attention_mask"] != 0
        np.testing.assert_allclose(output[real], expected[real], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["buckets", "first"])
def test_sequences_without_positions_are_followed_to_the_longest_compared(kind: str) -> None:
    """Most distances share the last bucket; the comparison with the source is part of importing."""
    imported = verified(disentangled(kind, position_biased_input=False), 1e-4, head="none")
    assert imported.info.max_sequence_length == 512


LONGEST = 20


class Other(torch.nn.Module):
    """One layer with a term by distance, which `change` makes another than that of its scores."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.change = change
        self.words = torch.nn.Embedding(VOCABULARY, 16)
        self.places = torch.nn.Embedding(LONGEST, 16)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))
        self.vectors = torch.nn.Parameter(torch.randn(2, 8, 25))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        x = self.words(input_ids) + self.places(torch.arange(length))
        q, k, v, other = (part(x).unflatten(-1, (2, 8)).permute(0, 2, 1, 3) for part in self.parts)
        place = torch.arange(length)
        distance = place[None, :] - place[:, None]
        if self.change == "places":
            distance = place[None, :] + 0 * place[:, None]
        base = other if self.change == "operand" else q
        products = base @ self.vectors
        index = (distance + 12).clamp(0, 24).expand(*products.shape[:3], length)
        term = products.gather(-1, index)
        if self.change == "layout":
            term = term.transpose(-1, -2)
        scores = q @ k.transpose(-1, -2) + term
        scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, float("-inf"))
        return (scores.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(2)


@pytest.mark.slow
def test_terms_are_found_by_their_arithmetic() -> None:
    torch.manual_seed(2)
    module = Other().eval()
    imported = verified(module)
    (attention,) = calls_of(imported, "attention")
    vectors = imported.parameters[str(operands_of(attention)["key_positions"].name)]
    # Columns for distances of 12 and more are all the last one.
    columns = np.arange(1 - LONGEST, LONGEST).clip(-12, 12) + 12
    expected = module.vectors.detach().numpy()[:, :, columns].transpose(2, 0, 1)
    scale = float(attention.attrs["scale"])
    np.testing.assert_allclose(vectors * scale, expected.reshape(len(columns), 16), rtol=1e-6)


@pytest.mark.parametrize("change", examples(["operand", "layout", "places"], "places"))
def test_terms_of_other_tensors_or_by_more_than_the_distance_are_refused(
    change: str, messages: Messages
) -> None:
    with messages.raises(UnsupportedModelError):
        load(Other(change).eval(), verify=False)

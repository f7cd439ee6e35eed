"""What is learned of a float model."""

from __future__ import annotations

import pytest
import torch

from ibert_tvm.common.errors import UsageError
from ibert_tvm.train.losses import embedding_loss, logits_loss
from tests.snapshots import Messages
from tests.train.small import batch, integer_model, tensors


@pytest.mark.slow
def test_a_model_comes_back_to_what_its_float_original_gives() -> None:
    model = integer_model("bert")
    given = tensors(batch(3, rows=8))
    with torch.no_grad():
        wanted = 40 * model.model(**given).logits
    # An original that differs: its logits are far larger.
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = logits_loss(model(**given).logits, wanted)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_the_distance_of_embeddings_is_one_of_directions() -> None:
    x = torch.randn((5, 7), generator=torch.Generator().manual_seed(0))
    assert embedding_loss(3 * x, x).item() == pytest.approx(0.0, abs=1e-6)
    assert embedding_loss(-x, x).item() == pytest.approx(2.0, abs=1e-5)  # pairs agree
    moved = (x + 0.5 * x.roll(1, 0)).requires_grad_()
    before = embedding_loss(moved, x)
    before.backward()
    assert moved.grad is not None
    assert embedding_loss(moved.detach() - 0.1 * moved.grad, x) < before


def test_a_single_logit_is_a_number() -> None:
    one, other = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.5], [2.0]])
    assert logits_loss(one, other).item() == 0.125
    assert logits_loss(other, other).item() == 0.0


@pytest.mark.slow
def test_labels_of_another_head_are_refused(messages: Messages) -> None:
    model = integer_model("bert")
    with messages.raises(UsageError):
        model(**tensors(batch(3)), start_positions=torch.zeros(4), end_positions=torch.zeros(4))

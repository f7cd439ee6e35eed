"""A model that counts tokens with one id is compiled for texts without it, where that can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ibert_tvm import load
from ibert_tvm.frontend.errors import UnsupportedModelError
from tests.frontend.imports import run
from tests.snapshots import Messages

if TYPE_CHECKING:
    import torch

ROWS, CHANNELS = 13, 8


def counting(absent: int) -> torch.nn.Module:
    """As transformers' ESM: embeddings of an id become 0, and all grow by how many there are."""
    import torch

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(ROWS, CHANNELS)
            self.out = torch.nn.Linear(CHANNELS, CHANNELS)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            absents = input_ids == absent
            x = self.words(input_ids).masked_fill(absents.unsqueeze(-1), 0.0)
            seen = absents.sum(-1).float() / attention_mask.sum(-1)
            x = x * 0.88 / (1 - seen)[:, None, None]
            return self.out(x * attention_mask.unsqueeze(-1))

    torch.manual_seed(0)
    return Counting().eval()


def test_the_last_id_is_left_out_of_the_vocabulary() -> None:
    import torch

    module = counting(ROWS - 1)
    model = load(module, head="none")
    assert model.info.vocab_size == ROWS - 1
    assert model.info.notes == (
        f"the model counts tokens with the id {ROWS - 1}; the compiled model takes no such id, and "
        "is equal to it for texts without any",
    )
    ids = np.random.default_rng(0).integers(0, ROWS - 1, (3, 9))
    mask = np.ones_like(ids)
    mask[1, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    got = run(model, inputs)
    want = module(torch.from_numpy(ids), torch.from_numpy(mask)).detach().numpy()
    np.testing.assert_allclose(got * mask[..., None], want * mask[..., None], atol=1e-5)


@pytest.mark.slow
def test_another_id_is_refused(messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        load(counting(4), head="none")

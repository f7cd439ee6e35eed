"""What a rotation computes: as transformers does, as complex numbers do; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import CanonicalError
from ibert_tvm.relay_passes.canonical.operators.positions import Rotate
from tests.canonical import reference

X = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(np.float32)


def table(positions: int, columns: int) -> np.ndarray:
    angles = np.arange(positions)[:, None] * 0.5 ** np.arange(columns // 2)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.mark.parametrize("columns", [2, 6, 8])
def test_pairs_are_complex_numbers(columns: int) -> None:
    given = table(7, columns)
    found = Rotate("y", 3).evaluate(X, given)
    wanted = reference.rotate(X.astype(np.float64), given.astype(np.float64), heads=3)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    split = found.reshape(2, 5, 3, 8)[..., columns:]
    np.testing.assert_array_equal(split, X.reshape(2, 5, 3, 8)[..., columns:])


def test_as_transformers_has_it() -> None:
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    rows = torch.tensor(table(5, 8))
    cos, sin = (torch.cat([part, part], -1)[None] for part in rows.chunk(2, dim=-1))
    heads = torch.tensor(X).reshape(2, 5, 3, 8).transpose(1, 2)
    wanted, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
    found = Rotate("y", 3).evaluate(X, rows.numpy())
    np.testing.assert_allclose(found, wanted.transpose(1, 2).reshape(2, 5, 24), atol=1e-6)


@pytest.mark.parametrize(
    ("heads", "shape", "message"),
    [
        (5, (7, 4), "24 channels do not divide by 5 heads"),
        (3, (7, 3), "a table of 3 columns for heads of 8 channels"),
        (3, (7, 10), "a table of 10 columns for heads of 8 channels"),
        (3, (4, 8), "a table of 4 positions for 5 tokens"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    heads: int, shape: tuple[int, int], message: str
) -> None:
    with pytest.raises(CanonicalError) as caught:
        Rotate("y", heads).evaluate(X, np.ones(shape, np.float32))
    assert str(caught.value).startswith(f"{message}\n  where: canonical.rotate 'y'\n  why: ")

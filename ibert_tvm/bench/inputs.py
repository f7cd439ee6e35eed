"""What a library is measured on: full rows of random tokens, or real texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.random  # an interrupt is lost where its extensions are imported, so not on first use
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..model.tokenization import TokenizedBatch
    from ..runtime.metadata import LibraryMetadata


@dataclass(frozen=True)
class Batch:
    """Inputs of one call.

    Attributes
    ----------
    inputs
        Arguments of `Library.run`; the first axis of each counts rows.
    tokens
        Tokens that are not padding.
    places
        Tokens including padding.
    """

    inputs: Mapping[str, np.ndarray]
    tokens: int
    places: int

    @property
    def rows(self) -> int:
        """Sequences."""
        return len(next(iter(self.inputs.values())))


def full_batch(metadata: LibraryMetadata, batch: int, seq_len: int, seed: int = 0) -> Batch:
    """Rows of random ids without padding, or random images for a model that takes images.

    Parameters
    ----------
    metadata
        Of the library; its vocabulary bounds the ids, and its padding id is left out.
    batch, seq_len
        Rows, and tokens per row.
    seed
        Of the values.
    """
    info = metadata.info
    random = np.random.default_rng(seed)
    places = batch * seq_len
    if info.image_size is not None:
        pixels = random.standard_normal((batch, *info.image_size), dtype=np.float32)
        return Batch({info.inputs[0]: pixels}, places, places)
    ids = random.integers(0, info.vocab_size, (batch, seq_len))
    ids = np.where(ids == info.pad_token_id, (ids + 1) % info.vocab_size, ids).astype(np.int32)
    return Batch({"input_ids": ids, "attention_mask": np.ones_like(ids)}, places, places)


def text_batches(
    metadata: LibraryMetadata, encoded: TokenizedBatch, batch: int, seq_len: int
) -> list[Batch]:
    """Texts in batches, in their order, padded to `seq_len`; the last ones that fill none are left.

    Parameters
    ----------
    metadata
        Of the library; gives the padding id.
    encoded
        The texts, none longer than `seq_len`.
    batch, seq_len
        Rows of each batch, and its padded length.

    Returns
    -------
    list of Batch
        At least one: where there are fewer texts than rows, they are repeated.
    """
    ids, mask = encoded.input_ids, encoded.attention_mask
    count = max(len(ids) // batch * batch, batch)
    rows = np.resize(np.arange(len(ids)), count)
    shape = (count, seq_len)
    padded: NDArray[np.int32] = np.full(shape, metadata.info.pad_token_id, dtype=np.int32)
    real: NDArray[np.int32] = np.zeros(shape, dtype=np.int32)
    length = min(seq_len, ids.shape[1])
    padded[:, :length] = ids[rows, :length]
    real[:, :length] = mask[rows, :length]
    parts: Sequence[slice] = [slice(start, start + batch) for start in range(0, count, batch)]
    return [
        Batch({"input_ids": padded[p], "attention_mask": real[p]}, int(real[p].sum()), real[p].size)
        for p in parts
    ]

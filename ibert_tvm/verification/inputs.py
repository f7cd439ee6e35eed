"""Inputs on which a program is compared with its reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..common.types import Array
from ..model.model_info import ModelInfo

Inputs = dict[str, Array]


class Batch(NamedTuple):
    """Inputs of one call."""

    rows: int
    tokens: int
    inputs: Inputs


def random_batches(
    info: ModelInfo, shapes: list[tuple[int, int]], count: int, seed: int
) -> Iterator[Batch]:
    """Make inputs of each shape in turn: any ids, padding behind any number of tokens.

    Parameters
    ----------
    info
        The model.
    shapes
        Rows and tokens.
    count
        How many; every shape is met once at least.
    seed
        Of the random numbers.

    Yields
    ------
    Batch
    """
    random = np.random.default_rng(seed)
    for index in range(max(count, len(shapes))):
        batch, length = shapes[index % len(shapes)]
        if info.image_size is not None:
            values = random.normal(size=(batch, *info.image_size)).astype(np.float32)
            yield Batch(batch, length, {info.inputs[0]: values})
            continue
        lengths = random.integers(1, length + 1, batch)
        mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
        ids = random.integers(0, info.vocab_size, (batch, length), dtype=np.int32)
        types = random.integers(0, max(info.type_vocab_size, 1), (batch, length), dtype=np.int32)
        made = {
            "input_ids": np.where(mask, ids, np.int32(info.pad_token_id)),
            "attention_mask": mask,
            "token_type_ids": types,
        }
        yield Batch(batch, length, {name: made[name] for name in info.inputs})

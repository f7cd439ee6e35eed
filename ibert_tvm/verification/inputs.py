"""Inputs on which a program is compared with its reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..common.errors import UsageError, VerificationError
from ..common.types import Array
from ..model.model_info import ModelInfo
from ..model.shapes import check_shapes

if TYPE_CHECKING:
    from ..model.artefact import QuantizedModel

_MOST_SHAPES = 64
_MOST_TOKENS = 16_384
_MOST_TOKENS_IN_ALL = 65_536

Inputs = dict[str, Array]


class Batch(NamedTuple):
    """Inputs of one call."""

    rows: int
    tokens: int
    inputs: Inputs


def check_amount(shapes: list[tuple[int, int]], model: QuantizedModel) -> None:
    """Refuse shapes that a model is not compiled for, or that take too long to verify.

    Parameters
    ----------
    shapes
        Rows and tokens, as an artefact lists them.
    model
        What it is said to be made of.

    Raises
    ------
    VerificationError
        If the model does not take one of them, or they are more than one process should compile
        again and run.
    """
    tokens = [rows * length for rows, length in shapes]
    if len(shapes) > _MOST_SHAPES:
        why = f"it lists {len(shapes)} shapes; at most {_MOST_SHAPES} are verified"
    elif max(tokens, default=0) > _MOST_TOKENS:
        why = f"it lists a shape of {max(tokens)} tokens; at most {_MOST_TOKENS} are verified"
    elif sum(tokens) > _MOST_TOKENS_IN_ALL:
        why = f"its shapes have {sum(tokens)} tokens; at most {_MOST_TOKENS_IN_ALL} are verified"
    else:
        try:
            check_shapes(shapes, model)
            return
        except UsageError as error:
            why = f"the model does not take a shape that it lists: {error.what}: {error.why}"
    raise VerificationError(
        "the shapes of the artefact are not verified",
        why=why,
        todo="compile the model for fewer or smaller shapes; do not use the artefact if it is not "
        "your own",
    )


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

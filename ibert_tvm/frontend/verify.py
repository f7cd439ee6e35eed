"""Proof that an import is right and independent of the traced shape: run both, compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from threadpoolctl import threadpool_limits

from ibert_tvm.relay_passes.canonical import FloatModel

from ..common.types import Array, Floats
from .canonicalise import Canonical
from .errors import UnsupportedModelError
from .sizes import Sizes

TOLERANCE = 1e-4
"""Largest difference allowed, relative to the largest output (at least 1)."""
VERIFY_SHAPE = (3, 21)
"""Batch and length of the comparison: another shape than the traced one in both axes."""
LONGEST = 1024
"""The second comparison is at the longest sequence that the positions allow, up to this: models
that change their computation with the length (windows, sparse attention) are found there."""
UNLIMITED = 512
"""Length of the second comparison of a model without positions, which allows any."""

Source = Callable[[Mapping[str, Array]], tuple[Floats, ...]]
"""Runs the source model: inputs by name to its outputs in order."""


def verification_batch(
    names: tuple[str, ...],
    sizes: Sizes,
    pad_token_id: int,
    mask: str | None,
    shape: tuple[int, int],
) -> dict[str, Array]:
    """Make a batch of random tokens with padding of different lengths, or of random images.

    Parameters
    ----------
    names
        The inputs.
    sizes
        Limits of the model.
    pad_token_id
        Fills the padding of all inputs but the mask, as far as their tables allow.
    mask
        The input that marks tokens with 1.
    shape
        Batch and length; the length is shortened to what the positions allow. Of images only the
        batch counts.

    Returns
    -------
    dict of str to numpy.ndarray
        One array [batch, seq_len] int64 per input, or float32 [batch, *image_size].
    """
    random = np.random.default_rng(1)
    if sizes.image_size is not None:
        images = random.normal(size=(shape[0], *sizes.image_size)).astype(np.float32)
        return dict.fromkeys(names, images)
    batch, length = shape[0], min(shape[1], sizes.max_sequence_length or shape[1])
    tokens = np.ones((batch, length), np.int64)
    if mask is not None:
        tokens[1:2, 2 * length // 3 :] = 0
        tokens[2:3, 1:] = 0
    result = {}
    for name in names:
        if name == mask:
            result[name] = tokens
            continue
        rows = sizes.rows.get(name, 2)
        ids = random.integers(0, rows, (batch, length))
        result[name] = np.where(tokens != 0, ids, min(pad_token_id, rows - 1))
    return result


def verify(canonical: Canonical, inputs: Mapping[str, Array], source: Source) -> float:
    """Compare the canonical module with its source on one batch.

    Parameters
    ----------
    canonical
        The imported model.
    inputs
        The batch; no row without tokens, where the two may differ.
    source : callable
        The source model.

    Returns
    -------
    float
        Largest absolute difference over all outputs.

    Raises
    ------
    UnsupportedModelError
        If it is above `TOLERANCE`.
    """
    own = {k: array for k, array in inputs.items() if k not in canonical.added_inputs}
    # Threads that wait for each other cost a busy machine more than they save.
    with threadpool_limits(1):
        expected = source(own)
        result = FloatModel(canonical.module, canonical.parameters).run(inputs)
    worst = 0.0
    tokens = None if canonical.mask is None else inputs[canonical.mask] != 0
    for index, (want, have) in enumerate(zip(expected, result.outputs, strict=True)):
        same = want.shape == have.shape
        if same and want.ndim == 3 and tokens is not None and tokens.shape == want.shape[:2]:
            # A padded token may see no key at all, where libraries differ; nothing depends on it.
            want, have = want[tokens], have[tokens]
        error = float(np.max(np.abs(want - have), initial=0.0)) if same else np.inf
        limit = TOLERANCE * max(1.0, float(np.max(np.abs(want), initial=0.0)))
        if not error <= limit:  # also when it is NaN
            raise UnsupportedModelError(
                "the imported model differs from its source",
                where=f"output {index}, batch of shape {next(iter(inputs.values())).shape}",
                why=f"largest difference {error:.3g}, allowed {limit:.3g}"
                if same
                else f"shapes {have.shape} and {want.shape}",
                todo="report it as a defect of the importer, with the model's config.json",
            )
        worst = max(worst, error)
    return worst

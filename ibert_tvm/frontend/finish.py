"""The last step of every import: measure the canonical module, verify it, describe the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..common.types import Floats, Weights
from ..model.model_info import ModelInfo, OutputInfo
from . import verify as check
from .canonicalise import Canonical, Revisit
from .errors import UnsupportedModelError
from .model import CanonicalModel
from .sizes import Sizes, measure

MOST_POSITIONS = 8192
"""Positions that tables of rotations get at most, where the source allows more."""


def finish(
    canonical: Canonical,
    source: check.Source | None,
    *,
    architecture: str,
    head: str,
    outputs: Sequence[tuple[str, str]],
    pad_token_id: int | None = None,
    id2label: Mapping[int, str] | None = None,
    shape: tuple[int, int] | None = None,
    again: Callable[[Revisit], Canonical] | None = None,
    positions: int | None = None,
) -> CanonicalModel:
    """Turn the result of canonicalisation into a model.

    Parameters
    ----------
    canonical
        The canonical module.
    source : callable or None
        Runs the source model on arrays by input name, for the comparison; None to leave it out.
        It gets no inputs that the import added.
    architecture, head
        See `ibert_tvm.model.model_info.ModelInfo`.
    outputs
        Name and kind of every output.
    pad_token_id
        Fills padding; by default what positions skip, or 0.
    id2label
        Names of the classes.
    shape
        The only batch and length that the source runs at; by default it runs at any.
    again
        Canonicalises the source at another length, where a bias by distance has the entries that a
        short one leaves out, and a window wider than that is seen; None if it has one length.
    positions
        The longest sequence that the source says to take: rotations get a table of as many
        positions.

    Returns
    -------
    CanonicalModel
        The model, without source and tokenizer.

    Raises
    ------
    UnsupportedModelError
        If it differs from its source.
    """
    sizes = measure(canonical.module)
    most = _most_positions(sizes, canonical, positions)
    length = min(most or check.UNLIMITED, check.LONGEST)
    if again is not None and sizes.max_sequence_length != sizes.table_length:
        # Biases and rotations have entries for the traced length only.
        tables: tuple[Floats, ...] = ()
        if canonical.rotations and most is not None and most > length:
            mask = None if canonical.added_inputs else canonical.mask
            tables = again(Revisit(most, tables_only=True, mask=mask)).rotations
        canonical, again = again(Revisit(length, tables=tables)), None
    try:
        error = _largest_error(canonical, source, pad_token_id, shape)
    except UnsupportedModelError:
        if again is None:
            raise
        wider = _seen_at(again, length)
        if wider is None:
            raise
        canonical = wider
        error = _largest_error(canonical, source, pad_token_id, shape)
    sizes = measure(canonical.module)
    if pad_token_id is None:
        pad_token_id = sizes.padding_index or 0
    info = ModelInfo(
        architecture=architecture,
        head=head,
        inputs=canonical.inputs,
        outputs=tuple(
            OutputInfo(name=name, value=value, kind=kind)
            for (name, kind), (value, _) in zip(outputs, canonical.outputs, strict=True)
        ),
        hidden_size=sizes.hidden_size,
        num_layers=canonical.num_layers,
        vocab_size=sizes.rows.get("input_ids", 0),
        type_vocab_size=sizes.rows.get("token_type_ids", 0),
        max_sequence_length=sizes.max_sequence_length,
        pad_token_id=pad_token_id,
        id2label=id2label or {},
        notes=tuple(
            f"the source has no {name}; the compiled model takes one and ignores padding"
            for name in canonical.added_inputs
        )
        + (
            ()
            if canonical.absent_id is None
            else (
                f"the model counts tokens with the id {canonical.absent_id}; the compiled model "
                "takes no such id, and is equal to it for texts without any",
            )
        ),
        image_size=sizes.image_size,
    )
    return CanonicalModel(canonical.module, canonical.parameters, info, canonical.report, {}, error)


def _most_positions(sizes: Sizes, canonical: Canonical, said: int | None) -> int | None:
    """Positions that the model has, as far as that is known, and as are worth a table."""
    known = [sizes.table_length, canonical.positions]
    if canonical.rotations:
        known.append(min(said or check.UNLIMITED, MOST_POSITIONS))
    return min((count for count in known if count is not None), default=None)


def _seen_at(again: Callable[[Revisit], Canonical], length: int) -> Canonical | None:
    """The model at its longest sequence, if it has a window or a bias there; None if not."""
    try:
        canonical = again(Revisit(length))
    except UnsupportedModelError:
        return None  # what differs is no window
    return canonical if canonical.by_distance else None


def _largest_error(
    canonical: Canonical,
    source: check.Source | None,
    pad_token_id: int | None,
    shape: tuple[int, int] | None,
) -> float | None:
    """Compare with the source at two shapes, or at its only one."""
    if source is None:
        return None
    sizes = measure(canonical.module)
    # A source that masks nothing agrees only where nothing is padding.
    mask = None if canonical.added_inputs else canonical.mask
    shapes = [shape or check.VERIFY_SHAPE]
    if shape is None and sizes.image_size is None:
        shapes.append((1, min(sizes.max_sequence_length or check.UNLIMITED, check.LONGEST)))
    padding = sizes.padding_index or 0 if pad_token_id is None else pad_token_id
    error = 0.0
    for one in shapes:
        batch = check.verification_batch(canonical.inputs, sizes, padding, mask, one)
        batch |= {name: np.ones_like(batch[name]) for name in canonical.added_inputs}
        error = max(error, check.verify(canonical, batch, source))
    return error


def described(
    model: CanonicalModel,
    *,
    source: str,
    description: str,
    sha256: str = "",
    tokenizer: Mapping[str, bytes] | None = None,
    notes: Sequence[str] = (),
    **fields: Any,
) -> CanonicalModel:
    """Note where a model comes from.

    Parameters
    ----------
    model
        The result of `finish`.
    source, description
        See `ibert_tvm.model.model_info.ModelInfo`.
    sha256
        Hash of the source's files; by default that of the parameters, for a model in memory.
    tokenizer
        The source's tokenizer files.
    notes
        Added to those that there are.
    **fields
        More fields of `ModelInfo`.

    Returns
    -------
    CanonicalModel
        The model with all that.
    """
    files = tokenizer or {}
    info = replace(
        model.info,
        source=source,
        source_sha256=sha256 or _parameter_hash(model.parameters),
        description=description,
        tokenizer_files=tuple(files),
        notes=(*model.info.notes, *notes),
        **fields,
    )
    return replace(model, info=info, tokenizer=files)


def _parameter_hash(parameters: Weights) -> str:
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parameters[name]).data)
    return digest.hexdigest()

"""The shapes that a quantised model is compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..common.errors import UsageError

if TYPE_CHECKING:
    from .artefact import QuantizedModel
    from .model_info import ModelInfo


def check_shapes(
    shapes: Sequence[tuple[int, int]] | None, quantized: QuantizedModel
) -> list[tuple[int, int]]:
    """Shapes without repetition, smallest first; UsageError for what the model cannot take."""
    info = quantized.info
    if shapes is None:
        batch, length = info.static_shape or (None, None)
        only = info.max_sequence_length if info.image_size is not None else None
        shapes = [(batch or 1, length or only or info.length(None))]
    if not shapes:
        raise UsageError(
            "no shape to compile for",
            why="every compiled function has one static batch size and sequence length",
            todo="give at least one, for example --batch 1 --seq-len 128",
        )
    longest = quantized.info.max_sequence_length
    for batch, seq_len in shapes:
        if batch < 1 or seq_len < 1:
            raise UsageError(
                f"cannot compile for batch {batch}, sequence length {seq_len}",
                why="both must be at least 1",
                todo="give positive numbers",
            )
        real = info.real_input
        if real is not None and seq_len != longest:
            raise UsageError(
                f"cannot compile for sequence length {seq_len}",
                why=f"{real.what} of {' x '.join(map(str, info.image_size or ()))} become "
                f"{longest} tokens",
                todo=f"choose {longest}",
            )
        _check_static(batch, seq_len, info)
        info.check_length(seq_len, "compile for")
    return sorted(set((int(batch), int(seq_len)) for batch, seq_len in shapes))


def _check_static(batch: int, seq_len: int, info: ModelInfo) -> None:
    """Refuse a shape that the source, exported for one shape only, cannot be compared at."""
    only_batch, only_length = info.static_shape or (None, None)
    if only_batch not in (None, batch) or only_length not in (None, seq_len):
        words = [
            f"{what} {value}"
            for what, value in (("batch", only_batch), ("sequence length", only_length))
            if value is not None
        ]
        raise UsageError(
            f"cannot compile for batch {batch}, sequence length {seq_len}",
            why=f"the source was exported for {' and '.join(words)} only",
            todo=f"choose {' and '.join(words)}, or export the source with dynamic axes and "
            "quantise it again",
        )

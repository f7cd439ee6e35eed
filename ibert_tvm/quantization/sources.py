"""From a float model to integers without a word on how: with the texts that come along."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..texts import packaged_texts

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from ..model.artefact import QuantizedModel

_SEQ_LEN = 128
"""Tokens that calibration texts are cut off at, by default."""

Advance = Callable[[int, int], None]


def default_texts(source: CanonicalModel) -> list[str] | None:
    """Texts that a model is calibrated on by default; None if it came with its scales."""
    has_scales = any(x is not None for x in (source.given, source.released, source.trained))
    return None if has_scales else packaged_texts("calibration.txt")


def quantize_by_default(
    source: CanonicalModel,
    progress: Advance | None = None,
) -> QuantizedModel:
    """Quantise a model as `ibert quantize` does by default.

    Parameters
    ----------
    source : CanonicalModel
        From `ibert_tvm.load`.
    progress : callable, optional
        Called with the steps done and the steps that there are.

    Returns
    -------
    QuantizedModel
        With the scales of the source where it has them, else those of English texts of many kinds.

    Raises
    ------
    IbertError
        As `ibert_tvm.quantize` raises.
    """
    from . import quantize

    length = min(_SEQ_LEN, source.info.max_sequence_length or _SEQ_LEN)
    return quantize(source, default_texts(source), seq_len=length, progress=progress)

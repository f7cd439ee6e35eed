"""From a float model to integers in one step, with the calibration texts that come along."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from .texts import packaged_texts

if TYPE_CHECKING:
    from .artefact import QuantizedModel

_SEQ_LEN = 128
"""Tokens that calibration texts are cut off at, by default."""

Advance = Callable[[int, int], None]


def quantize_source(
    path: str | os.PathLike[str],
    head: str | None = None,
    calibrating: Callable[[], AbstractContextManager[Advance]] | None = None,
) -> QuantizedModel:
    """Import a model and quantise it as `ibert quantize` does by default.

    Parameters
    ----------
    path : path
        What `ibert_tvm.load` takes.
    head : str, optional
        As `ibert_tvm.load` takes.
    calibrating : callable, optional
        Opened around calibration; what it gives is called with the steps done and there are.

    Returns
    -------
    QuantizedModel
        With the scales of the source where it has them, else those of English texts of many kinds.

    Raises
    ------
    IbertError
        As `ibert_tvm.load` and `ibert_tvm.quantize` raise.
    """
    from .frontend import load
    from .quantization import quantize

    source = load(os.fspath(path), head=head)
    has_scales = source.given is not None or source.released is not None
    texts = None if has_scales else packaged_texts("calibration.txt")
    length = min(_SEQ_LEN, source.info.max_sequence_length or _SEQ_LEN)
    with nullcontext() if calibrating is None else calibrating() as advance:
        return quantize(source, texts, seq_len=length, progress=advance)

"""Latency of a library on a board, without the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from ..model.model_info import REAL_INPUTS
from ..runtime.inputs import check_inputs
from .latency import Latency

if TYPE_CHECKING:
    from ..runtime import Library
    from ..runtime.metadata import FunctionRecord
    from ..runtime.remote_engine import RemoteContext
    from .inputs import Batch

_INPUTS = ("input_ids", "attention_mask", "token_type_ids", *REAL_INPUTS)


def measure_remote_latency(
    library: Library, function: FunctionRecord, batches: Sequence[Batch], seconds: float
) -> Latency:
    """Let the board time a compiled function on each batch, with its inputs in place.

    Parameters
    ----------
    library
        On a board (`ibert_tvm.runtime.remote.load_remote`).
    function
        The function; its shape is that of the batches.
    batches
        All of the same number of rows.
    seconds
        How long to measure, about; at least three calls on each batch.
    """
    times = []
    for batch in batches:
        given = {name: batch.inputs.get(name) for name in _INPUTS}
        checked = check_inputs(library.metadata, given)
        arrays = [
            np.ascontiguousarray(checked[record.name], dtype=record.dtype)
            for record in library.metadata.inputs
        ]
        with library.contexts.lent() as context:
            taken = cast("RemoteContext", context).time(function, arrays, seconds / len(batches))
        times.append(tuple(value * 1e3 for value in taken))
    tokens = tuple(batch.tokens for batch in batches)
    return Latency(tuple(times), tokens, batches[0].rows)

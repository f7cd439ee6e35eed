"""How far an integer model falls below the float one on a task: what a search keeps within bounds.

It is used by `ibert_tvm.quantization.search`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import UsageError
from .catalogue import Options, Task
from .compare import evaluate_task
from .samples import Samples
from .sides import BATCH, Side, float_side, integer_side

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from ..model.artefact import QuantizedModel
    from ..model.tokenization import TokenizedBatch


def task_drop(
    task: Task, samples: Samples, options: Options, reference: CanonicalModel
) -> Callable[[QuantizedModel], float]:
    """Return the measure of the metric that falls most, in points (hundredths).

    Each model is compiled for this machine to be measured, since NumPy would take too long.

    Parameters
    ----------
    task
        Of `ibert_tvm.tasks.TASKS`.
    samples
        What its `read` gave.
    options
        As for `read`.
    reference
        The float model.

    Returns
    -------
    callable
        From a model to its drop, which is negative where every metric is better than the float
        model's. It raises DataError if model and samples do not belong together, and UsageError if
        a metric has no value.

    Raises
    ------
    DataError
        If the model has no output that the task can be measured on: before anything is calibrated.
    """
    task.check_head(reference.info)
    floating: Side | None = None

    def measure(model: QuantizedModel) -> float:
        from ..compiler import compile
        from ..encoder import Encoder

        nonlocal floating
        length = min(task.seq_len, model.info.max_sequence_length or task.seq_len)
        with tempfile.TemporaryDirectory(prefix="ibert-") as folder:
            library = Path(folder) / "model.so"
            compile(model, shapes=[(BATCH, length)]).export(library)
            integers = integer_side(Encoder(library))
            if floating is None:
                floating = _remembering(float_side(reference, integers))
            results = evaluate_task(task, samples, integers, floating, options)
        unknown = [result.name for result in results if result.difference is None]
        if unknown:
            raise UsageError(
                f"{', '.join(unknown)} has no value on these samples",
                why="a drop of it cannot be measured",
                todo="give more samples, of more than one class",
            )
        # Rounded as `ibert eval --max-drop` does: a drop that is shown as 0.30 passes 0.3.
        return max(round(-(result.difference or 0.0), 6) for result in results)

    return measure


def _remembering(side: Side) -> Side:
    """A side that runs each batch once: every model of a search is given the same ones."""
    known: dict[tuple[Any, ...], Sequence[NDArray[np.float32]]] = {}

    def run(tokens: TokenizedBatch) -> Sequence[NDArray[np.float32]]:
        arrays = (tokens.input_ids, tokens.attention_mask, tokens.token_type_ids)
        key = (tokens.input_ids.shape, *(array.tobytes() for array in arrays))
        if key not in known:
            known[key] = side.run(tokens)
        return known[key]

    return replace(side, run=run)

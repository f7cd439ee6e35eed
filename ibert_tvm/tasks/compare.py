"""A task's metrics of the integer model, and of the float model beside it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..common.types import Floats
from .catalogue import Options, Task
from .measures import Measure
from .samples import Samples
from .sides import BATCH, Progress, Side, float_side, integer_side

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from ..model.artefact import QuantizedModel
    from ..model.tokenization import TokenizedBatch

# Intervals of differences by resampling, paired: both models are judged on the same draws.

RESAMPLES = 10_000
LEVEL = 0.95
_ELEMENTS = 2**18
"""Counts that are made at a time: they stay in the cache, which the ranks of each draw need."""


def difference_intervals(
    pairs: Sequence[tuple[Measure, Measure]], seed: int = 0, resamples: int = RESAMPLES
) -> list[tuple[float, float] | None]:
    """Percentile intervals of the second measure less the first.

    Samples are drawn with replacement, as many as there are, and both measures are taken of the
    draw. The interval holds the middle `LEVEL` of the differences. Draws of which a measure has no
    value (a correlation, where all figures are equal) are left out.

    Parameters
    ----------
    pairs
        All of the same samples; at least one.
    seed
        Of the draws.
    resamples
        How many.

    Returns
    -------
    list of (float, float) or None
        Ends of each pair's interval, in points; None if no draw has a value.
    """
    samples = pairs[0][0].samples
    generator = np.random.default_rng(seed)
    differences = np.empty((len(pairs), resamples))
    step = max(1, _ELEMENTS // samples)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = generator.integers(samples, size=(rows, samples))
        drawn *= rows
        drawn += np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * samples).reshape(samples, rows)
        weights = counts.astype(np.float64)
        for place, (first, second) in enumerate(pairs):
            differences[place, start : start + rows] = second.values(weights) - first.values(
                weights
            )
    ends: list[tuple[float, float] | None] = []
    for row in differences:
        known = row[~np.isnan(row)]
        if len(known):
            low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            ends.append((float(low), float(high)))
        else:
            ends.append(None)
    return ends


@dataclass(frozen=True)
class MetricResult:
    """One metric, in points; None where it has no value.

    Attributes
    ----------
    name
        Of the metric.
    integer, floating
        Of the integer and the float model; None without the latter too.
    difference
        Integer less float.
    interval
        Of the difference: `bootstrap.difference_intervals`.
    """

    name: str
    integer: float | None
    floating: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None

    def within(self, max_drop: float) -> bool:
        """Whether it fell by no more points than that; one without a value did not."""
        # Rounded, so that a drop that is shown as 0.30 passes 0.3.
        return self.difference is not None and round(-self.difference, 6) <= max_drop

    def to_json(self) -> JsonDict:
        """Return the result as a JSON-serialisable dictionary."""
        ends = None if self.interval is None else list(self.interval)
        return {
            "name": self.name,
            "integer": self.integer,
            "float": self.floating,
            "difference": self.difference,
            "interval": ends,
        }


def evaluate_task(
    task: Task,
    samples: Samples,
    integers: Side,
    reference: Side | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> list[MetricResult]:
    """Measure one model, or two and the difference.

    Parameters
    ----------
    task
        Of `catalogue.TASKS`.
    samples
        What its `read` gave.
    integers
        The integer model.
    reference
        The float model.
    options
        As for `read`.
    progress
        Called with the texts done and the texts there are, of each model in turn.

    Raises
    ------
    DataError
        If the model and the samples do not belong together.
    """
    chosen = options or Options()
    sides = [replace(s, progress=progress or s.progress) for s in (integers, reference) if s]
    measures = [task.measure(samples, side, chosen) for side in sides]
    if reference is None:
        return [MetricResult(m.name, _known(m.value)) for m in measures[0]]
    pairs = list(zip(measures[1], measures[0], strict=True))
    results = []
    for (a, b), interval in zip(pairs, difference_intervals(pairs), strict=True):
        floating, integer = _known(a.value), _known(b.value)
        difference = None if floating is None or integer is None else integer - floating
        results.append(MetricResult(a.name, integer, floating, difference, interval))
    return results


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# How far an integer model falls below the float one on a task: what a search keeps within bounds.
#
# It is used by `ibert_tvm.quantization.search`.


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
    known: dict[tuple[Any, ...], Sequence[Floats]] = {}

    def run(tokens: TokenizedBatch) -> Sequence[Floats]:
        arrays = (tokens.input_ids, tokens.attention_mask, tokens.token_type_ids)
        key = (tokens.input_ids.shape, *(array.tobytes() for array in arrays))
        if key not in known:
            known[key] = side.run(tokens)
        return known[key]

    return replace(side, run=run)

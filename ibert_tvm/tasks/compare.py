"""A task's metrics of the integer model, and of the float model beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..common.strict_json import JsonDict
from .bootstrap import difference_intervals
from .catalogue import Options, Task
from .samples import Samples
from .sides import Progress, Side


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

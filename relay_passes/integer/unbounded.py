"""Evaluation in integers without bounds, compared with the intervals that are proven.

The bodies that are evaluated are those whose intervals were proven, so this finds what the
arithmetic of intervals gets wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .evaluate import as_program, lookup, run_operator
from .ranges import ValueRange

Arrays = Mapping[str, np.ndarray]


def check_unbounded(
    module: object,
    inputs: Arrays,
    parameters: Arrays,
    intervals: Mapping[str, ValueRange],
    kind: type = object,
) -> list[str]:
    """Compare every value and intermediate with its interval.

    Parameters
    ----------
    module : Program or IRModule
        A program, or a module of the integer dialect.
    inputs, parameters
        As `evaluate_all` takes them.
    intervals
        What is proven, by value.
    kind
        ``object`` for integers without bounds; ``numpy.int64`` is much faster, and right where all
        intervals fit it.

    Returns
    -------
    list of str
        What leaves its interval, a line each; empty if nothing does.
    """
    program = as_program(module)
    values = lookup({**program.inputs, **program.parameters}, {**parameters, **inputs})
    found = []
    for step in program.steps:
        operands = {name: values[value] for name, value in step.operands.items()}
        stages: dict[str, np.ndarray] = {}
        result = run_operator(step.operator, operands, kind, stages)
        proven = intervals[step.name]
        seen = {step.name: ((proven.low, proven.high), result)}
        seen |= {
            f"{step.name}, {name}": (proven.stages[name], array)
            for name, array in stages.items()
            if name in proven.stages
        }
        for place, ((low, high), array) in seen.items():
            if array.size and not low <= array.min() <= array.max() <= high:
                found.append(f"{place}: [{array.min()}, {array.max()}] leaves [{low}, {high}]")
        values[step.name] = result.astype(step.type.dtype)
    return found

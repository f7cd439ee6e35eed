"""Places where an integer model departs from its float original.

A *place* is one integer form of a canonical value: the accumulator of a layer, the 8-bit operand
that a product reads, the term of a sum. Two things happen there, which are told apart: numbers are
rounded to the form's integers and clipped to its range, and integer operators compute them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ibert_tvm.relay_passes.integer.types import dtype_bounds
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, sum_of_columns

from ..common.strict_json import JsonObject
from ..common.types import Array, Doubles, Floats, Longs

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.integer.program import Program, Step


@dataclass(frozen=True, eq=False)
class Place:
    """One integer form of a value.

    Attributes
    ----------
    value
        Canonical name.
    form
        "native", "matmul", "stream", "term" or "grid".
    step
        The integer operator that yields the form.
    segment
        What is computed for it from forms of values, in order; empty where the integers are those
        of another value at another scale.
    inputs
        Steps that the segment reads, forms of this or of other values.
    own
        Whether it is made from another form of the same value.
    scale
        float64, (1,) or one per channel.
    zero_point
        The integer that stands for 0, or what would stand for it in each channel: no integer where
        numbers are taken off the value.
    low, high
        Of the integers.
    columns
        The channel of each column, where channels are split.
    excess
        By how many steps integers are too large in the mean, (1,) or one per channel, where the
        reader's bias makes up for it: rounding is taken to add as much, and it is no part of what
        integers stand for.
    """

    value: str
    form: str
    step: Step
    segment: tuple[Step, ...]
    inputs: tuple[str, ...]
    own: bool
    scale: Doubles
    zero_point: int | Array
    low: int
    high: int
    columns: Longs | None
    excess: Doubles

    @property
    def name(self) -> str:
        """Name of the integer step."""
        return self.step.name

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others."""
        return self.value, self.name

    @cached_property
    def _split(self) -> ActivationQuant | None:
        if self.columns is None:
            return None
        counts = np.bincount(self.columns)
        if isinstance(self.zero_point, int):
            return ActivationQuant(1.0, self.low, self.high, self.zero_point, None, counts)
        whole = np.rint(self.zero_point)
        points, phase = whole.astype(np.int64), self.zero_point - whole
        return ActivationQuant(1.0, self.low, self.high, 0, None, counts, False, points, phase)

    @property
    def reach(self) -> tuple[Any, Any]:
        """Least and largest number of steps from 0, one or per channel."""
        if self._split is not None:
            return self._split.reach
        return self.low - self.zero_point, self.high - self.zero_point

    def steps(self, real: Array) -> Doubles:
        """Real values in steps, neither rounded nor clipped."""
        steps = np.asarray(real, np.float64)
        # Scales of the published i-GELU may be negative: its integers run the other way.
        return np.asarray(steps / self.scale)

    def integers(self, real: Array) -> Array:
        """Round and clip real values, to the integers of the form."""
        steps = self.steps(real) + self.excess
        if self._split is not None:
            return self._split.quantize(steps)
        rounded = np.floor(steps + self.zero_point + 0.5)
        return np.clip(rounded, self.low, self.high).astype(self.step.type.dtype)

    def real(self, integers: Array) -> Floats:
        """Real values of integers of the form."""
        steps = integers.astype(np.float64)
        if self.columns is not None:
            steps = sum_of_columns(steps, self.columns)
        return ((steps - self.zero_point - self.excess) * self.scale).astype(np.float32)

    def rounded(self, real: Array, step: float, reach: float) -> Floats:
        """Round and clip real values with a step and a range that are so many times as large."""
        zero = self.zero_point
        low, high = (bound * reach + zero for bound in self.reach)
        steps = np.floor((self.steps(real) + self.excess + zero) / step + 0.5) * step
        kept = np.clip(steps, low, high) - zero - self.excess
        return np.asarray(kept * self.scale, np.float32)


def places_of(program: Program, values: JsonObject) -> dict[str, dict[str, Place]]:
    """Find the places of a program.

    Parameters
    ----------
    program
        The integer program.
    values : mapping of str to list of dict
        ``values`` of its `quantization.json`: by canonical name its forms.

    Returns
    -------
    dict of str to dict of str to Place
        By canonical name and by step, in the order in which they are made.
    """
    steps = {step.name: step for step in program.steps}
    order = {name: number for number, name in enumerate(steps)}
    owners: dict[str, list[str]] = defaultdict(list)
    for value, forms in values.items():
        for form in forms:
            if value not in owners[form["value"]]:
                owners[form["value"]].append(value)
    result: dict[str, dict[str, Place]] = {}
    for value, forms in values.items():
        made = {form["value"]: form for form in forms}
        result[value] = {
            name: _place(value, made[name], steps, owners)
            for name in sorted(made, key=order.__getitem__)
        }
    return result


def _place(
    value: str, form: JsonObject, steps: Mapping[str, Step], owners: Mapping[str, list[str]]
) -> Place:
    name = form["value"]
    step = steps[name]
    segment: set[str] = set()
    inputs: dict[str, None] = {}
    if owners[name][0] != value:
        inputs[name] = None
    else:
        todo = [name]
        while todo:
            current = todo.pop()
            segment.add(current)
            for operand in steps[current].operands.values():
                if operand in owners:
                    inputs[operand] = None
                elif operand in steps and operand not in segment:
                    todo.append(operand)
    low, high = dtype_bounds(step.type.dtype)
    return Place(
        value=value,
        form=str(form["form"]),
        step=step,
        segment=tuple(s for s in steps.values() if s.name in segment),
        inputs=tuple(inputs),
        own=bool(segment) and any(value in owners[item] for item in inputs),
        scale=np.atleast_1d(np.asarray(form["scale"], np.float64)),
        zero_point=_zero_point(form["zero_point"]),
        low=int(getattr(step.operator, "low", low)),
        high=int(getattr(step.operator, "high", high)),
        columns=np.asarray(form["columns"]) if "columns" in form else None,
        excess=np.atleast_1d(np.asarray(form.get("excess", 0.0), np.float64)),
    )


def _zero_point(record: int | list[float]) -> int | Array:
    return np.array(record) if isinstance(record, list) else int(record)

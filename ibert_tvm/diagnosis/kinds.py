"""Names for the kinds of places, from what yields a value and what reads it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.canonical import FloatStep

    from .mixed import MixedModel
    from .places import Place

__all__ = ["Kinds"]

ROUNDING = "rounding"
REQUANTISATION = "requantisation"
OPERATOR = "operator"


class Kinds:
    """Kinds of a model's places.

    Parameters
    ----------
    model
        The model.
    """

    def __init__(self, model: MixedModel) -> None:
        self._model = model
        self._readers: dict[tuple[str, str], list[tuple[FloatStep, str]]] = defaultdict(list)
        self._steps = {step.operator.name: step for step in model.steps}
        for place in model.places:
            if place.own:
                continue
            step = self._steps[place.value]
            for label, variable in step.operands.items():
                value = model.values.get(variable)
                read = model.operand_place(place, value) if value else None
                if read is not None:
                    self._readers[read.value, read.name].append((step, label))

    def rounding(self, place: Place) -> tuple[str, str]:
        """Kind of the rounding at a place: what, where."""
        return ROUNDING, self._chain(place)

    def computing(self, place: Place) -> tuple[str, str]:
        """Kind of the integer operators at a place: what, where."""
        if place.own:
            return REQUANTISATION, self._chain(place)
        step = self._steps[place.value]
        sections = [operand.section for operand in type(step.operator).OPERANDS if operand.section]
        if not sections:
            return OPERATOR, _operator(step)
        readers = [
            reader
            for (value, _), found in self._readers.items()
            if value == place.value
            for reader in found
        ]
        sources = [self._model.values.get(variable, "") for variable in step.operands.values()]
        names = [
            _operator(self._steps[name])
            for name in sources
            if self._model.operand_place(place, name) is not None
        ]
        return sections[0], " → ".join([*names, _operator(step), self._named(readers)])

    def feeds_matrix(self, place: Place) -> bool:
        """Whether a layer with a bias of its own reads the form, which can take a constant."""
        return any(_has_matrix(step) for step, _ in self._readers[place.value, place.name])

    def _chain(self, place: Place) -> str:
        """``layer_norm → linear → gelu``: what yields the value, reads it, and follows a matrix."""
        operator = _operator(self._steps[place.value])
        readers = self._readers[place.value, place.name]
        # Some forms are read by nothing but other forms of the value.
        return f"{operator} → {self._named(readers)}" if readers else f"{operator}, {place.form}"

    def _named(self, readers: list[tuple[FloatStep, str]]) -> str:
        parts: dict[str, None] = {}
        for step, label in readers:
            following = ""
            if _has_matrix(step):
                names = {_operator(after): None for after in self._after(step)}
                following = "".join(f" → {name}" for name in names)
            mark = f" {label}" if not following and _unlike(step) else ""
            parts[f"{_operator(step)}{mark}{following}"] = None
        return ", ".join(parts) or "output"

    def _after(self, step: FloatStep) -> list[FloatStep]:
        return [
            other
            for other in self._model.steps
            if any(step.result.same_as(variable) for variable in other.operands.values())
        ]


def _operator(step: FloatStep) -> str:
    return step.operator.OP.partition(".")[2]


def _has_matrix(step: FloatStep) -> bool:
    return any(operand.section == "weights" for operand in type(step.operator).OPERANDS)


def _unlike(step: FloatStep) -> bool:
    """Whether operands mean different things, so that it matters which one a value is."""
    return type(step.operator).BY_SEQUENCE and len(step.operands) > 1

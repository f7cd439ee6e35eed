"""A model of which some is computed in integers and the rest in float.

The float model runs operator by operator. At each place its numbers may be rounded as the integer
model rounds them, and what the integer operators compute from them otherwise than the float one may
be added: the difference of the two on the same rounded operands. With nothing switched on this is
the float model, with everything the integer model, bit for bit, because the differences then cancel
what they are differences to. So whatever lies in between explains all of the error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ibert_tvm.relay_passes.canonical import FloatModel, FloatStep
from ibert_tvm.relay_passes.integer.evaluate import check_array, lookup, run_operator

from ..common.strict_json import JsonObject
from ..common.types import Array, Doubles, Floats
from .places import Place, places_of

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.canonical import FloatStep

    from ..frontend import CanonicalModel
    from ..model.artefact import QuantizedModel
    from .places import Place

# Names for the kinds of places, from what yields a value and what reads it.

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


@dataclass(frozen=True, eq=False)
class Treatment:
    """What happens at a place.

    Attributes
    ----------
    rounded
        Whether numbers are rounded to the form, and clipped.
    computed
        Whether errors of the integer operators (and of their integer weights) are added.
    step, reach
        A step, and a range, that are so many times as large as the form's.
    offset
        Taken off, one number per channel.
    """

    rounded: bool
    computed: bool
    step: float = 1.0
    reach: float = 1.0
    offset: Doubles | None = None

    @property
    def of_the_form(self) -> bool:
        """Whether the result consists of integers of the form."""
        return self.rounded and self.step == self.reach == 1.0 and self.offset is None


FLOAT = Treatment(False, False)
INTEGER = Treatment(True, True)

Treat = Callable[[Place], Treatment]
Watch = Callable[[Place, Array, Array, Array], None]
"""Called with a place, what float arithmetic makes of its operands, that rounded, the result."""


@dataclass
class State:
    """All that one run computed of a batch.

    Attributes
    ----------
    values
        Inputs, weights and what has no integers, by variable.
    real
        By value and step of a place.
    integers
        By step, where numbers are integers of the form.
    """

    values: dict[Any, Array] = field(default_factory=dict)
    real: dict[tuple[str, str], Array] = field(default_factory=dict)
    integers: dict[str, Array] = field(default_factory=dict)


class MixedModel:
    """A quantised model and its float original, of which places are mixed.

    Parameters
    ----------
    model
        The integer model.
    reference
        The float model that it was made from.

    Attributes
    ----------
    places : list of Place
        In order.
    steps : list of FloatStep
        Operators of the float model.
    """

    def __init__(self, model: QuantizedModel, reference: CanonicalModel) -> None:
        self._float = FloatModel(reference.module, reference.parameters)
        self._program = model.program
        self._parameters = lookup(model.program.parameters, model.parameters)
        found = places_of(model.program, model.quantization["values"])
        self.steps: list[FloatStep] = self._float.steps
        self.values = {step.result: step.operator.name for step in self.steps}
        self._numbers = {step.operator.name: i for i, step in enumerate(self.steps)}
        self._places = {name: found[name] for name in self._numbers if name in found}
        self.places = [place for forms in self._places.values() for place in forms.values()]
        self._by_step = {place.name: place for place in reversed(self.places)}
        self._output = self._output_place(model.quantization["outputs"][0])

    def number(self, place: Place) -> int:
        """Number of the float operator whose value a place is a form of."""
        return self._numbers[place.value]

    def operand_place(self, place: Place, value: str) -> Place | None:
        """Form of a value that a place is computed from; None if it is from no form of it."""
        forms = self._places.get(value, {})
        read = [forms[name] for name in place.inputs if name in forms]
        # Constants may be made from a value otherwise than by reading it: any form stands for it.
        return next(iter(read or forms.values()), None)

    def run(
        self,
        inputs: Mapping[str, Array],
        treat: Treat,
        begin: State | None = None,
        first: int = 0,
        watch: Watch | None = None,
    ) -> tuple[Floats, State]:
        """Run one batch.

        Parameters
        ----------
        inputs
            Inputs of the model [batch, tokens].
        treat : callable
            Says what happens at a place.
        begin, first : State, int
            Of an earlier run: what operators before the number `first` computed, which this run
            does not compute again.
        watch : callable, optional
            See `Watch`.

        Returns
        -------
        output : numpy.ndarray
            The model's first output, real.
        state : State
        """
        names = self._float.input_names
        state = State(self._float.given({name: inputs[name] for name in names}))
        if begin is not None:
            state = State(dict(begin.values), dict(begin.real), dict(begin.integers))
        given = {
            name: check_array(name, type_, inputs[name])
            for name, type_ in self._program.inputs.items()
        }
        for step in self.steps[first:]:
            name = step.operator.name
            if name not in self._places:
                operands = {k: state.values[v] for k, v in step.operands.items()}
                state.values[step.result] = step.operator.evaluate(**operands)
                continue
            for place in self._places[name].values():
                self._make(place, step, state, given, treat(place), watch)
        return state.real[self._output.value, self._output.name], state

    def _make(
        self,
        place: Place,
        step: FloatStep,
        state: State,
        given: Mapping[str, Array],
        treatment: Treatment,
        watch: Watch | None,
    ) -> None:
        key, name = (place.value, place.name), place.name
        known = all(item in state.integers for item in place.inputs)
        exact = treatment.of_the_form and treatment.computed and known
        if exact and watch is None:
            state.integers[name] = self._integers(place, state, given)
            state.real[key] = place.real(state.integers[name])
            return
        source = self._source(place, step, state, False)
        real = source
        if treatment.rounded:
            real = place.rounded(source, treatment.step, treatment.reach)
        integers = None
        if exact:
            integers = self._integers(place, state, given)
        elif treatment.of_the_form and not treatment.computed:
            integers = place.integers(source)
        elif treatment.computed:
            reference = source if known else self._source(place, step, state, True)
            made = place.real(self._integers(place, state, given))
            real = real + (made - place.real(place.integers(reference)))
            if treatment.offset is not None:
                real = real - treatment.offset.astype(np.float32)
            if treatment.of_the_form:
                integers = place.integers(real)
        if integers is None:
            state.integers.pop(name, None)
            state.real[key] = np.asarray(real, np.float32)
        else:
            state.integers[name] = integers
            state.real[key] = place.real(integers)
        if watch is not None:
            watch(place, source, real, state.real[key])

    def _source(self, place: Place, step: FloatStep, state: State, rounded: bool) -> Floats:
        """What float arithmetic makes of the operands, or of these rounded to their forms."""

        def read(found: Place) -> Floats:
            if rounded:
                return found.real(self._rounded(found, state))
            return state.real[found.value, found.name]

        if place.own:
            found = next(p for p in map(self._places[place.value].get, place.inputs) if p)
            return read(found)
        operands = {}
        for label, variable in step.operands.items():
            operand = self.operand_place(place, self.values.get(variable, ""))
            operands[label] = read(operand) if operand is not None else state.values[variable]
        with np.errstate(all="ignore"):
            return step.operator.evaluate(**operands)

    def _rounded(self, place: Place, state: State) -> Array:
        """Integers of a form, those that were computed or rounded ones."""
        if place.name in state.integers:
            return state.integers[place.name]
        return place.integers(state.real[place.value, place.name])

    def _integers(self, place: Place, state: State, given: Mapping[str, Array]) -> Array:
        """What the integer program makes of the operands, rounded to their forms."""
        values = {**given, **self._parameters}
        for name in place.inputs:
            source = self._by_step[name]
            values[name] = self._rounded(source, state).astype(source.step.type.dtype)
        for step in place.segment:
            operands = {label: values[operand] for label, operand in step.operands.items()}
            result = run_operator(step.operator, operands)
            values[step.name] = result.astype(step.type.dtype)
        return values[place.name]

    def _output_place(self, output: JsonObject) -> Place:
        steps = {step.name: step for step in self._program.steps}
        todo = [str(output["value"])]
        # Behind the value's form, padding may have been set to 0.
        while True:
            name = todo.pop(0)
            if name in self._places.get(output["name"], {}):
                return self._places[output["name"]][name]
            todo += [item for item in steps[name].operands.values() if item in steps]

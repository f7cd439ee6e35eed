"""Run a canonical module in float with NumPy, with any of its values as extra outputs.

Calibration, the check of an import against its source, and reports read named values here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..dialect.arrays import AnyArray, Floats
from ..dialect.calls import operands_of, record_of
from .check import canonical_calls, main_function, num_inputs, output_fields, value_name
from .errors import CanonicalError
from .operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class FloatResult:
    """What one run returns.

    Parameters
    ----------
    outputs : tuple of numpy.ndarray
        The module's outputs in order, float32.
    values : mapping of str to numpy.ndarray
        The captured values by canonical name, float32.
    """

    outputs: tuple[Floats, ...]
    values: Mapping[str, Floats]


@dataclass(frozen=True)
class FloatStep:
    """One operator call.

    Attributes
    ----------
    operator
        What is computed.
    operands
        By name: inputs, weights, or results of earlier steps.
    result
    """

    operator: CanonicalOperator
    operands: dict[str, relax.Var]
    result: relax.Var


class FloatModel:
    """A canonical module with its weights, ready to run in float.

    Parameters
    ----------
    module
        A canonical module.
    parameters
        Its weights by parameter name, float32.
    capture_names : iterable of str or "all"
        Canonical names of the values that `run` returns besides the outputs; ``"all"`` for every
        float value.

    Attributes
    ----------
    steps : list of FloatStep
        All operators in order, for whoever runs them in another way.

    Raises
    ------
    CanonicalError
        If a weight is missing or has another shape, or a name does not exist.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        parameters: Mapping[str, AnyArray],
        capture_names: Iterable[str] | str = (),
    ) -> None:
        function = main_function(module)
        count = num_inputs(function)
        self._inputs = function.params[:count]
        self._weights = {v: _weight(v, parameters) for v in function.params[count:]}
        self.steps = [
            FloatStep(record_of(call), operands_of(call), variable)  # type: ignore[arg-type]
            for variable, call in canonical_calls(module)
        ]
        self._outputs = output_fields(function)
        # TVM compares variables in Python; numbers are what a run looks up.
        variables = [*function.params, *(step.result for step in self.steps)]
        self._numbers = {variable: number for number, variable in enumerate(variables)}
        self._plan = [
            (
                step.operator.evaluate,
                {name: self._numbers[v] for name, v in step.operands.items()},
                self._numbers[step.result],
            )
            for step in self.steps
        ]
        self.input_names = tuple(str(v.name) for v in self._inputs)
        known = {
            value_name(call): variable
            for variable, call in canonical_calls(module)
            if str(variable.ty.dtype) in FLOAT
        }
        if isinstance(capture_names, str):
            capture_names = known if capture_names == "all" else (capture_names,)
        self._captured = {name: _known(name, known) for name in capture_names}

    @property
    def capture_names(self) -> tuple[str, ...]:
        """Names of the values that `run` returns besides the outputs."""
        return tuple(self._captured)

    def run(self, inputs: Mapping[str, AnyArray]) -> FloatResult:
        """Run one batch.

        Parameters
        ----------
        inputs
            Every input of the module by name: [batch, seq_len] of any integer type, images
            [batch, channels, height, width] or features [batch, channels, frames] of any float
            type.

        Returns
        -------
        FloatResult
            Outputs and captured values; they may share memory, so copy before writing.

        Raises
        ------
        CanonicalError
            If an input is missing, unknown, or of another shape than the first one.
        """
        values, number = self._numbered(inputs), self._numbers
        returned = [number[v] for v in (*self._outputs, *self._captured.values())]
        for _ in self._computed(values, returned):
            pass
        outputs = tuple(values[number[variable]] for variable in self._outputs)
        return FloatResult(outputs, {name: values[number[v]] for name, v in self._captured.items()})

    def captured(self, inputs: Mapping[str, AnyArray]) -> Iterator[tuple[str, Floats]]:
        """Run one batch, and yield the captured values by name as they are computed.

        One is kept no longer than others are computed from it, so that a run needs little memory
        however many there are. Parameters and errors as of `run`.
        """
        names = {self._numbers[variable]: name for name, variable in self._captured.items()}
        values = self._numbered(inputs)
        for number in self._computed(values, ()):
            if number in names:
                yield names[number], values[number]

    def _computed(self, values: dict[int, AnyArray], returned: Sequence[int]) -> Iterator[int]:
        """Add each step's result to the values; drop what is neither read again nor returned."""
        uses = Counter(value for _, operands, _ in self._plan for value in operands.values())
        uses.update(returned)
        for evaluate, read, result in self._plan:
            operands = {name: values[value] for name, value in read.items()}
            # A value that is no number is for the caller to find, by its name.
            with np.errstate(all="ignore"):
                values[result] = evaluate(**operands)
            del operands
            yield result
            uses.subtract(read.values())
            for value in {*read.values(), result}:
                if not uses[value]:
                    del values[value]

    def _numbered(self, inputs: Mapping[str, AnyArray]) -> dict[int, AnyArray]:
        return {self._numbers[variable]: array for variable, array in self.given(inputs).items()}

    def given(self, inputs: Mapping[str, AnyArray]) -> dict[relax.Var, AnyArray]:
        """Return what the first of `steps` may read, the weights and checked inputs; see `run`."""
        return {**self._weights, **self._checked(inputs)}

    def _checked(self, inputs: Mapping[str, AnyArray]) -> dict[relax.Var, AnyArray]:
        if set(inputs) != set(self.input_names):
            raise CanonicalError(
                f"got inputs {', '.join(sorted(inputs)) or 'none'}",
                where="run",
                why=f"the model takes {', '.join(self.input_names)}",
                todo="pass exactly these",
            )
        arrays: dict[relax.Var, AnyArray] = {}
        first: tuple[int, ...] | None = None
        for variable in self._inputs:
            name = str(variable.name)
            array = np.asarray(inputs[name], dtype=str(variable.ty.dtype))
            arrays[variable] = array
            if array.dtype == np.float32:
                _check_images(name, array, variable)
                continue
            first = first or array.shape
            if array.ndim != 2 or array.shape != first or 0 in array.shape:
                raise CanonicalError(
                    f"input {name} has shape {array.shape}",
                    where="run",
                    why="all inputs are [batch, seq_len] of one shape, not empty",
                    todo="pad the batch to one length",
                )
        return arrays


def _known(name: str, known: Mapping[str, relax.Var]) -> relax.Var:
    if name not in known:
        raise CanonicalError(
            f"there is no float value named {name!r}",
            where="capture_names",
            why=f"the module has: {', '.join(known)}",
            todo="use one of these names, or 'all'",
        )
    return known[name]


def _weight(variable: relax.Var, parameters: Mapping[str, AnyArray]) -> Floats:
    name = str(variable.name)
    shape = tuple(int(extent) for extent in variable.ty.shape.values)
    if name not in parameters or np.shape(parameters[name]) != shape:
        has = f"has shape {np.shape(parameters[name])}" if name in parameters else "is missing"
        raise CanonicalError(
            f"weight {name} {has}",
            where=f"parameter {name!r}",
            why=f"the function expects {shape}",
            todo="pass the parameters that came with the module",
        )
    return np.ascontiguousarray(parameters[name], dtype=np.float32)


def _check_images(name: str, array: AnyArray, variable: relax.Var) -> None:
    size = [int(extent) for extent in variable.ty.shape.values[1:]]
    if list(array.shape[1:]) != size or array.shape[0] == 0:
        what, axes = "images", "channels, height, width"
        todo = "resize the images as the model's image processor does"
        if len(size) == 2:
            what, axes = "features", "channels, frames"
            todo = "prepare the features as the model's feature extractor does"
        raise CanonicalError(
            f"input {name} has shape {array.shape}",
            where="run",
            why=f"the model takes {what} of {' x '.join(map(str, size))} ({axes})",
            todo=todo,
        )

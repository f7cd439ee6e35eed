"""What the rules share while one module is lowered: table, weights, builder, results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from .. import integer
from ..dialect.arrays import AnyArray, Integers, Reals
from ..errors import CompilerError, LoweringError
from ..quantization_table import ActivationQuant, QuantizationTable, WeightQuant
from ..spec.fixed_point import DyadicVector
from ..spec.nearest_scale import at_nearest_scale
from ..spec.presets import Preset, preset
from ..spec.short_requantise import ShortFactors
from .forms import Form, storage, stored

_Result = TypeVar("_Result")


class LoweringContext:
    """State of one lowering.

    Parameters
    ----------
    table
        Scales and integer weights.
    weights
        Float parameters of the canonical module by name.
    values
        Canonical names of the values, which no parameter may have: range analysis and emission
        know both by name.

    Attributes
    ----------
    builder : relax.BlockBuilder
        Where integer operators are emitted.
    preset : Preset
        Forms of the non-linear functions.
    parameters : dict of str to numpy.ndarray
        Integer arrays of the lowered function, in the order of its parameters.
    variables : list of relax.Var
        The parameters themselves.
    values : dict
        Per canonical name the forms it has: operator name, kind of form, scale, zero point.
    nearest : dict
        Per operator whose operand has a scale that its approximation does not serve: ``scale``,
        ``served`` and ``error`` of `at_nearest_scale`.
    """

    def __init__(
        self,
        table: QuantizationTable,
        weights: Mapping[str, AnyArray],
        values: Collection[str] = (),
    ) -> None:
        self._reserved = frozenset(values)
        self.table = table
        self.weights = weights
        self.builder = relax.BlockBuilder()
        self.preset: Preset = preset(table.preset)
        self.parameters: dict[str, Integers] = {}
        self.variables: list[relax.Var] = []
        self.values: dict[str, list[dict[str, Any]]] = {}
        self.nearest: dict[str, dict[str, float]] = {}

    def emit(self, call: relax.Call) -> relax.Var:
        """Append an operator; return the variable it is bound to."""
        return self.builder.emit(call, str(call.attrs["name"]).replace(".", "_"))

    def parameter(self, name: str, array: Integers) -> relax.Var:
        """Give the lowered function a parameter.

        Parameters
        ----------
        name
            Its name. One that exists with equal content is shared, with other content the new one
            gets a numbered name (a matrix used by two layers whose inputs are smoothed
            differently), as does one that is called like a value.
        array : numpy.ndarray
            An integer array.
        """
        base, count = name, 1
        while name in self.parameters or name in self._reserved:
            if name in self.parameters and np.array_equal(self.parameters[name], array):
                return self.variables[list(self.parameters).index(name)]
            count += 1
            name = f"{base}.{count}"
        variable = relax.Var(name, relax.TensorType(list(array.shape), str(array.dtype)))
        self.parameters[name] = np.ascontiguousarray(array)
        self.variables.append(variable)
        return variable

    def weight(self, argument: relax.Expr, where: str) -> AnyArray:
        """Return the float weight that `argument` names.

        Raises
        ------
        LoweringError
            If the operand is no weight, or its array is missing.
        """
        if not isinstance(argument, relax.Var) or argument.name not in self.weights:
            label = getattr(argument, "name", type(argument).__name__)
            raise LoweringError(
                f"operand {label} has no array",
                where=where,
                why="the constants of this operator are derived from the weight's numbers",
                todo="pass the parameters that came with the canonical module",
            )
        return np.asarray(self.weights[argument.name])

    def table_entry(self, section: str, name: str) -> ActivationQuant:
        """Look an activation up in the table.

        Raises
        ------
        LoweringError
            If the table has no such entry.
        """
        return self._entry(section, name)

    def table_weight(self, section: str, name: str) -> WeightQuant:
        """Look a weight up in the table, by the name of the operator that reads it.

        Raises
        ------
        LoweringError
            If the table has no such entry.
        """
        return self._entry(section, name)

    def _entry(self, section: str, name: str) -> Any:
        entries = getattr(self.table, section)
        if name not in entries:
            raise LoweringError(
                f"the quantisation table has no {section} entry for {name}",
                where=name,
                why="without a scale the value has no integers",
                todo="calibrate the model again; ibert_tvm.relay_passes.lower.requirements lists "
                "what is needed",
            )
        return entries[name]

    def gather_channels(self, var: relax.Var, channels: Integers, name: str) -> relax.Var:
        """Emit ``integer.gather_channels``."""
        numbers = self.parameter(f"{name}.channels", channels.astype(np.int32))
        return self.emit(integer.gather_channels(var, numbers, name=name))

    def requantise(
        self, var: relax.Var, factor: DyadicVector, quant: ActivationQuant, name: str
    ) -> Form:
        """Emit ``integer.requantise`` to the range, type and scale of `quant`."""
        out = self.emit(
            integer.requantise(
                var,
                self.parameter(f"{name}.multiplier", factor.multipliers),
                self._offset(quant, 0, name),
                name=name,
                shift=factor.shift,
                **stored(quant),
            )
        )
        magnitude = max(-quant.low, quant.high)
        return _form(out, name, quant, magnitude, 0)

    def requantise_short(
        self,
        var: relax.Var,
        factors: ShortFactors,
        quant: ActivationQuant,
        name: str,
        exact: bool = False,
    ) -> Form:
        """Emit ``integer.requantise_short`` to the range, type and scale of `quant`.

        Where a product is the result as it is, and the range of `quant` is one that it just
        reaches, it is not clamped once more; matrix products keep `exact` to their range.
        """
        low, high = quant.low, quant.high
        whole = factors.shift == 0 and storage(quant) == "int16" and quant.zero_point == 0
        if whole and not exact:
            low, high = -(2**15 - 1), 2**15 - 1
        out = self.emit(
            integer.requantise_short(
                var,
                self.parameter(f"{name}.multiplier", factors.multipliers),
                self.parameter(f"{name}.pre_shift", _shared(factors.pre_shifts)),
                self._offset(quant, factors.shift, name),
                name=name,
                shift=factors.shift,
                low=low,
                high=high,
                dtype=storage(quant),
                zero_point=quant.zero_point,
            )
        )
        form = _form(out, name, quant, max(-low, high), factors.shift)
        return replace(form, excess=factors.excess)

    def _offset(self, quant: ActivationQuant, shift: int, name: str) -> relax.Var | None:
        """Zero points of entries of the last axis; None where all have that of the operator."""
        whole, phase = quant.offset, _phase_bits(quant, shift)
        if phase is not None and quant.splits is not None:
            phase = phase[quant.columns]
        if whole is None and phase is None:
            return None
        parts = [whole << shift] if whole is not None else []
        parts += [phase] if phase is not None else []
        return self.parameter(f"{name}.offset", np.sum(parts, axis=0).astype(np.int16))

    def guard(self, where: str, derive: Callable[[], _Result]) -> _Result:
        """Run a derivation of constants; an error that names no place gets `where`."""
        try:
            return derive()
        except CompilerError as error:
            raise error.at(where) from None

    def at_served_scale(
        self,
        where: str,
        derive: Callable[[float], _Result],
        scale: float,
        error: Callable[[float, float], float],
    ) -> tuple[_Result, float]:
        """Derive constants at a scale; if calibration chose it, at the nearest that they serve.

        Parameters
        ----------
        where
            The operator.
        derive
            Constants at a scale.
        scale
            Of its operand.
        error
            What a result errs by, from the scale and the one that it is taken for.

        Raises
        ------
        RangeError
            If a given scale is not served.
        """
        if not self.table.calibrated:
            return derive(scale), scale
        constants, served = at_nearest_scale(derive, scale)
        if served != scale:
            worst = {"scale": float(scale), "served": float(served), "error": error(scale, served)}
            known = self.nearest.setdefault(where, worst)
            if worst["error"] > known["error"]:
                self.nearest[where] = worst
        return constants, served

    def record(self, name: str, kind: str, form: Form) -> None:
        """Remember a form of a canonical value, for reports and comparisons per layer."""
        scale = form.scale.tolist()
        points: Reals | Integers | None = form.zero_points
        if form.offset is not None:
            zero = form.zero_point if points is None else points
            points = zero - form.offset / form.scale
        record = {
            "value": form.value,
            "form": kind,
            "scale": scale[0] if form.per_tensor else scale,
            "zero_point": form.zero_point if points is None else points.tolist(),
        }
        if form.columns is not None:
            record["columns"] = form.columns.tolist()
        self.values.setdefault(name, []).append(record)

    def record_excess(self, name: str, form: Form, excess: Reals) -> None:
        """Remember of a recorded form that its reader makes up for the `Form.excess`, [C]."""
        if excess.any():
            same = bool((excess == excess[0]).all())
            for record in self.values.get(name, ()):
                if record["value"] == form.value:
                    record["excess"] = float(excess[0]) if same else excess.tolist()


def _phase_bits(quant: ActivationQuant, shift: int) -> NDArray[np.int64] | None:
    """Phases in units of 2^-shift, as far as these resolve them; None where there are none."""
    if quant.phase is None or shift == 0:
        return None
    return np.rint(np.ldexp(quant.phase, shift)).astype(np.int64)


def _form(out: relax.Var, name: str, quant: ActivationQuant, magnitude: int, shift: int) -> Form:
    columns = None if quant.splits is None else quant.columns
    points = None if quant.channel_zero_point is None else np.asarray(quant.zero_points)
    scale, zero = quant.channel_scale, quant.zero_point
    phase, offset = _phase_bits(quant, shift), None
    if phase is not None:
        offset = -np.ldexp(phase, -shift) * scale
    return Form(
        out, name, scale, zero, magnitude, columns=columns, zero_points=points, offset=offset
    )


def _shared(array: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return one entry where all are equal."""
    return array[:1] if (array == array[0]).all() else array


def symbolic_inputs(
    function: relax.Function, count: int, images: Mapping[str, ActivationQuant]
) -> list[relax.Var]:
    """Fresh input variables with the names, shapes and types of the canonical ones.

    Parameters
    ----------
    function
        ``main`` of a canonical module.
    count
        Number of its inputs.
    images
        The 8-bit form of each input that holds pixels; those are integers from here on.
    """
    result = []
    for p in function.params[:count]:
        dtype = storage(images[p.name]) if p.name in images else str(p.ty.dtype)
        result.append(relax.Var(p.name, relax.TensorType(list(p.ty.shape.values), dtype)))
    return result

"""Gradients of an integer program: those of the float operators, at the integers' real values.

Beside the integers the canonical float module is evaluated operator by operator, by the very
`evaluate` of its records on torch tensors. Every operand is what the integers of the form that is
really read stand for; the gradient of each rounding is 1 where nothing was clamped and 0 where
something was (the straight-through estimator), and that of a learned scale is the one of LSQ
(Esser et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ibert_tvm.relay_passes.canonical.evaluate import FloatStep
from ibert_tvm.relay_passes.lower import Requirement
from ibert_tvm.relay_passes.lower.rule import FACTORS, MATMUL, NATIVE, TERM
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, QuantizationTable

from ..common.strict_json import JsonDict, JsonObject
from .integers import TensorArray, tensor_of


class _Replace(torch.autograd.Function):
    """A float value whose numbers are those of integers; see the module."""

    @staticmethod
    def forward(
        context: Any,
        value: torch.Tensor,
        real: torch.Tensor,
        bounds: tuple[torch.Tensor, torch.Tensor] | None,
        scale: torch.Tensor | None,
        levels: int,
    ) -> torch.Tensor:
        context.bounded, context.levels = bounds is not None, levels
        inside = None
        if bounds is not None:
            inside = (value >= bounds[0]) & (value <= bounds[1])
        learned = None if scale is None else (value, real, scale)
        context.save_for_backward(inside, *(learned or ()))
        return real

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        inside, *learned = context.saved_tensors
        passed = gradient if inside is None else gradient * inside
        of_scale = None
        if learned:
            value, real, scale = learned
            steps = real if inside is None else real - torch.where(inside, value, 0.0)
            weight = (value.numel() * context.levels) ** -0.5
            of_scale = (gradient * steps).sum_to_size(scale.shape) / scale * weight
        return passed, None, None, of_scale, None


def replaced(
    value: torch.Tensor,
    real: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor] | None = None,
    scale: torch.Tensor | None = None,
    levels: int = 1,
) -> torch.Tensor:
    """Return `real` with the gradient of `value` where it lies within bounds.

    Parameters
    ----------
    value
        Of the float operator, float32.
    real
        What the integers stand for, same shape.
    bounds
        Least and largest real number that is not clamped; they broadcast.
    scale
        A scale that is learned, or several that broadcast; `real` grows in proportion to it.
    levels
        Integers to a side, by which LSQ weighs the gradient of a scale.
    """
    return _Replace.apply(value, real, bounds, scale, levels)


@dataclass(frozen=True, eq=False)
class Reading:
    """A form of a value: integers of one step, and what they stand for.

    Attributes
    ----------
    step
        Name of the integer operator.
    scale, zero_point
        float32, one or one per channel.
    columns
        The channel of each column, where channels are split.
    bounds
        Least and largest real number that is not clamped.
    levels
        Integers to a side.
    """

    step: str
    scale: torch.Tensor
    zero_point: torch.Tensor
    columns: torch.Tensor | None = None
    bounds: tuple[torch.Tensor, torch.Tensor] | None = None
    levels: int = 1

    def real(self, integers: torch.Tensor) -> torch.Tensor:
        """What integers stand for, float32 [..., C]."""
        steps = integers
        if self.columns is not None:
            extent = int(self.zero_point.numel())
            shape = (*integers.shape[:-1], extent)
            steps = torch.zeros(shape, dtype=integers.dtype, device=integers.device)
            steps = steps.index_add(-1, self.columns, integers)
        return (steps - self.zero_point).float() * self.scale


def readings(
    forms: Mapping[str, list[JsonDict]],
    needed: Mapping[str, Requirement],
    table: QuantizationTable,
    device: torch.device,
) -> dict[tuple[str, str], Reading]:
    """Say which form of a value each of its readers takes.

    Parameters
    ----------
    forms
        ``values`` of what lowering says of scales, by canonical name.
    needed
        Of the model.
    table
        Of the model.
    device
        Of the tensors.

    Returns
    -------
    dict of (str, str) to Reading
        By canonical name of the value and of its reader; values that have no form are left out.
    """
    made: dict[str, Reading] = {}
    result = {}
    for name, value in needed.items():
        own = {form["form"]: form for form in forms.get(name, ()) if form["form"] != "term"}
        terms = {form["value"]: form for form in forms.get(name, ()) if form["form"] == "term"}
        for reader in value.readers:
            quant = table.matmul.get(name)
            if reader.form in (MATMUL, *FACTORS) and quant is not None and not quant.by_row:
                form = own.get("matmul") or own.get("native")
                quant = quant if form is not None else None
            elif reader.form == TERM:
                form = terms.get(f"{name}.for.{reader.name}") or own.get("native")
                quant = table.stream.get(reader.name)
            else:
                wide = "rows" if reader.form == MATMUL else "stream"
                first = own.get("native") if reader.form == NATIVE else own.get(wide)
                form = first or own.get("native") or own.get("stream")
                quant = table.stream.get(name)
            form = form or next(iter(forms.get(name, ())), None)
            if form is None:
                continue
            if form["value"] not in made:
                made[form["value"]] = _reading(form, quant, device)
            result[name, reader.name] = made[form["value"]]
    return result


def _reading(form: JsonObject, quant: ActivationQuant | None, device: torch.device) -> Reading:
    def tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.array(array), dtype=dtype, device=device)

    scale = np.atleast_1d(np.asarray(form["scale"], np.float64))
    zero = np.atleast_1d(np.asarray(form["zero_point"], np.float32))
    columns = None
    if "columns" in form and quant is not None and quant.splits is not None:
        scale = quant.channel_scale
        columns = tensor(form["columns"], torch.int64)
        zero = np.broadcast_to(zero, quant.splits.shape)
    bounds, levels = None, 1
    if quant is not None and np.array_equal(quant.channel_scale, scale):
        least, most = (np.asarray(bound) * quant.channel_scale for bound in quant.reach)
        half = quant.channel_scale / 2  # what rounds to the last integer is not clamped
        bounds = tensor(least - half, torch.float32), tensor(most + half, torch.float32)
        levels = int(quant.high)
    steps, offset = (tensor(array, torch.float32) for array in (scale, zero))
    return Reading(form["value"], steps, offset, columns, bounds, levels)


@dataclass(frozen=True)
class FloatTwin:
    """The float module beside the integers; its outputs and operands are theirs.

    Parameters
    ----------
    steps
        Operators of the canonical module that an output depends on.
    forms
        From `readings`.
    scales
        Learned scales by canonical name; empty where they are frozen.
    """

    steps: list[FloatStep]
    forms: Mapping[tuple[str, str], Reading]
    scales: Mapping[str, torch.Tensor]

    def run(
        self, given: Mapping[Any, torch.Tensor], integers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Evaluate the module.

        Parameters
        ----------
        given : mapping of relax.Var to torch.Tensor
            Inputs and weights.
        integers
            Of the integer program, by step.

        Returns
        -------
        dict of str to torch.Tensor
            Values of the float operators by canonical name, before they are rounded.
        """
        values: dict[Any, torch.Tensor] = dict(given)
        names: dict[Any, str] = {}
        seen: dict[tuple[Any, str], torch.Tensor] = {}
        for step in self.steps:
            operands = {}
            for label, variable in step.operands.items():
                tensor = values[variable]
                form = self.forms.get((names.get(variable, ""), step.operator.name))
                if form is not None:
                    key = variable, form.step
                    if key not in seen:
                        seen[key] = self._rounded(tensor, form, names[variable], integers)
                    tensor = seen[key]
                operands[label] = TensorArray(tensor)
            result = step.operator.evaluate(**operands)
            values[step.result] = tensor_of(result, next(iter(operands.values())).tensor.device)
            names[step.result] = step.operator.name
        return {name: values[variable] for variable, name in names.items()}

    def _rounded(
        self, value: torch.Tensor, form: Reading, name: str, integers: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        real = form.real(integers[form.step])
        scale = self.scales.get(name) if form.step.endswith(".matmul") else None
        return replaced(value, real, form.bounds, scale, form.levels)

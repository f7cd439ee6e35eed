"""From a quantised ONNX model to a canonical model with the scales that it came with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from ibert_tvm.relay_passes.canonical import canonical_calls, main_function, matrix_of, value_name

from ...common.types import Array
from ..given import GivenMatrix, GivenQuantization, GivenReader, GivenScale
from ..onnx.importing import import_onnx_model
from ..onnx.reading import without_functions
from .matrices import MatrixIndex
from .place import Placer
from .qoperator import to_qdq
from .strip import StrippedModel, strip

if TYPE_CHECKING:
    import onnx

    from ..model import CanonicalModel

# Keys on an asymmetric grid, made symmetric without changing what the model computes.
#
# Attention takes symmetric int8. A constant added to every element of every key adds, for each
# query, the same number to all of its scores, and softmax does not see that. So keys on a grid of
# 0..255 around a zero point can be counted from 128: their layer's bias takes the difference, and
# every integer of the grid is kept.

_KEYS = 1
"""Position of the keys among the operands of attention."""


def centre_keys(
    module: tvm.IRModule,
    parameters: Mapping[str, NDArray[np.float32]],
    readers: Mapping[str, tuple[GivenReader, ...]],
) -> tuple[dict[str, Array], dict[str, tuple[GivenReader, ...]], tuple[str, ...]]:
    """Shift keys so that their grid is symmetric.

    Parameters
    ----------
    module
        A canonical module.
    parameters
        Its weights.
    readers
        How values are rounded for their readers.

    Returns
    -------
    parameters
        With the biases of some key layers changed.
    readers
        With the zero points of their grids in the middle.
    names : tuple of str
        Canonical names of the keys that were shifted.
    """
    arrays, result, names = dict(parameters), dict(readers), []
    calls = list(canonical_calls(module))
    uses: dict[relax.Var, list[tuple[str, int]]] = {}
    for _, call in calls:
        for index, argument in enumerate(call.args):
            uses.setdefault(argument, []).append((str(call.op.name), index))
    returned = set(relax.analysis.free_vars(main_function(module).body.body))
    for variable, call in calls:
        name = value_name(call)
        only_key = uses.get(variable) == [("canonical.attention", _KEYS)]
        if call.op.name != "canonical.linear" or not only_key or variable in returned:
            continue
        scale = _movable(readers.get(name, ()))
        bias = call.args[2]
        if scale is None or len(uses[bias]) > 1:
            continue
        middle = (scale.low + scale.high + 1) // 2
        shift = float(scale.scale) * (int(scale.zero_point) - middle)
        arrays[bias.name] = (parameters[bias.name] + np.float64(shift)).astype(np.float32)
        moved = replace(scale, zero_point=np.asarray(middle, np.int64))
        result[name] = tuple(
            replace(reader, scale=moved if reader.scale is not None else None)
            for reader in readers[name]
        )
        names.append(name)
    return arrays, result, tuple(names)


def _movable(readers: tuple[GivenReader, ...]) -> GivenScale | None:
    """The one grid of all readers, if it is asymmetric and fits int8 around its middle."""
    scales = [reader.scale for reader in readers if reader.scale is not None]
    if not scales or not all(scale.same_as(scales[0]) for scale in scales):
        return None
    scale = scales[0]
    if not scale.per_tensor or scale.bits > 8:
        return None
    zero = int(scale.zero_point)
    fits = scale.low - zero >= -128 and scale.high - zero <= 127
    return None if fits else scale


def import_quantised_onnx_model(model: onnx.ModelProto, **options: Any) -> CanonicalModel:
    """Import a quantised ONNX model: QDQ, or static QOperator.

    Parameters
    ----------
    model
        The model, all its data in memory; not changed.
    **options
        As for `ibert_tvm.frontend.onnx.importing.import_onnx_model`. What is verified is the model
        with dequantised weights and unrounded activations.

    Returns
    -------
    CanonicalModel
        Its weights are the dequantised ones; `given` holds integers, scales and zero points.

    Raises
    ------
    UnsupportedModelError
        If a part of the model has no canonical form, it is quantised dynamically, or its scales
        cannot be told.
    ModelSourceError
        If a scale that is needed is 0, infinite or not a number.
    """
    model = without_functions(model, str(options["source"]))
    stripped = strip(to_qdq(model))
    return _with_scales(import_onnx_model(stripped.model, **options), stripped)


def _with_scales(model: CanonicalModel, stripped: StrippedModel) -> CanonicalModel:
    calls = list(canonical_calls(model.module))
    channels = {
        value_name(call): int(variable.ty.shape.values[-1])
        for variable, call in calls
        if str(variable.ty.dtype) == "float32"
    }
    placement = Placer(stripped, model.report.tensors, channels).run()
    index = MatrixIndex(stripped.constants.values())
    matrices: dict[str, GivenMatrix] = {}
    for _, call in calls:
        _, parameter = matrix_of(call)
        if not parameter:
            continue
        hint = model.report.weights.get(parameter, parameter)
        found = index.find(model.parameters[parameter], hint)
        if found is not None:
            matrices[value_name(call)] = found
    parameters, readers, keys = centre_keys(model.module, model.parameters, placement.readers)
    given = GivenQuantization(readers, matrices, placement.tensors, placement.uses, keys)
    return replace(model, parameters=parameters, given=given)

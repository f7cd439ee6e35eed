"""From a quantised ONNX model to a canonical model with the scales that it came with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ibert_tvm.relay_passes.canonical import canonical_calls, matrix_of, value_name

from ..given import GivenMatrix, GivenQuantization
from ..onnx.importing import import_onnx_model
from ..onnx.reading import without_functions
from .keys import centre_keys
from .matrices import MatrixIndex
from .place import Placer
from .qoperator import to_qdq
from .strip import StrippedModel, strip

if TYPE_CHECKING:
    import onnx

    from ..model import CanonicalModel


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

"""Computing nodes whose operands are all known, with onnx's own definition of the operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from ...common.errors import error_lines
from ...common.types import Array
from .values import Known, Untranslatable

LARGEST_RESULT = 2**28
"""Elements of one tensor that is computed at import."""
# Operands whose elements may be sizes of a result.
_FEW = 1024
# A result whose size depends on elements, as places of those that are not 0, is bounded by theirs.
_MOST_AXES = 8


def fold(
    node: onnx.NodeProto,
    operands: Sequence[Known | None],
    opsets: Mapping[str, int],
    room: int = LARGEST_RESULT,
) -> list[Known]:
    """Compute a node.

    Parameters
    ----------
    node
        The node, without subgraphs.
    operands
        Its operands; None for one that is left out.
    opsets
        Versions of the operator sets by domain.
    room
        Elements that its results may have.

    Returns
    -------
    list of Known
        Its results. They keep the name of the only weight among the operands.

    Raises
    ------
    Untranslatable
        If onnx cannot compute it, or its results are too large.
    """
    arrays = {
        name: item.array for name, item in zip(node.input, operands, strict=True) if item and name
    }
    names = list(dict.fromkeys(item.name for item in operands if item and item.name))
    name = names[0] if len(names) == 1 else ""
    size = _size_of_results(node, arrays, opsets)
    if size > min(room, LARGEST_RESULT):
        raise Untranslatable(
            f"its results have {size} elements, and what is computed at import has at most "
            f"{LARGEST_RESULT}, all together not much more than the weights"
        )
    try:
        if node.op_type == "Transpose":  # a view, where onnx copies: weights are large
            results = [_transpose(node, next(iter(arrays.values())))]
        elif node.op_type == "GatherElements":  # onnx chooses among at most 32 entries
            results = [_gather_elements(node, *(arrays[item] for item in node.input))]
        else:
            results = _evaluate(node, arrays, opsets)
    except Exception as error:  # the evaluator raises many classes, NotImplementedError among them
        line = error_lines(error)[0]
        raise Untranslatable(f"onnx cannot compute it from constants: {line}") from error
    return [Known(np.asarray(array), name) for array in results]


def _size_of_results(
    node: onnx.NodeProto, arrays: Mapping[str, Array], opsets: Mapping[str, int]
) -> int:
    """Elements of the results, from shapes and those operands alone that may say sizes."""
    most = _MOST_AXES * sum(array.size for array in arrays.values())
    try:
        model = _alone(node, arrays, opsets, sizes=True)
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except (shape_inference.InferenceError, ValueError, TypeError):
        return most  # the evaluator says what is wrong
    total = 0
    for result in inferred.graph.output:
        dims = result.type.tensor_type.shape.dim
        known = result.type.tensor_type.HasField("shape") and all(
            dim.HasField("dim_value") for dim in dims
        )
        total += math.prod(dim.dim_value for dim in dims) if known else most
    return total


def _alone(
    node: onnx.NodeProto, arrays: Mapping[str, Array], opsets: Mapping[str, int], sizes: bool
) -> onnx.ModelProto:
    """A model of one node; its inputs with their shapes, and small ones as constants, for sizes."""
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    graph = helper.make_graph(
        [node],
        "fold",
        [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype) if sizes else TensorProto.UNDEFINED,
                array.shape if sizes else None,
            )
            for name, array in arrays.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output],
        [
            numpy_helper.from_array(array, name)
            for name, array in arrays.items()
            if sizes and array.size <= _FEW
        ],
    )
    return helper.make_model(graph, opset_imports=imports)


def _transpose(node: onnx.NodeProto, array: Array) -> Array:
    axes = next((list(item.ints) for item in node.attribute if item.name == "perm"), None)
    return np.transpose(array, axes)


def _gather_elements(node: onnx.NodeProto, array: Array, index: Array) -> Array:
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0) % array.ndim
    # Along the other axes the index may be shorter than the array.
    cut = tuple(
        slice(None) if i == axis else slice(0, extent) for i, extent in enumerate(index.shape)
    )
    return np.take_along_axis(array[cut], index, axis)


def _evaluate(
    node: onnx.NodeProto, arrays: Mapping[str, Array], opsets: Mapping[str, int]
) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    model = _alone(node, arrays, opsets, sizes=False)
    return ReferenceEvaluator(model).run(None, dict(arrays))

"""Computing nodes whose operands are all known, with onnx's own definition of the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.errors import error_lines
from ...common.types import Array
from .values import Known, Untranslatable

if TYPE_CHECKING:
    import onnx


def fold(
    node: onnx.NodeProto, operands: Sequence[Known | None], opsets: Mapping[str, int]
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

    Returns
    -------
    list of Known
        Its results. They keep the name of the only weight among the operands.

    Raises
    ------
    Untranslatable
        If onnx cannot compute it.
    """
    arrays = {
        name: item.array for name, item in zip(node.input, operands, strict=True) if item and name
    }
    names = list(dict.fromkeys(item.name for item in operands if item and item.name))
    name = names[0] if len(names) == 1 else ""
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
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    graph = helper.make_graph(
        [node],
        "fold",
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in arrays],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=imports)
    results: list[Any] = ReferenceEvaluator(model).run(None, dict(arrays))
    return results

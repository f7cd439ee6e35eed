"""Writing QDQ nodes into a float ONNX graph by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


class QdqWriter:
    """Inserts QuantizeLinear and DequantizeLinear in a copy of a model.

    Parameters
    ----------
    model : onnx.ModelProto
        A float model; not changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph

    def activation(
        self,
        tensor: str,
        scale: Any,
        zero_point: int = 0,
        dtype: str = "int8",
        *,
        readers: tuple[str, ...] | None = None,
        axis: int | None = None,
    ) -> str:
        """Round `tensor` for all that read it, or for the readers of these operators.

        Returns
        -------
        str
            The rounded tensor.
        """
        rounded = f"{tensor}.{dtype}.rounded"
        while any(rounded in node.output for node in self.graph.node):
            rounded += "'"
        for node in self.graph.node:
            if readers is None or node.op_type in readers:
                for index, name in enumerate(node.input):
                    if name == tensor:
                        node.input[index] = rounded
        names = self._scales(rounded, scale, zero_point, dtype)
        axes = {} if axis is None else {"axis": axis}
        nodes = [
            helper.make_node(
                "QuantizeLinear", [tensor, *names], [f"{rounded}.q"], f"{rounded}/Q", **axes
            ),
            helper.make_node(
                "DequantizeLinear", [f"{rounded}.q", *names], [rounded], f"{rounded}/DQ", **axes
            ),
        ]
        self._insert_after(tensor, nodes)
        return rounded

    def weight(
        self,
        name: str,
        integers: NDArray[Any],
        scale: Any,
        zero_point: Any = 0,
        dtype: str = "int8",
        axis: int = 1,
    ) -> None:
        """Replace the initialiser `name` by integers and a DequantizeLinear."""
        kept = [tensor for tensor in self.graph.initializer if tensor.name != name]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)
        stored = helper.make_tensor(
            f"{name}_quantized",
            getattr(TensorProto, dtype.upper()),
            integers.shape,
            [int(value) for value in np.asarray(integers).ravel()],
        )
        self.graph.initializer.append(stored)
        names = self._scales(name, scale, zero_point, dtype)
        node = helper.make_node(
            "DequantizeLinear", [f"{name}_quantized", *names], [name], f"{name}/DQ", axis=axis
        )
        self.graph.node.insert(0, node)

    def _scales(self, name: str, scale: Any, zero_point: Any, dtype: str) -> list[str]:
        array = np.asarray(scale, np.float32)
        zeros = np.broadcast_to(np.asarray(zero_point), array.shape).ravel()
        self.graph.initializer.append(numpy_helper.from_array(array, f"{name}.scale"))
        kind = getattr(TensorProto, dtype.upper())
        zero = helper.make_tensor(f"{name}.zero", kind, array.shape, [int(z) for z in zeros])
        self.graph.initializer.append(zero)
        return [f"{name}.scale", f"{name}.zero"]

    def _insert_after(self, tensor: str, nodes: list[onnx.NodeProto]) -> None:
        at = next(i for i, node in enumerate(self.graph.node) if tensor in node.output)
        for offset, node in enumerate(nodes):
            self.graph.node.insert(at + 1 + offset, node)

    def finish(self) -> onnx.ModelProto:
        """Return the model, checked."""
        onnx.checker.check_model(self.model, full_check=True)
        return self.model

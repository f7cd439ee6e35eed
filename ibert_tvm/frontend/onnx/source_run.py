"""Running the ONNX model itself, with ONNX Runtime, to compare the import with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.frontend.errors import ModelSourceError
from ibert_tvm.frontend.onnx.reading import require_onnx
from ibert_tvm.frontend.onnx.signature import GraphInput

if TYPE_CHECKING:
    import onnx

__all__ = ["source_runner"]

_LARGEST = 2**31 - 2**20
"""Protobuf cannot serialise more than 2 GB."""


def source_runner(
    model: onnx.ModelProto,
    inputs: Sequence[GraphInput],
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    where: str,
) -> Callable[[Mapping[str, NDArray[np.int64]]], tuple[NDArray[np.float32], ...]]:
    """Return a function that runs a model.

    Parameters
    ----------
    model : onnx.ModelProto
        The model. Its outputs are exchanged while it is handed to ONNX Runtime, and put back.
    inputs : sequence of GraphInput
        Its inputs.
    outputs : sequence of str
        Tensors to return.
    nodes : sequence of onnx.NodeProto
        Nodes to add to the graph.
    where : str
        The file, for messages.

    Returns
    -------
    callable
        Takes int64 arrays by canonical input name.

    Raises
    ------
    MissingExtraError
        If onnxruntime is not installed.
    ModelSourceError
        If ONNX Runtime does not load the model.
    """
    require_onnx("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = _session(model, outputs, nodes, options)
    except Exception as error:  # ONNX Runtime has a class per status, without a common base
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelSourceError(
            "ONNX Runtime cannot load the model",
            where=where,
            why=lines[0] if lines else type(error).__name__,
            todo="export it again; verify=False imports it without comparing it with itself",
        ) from error
    taken = {item.name for item in session.get_inputs()}

    def run(arrays: Mapping[str, NDArray[np.int64]]) -> tuple[NDArray[np.float32], ...]:
        feed = {
            item.name: arrays[item.canonical].astype(item.dtype)
            for item in inputs
            if item.name in taken
        }
        return tuple(session.run(list(outputs), feed))

    return run


def _session(
    model: onnx.ModelProto,
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    options: Any,
) -> Any:
    import onnx
    import onnxruntime

    graph = model.graph
    before, count = list(graph.output), len(graph.node)
    known = {item.name: item for item in before}
    try:
        graph.node.extend(nodes)
        del graph.output[:]
        graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
        if model.ByteSize() < _LARGEST:
            data = model.SerializeToString()
            return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
        with tempfile.TemporaryDirectory() as folder:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            file = Path(folder) / "model.onnx"
            onnx.save_model(copy, file, save_as_external_data=True, location="data")
            return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    finally:
        del graph.node[count:]
        del graph.output[:]
        graph.output.extend(before)

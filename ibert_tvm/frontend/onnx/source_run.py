"""Running the ONNX model itself, to compare the import with it.

ONNX Runtime does it. It lags behind onnx in operator sets: a model in a set that it does not know
yet is run by onnx's own evaluator, which defines the operators but knows none of ONNX Runtime's.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import error_lines
from ..errors import ModelSourceError
from .signature import GraphInput

if TYPE_CHECKING:
    import onnx

_LARGEST = 2**31 - 2**20
"""Protobuf cannot serialise more than 2 GB."""
_UNKNOWN_SET = "ValidateOpsetForDomain"
"""ONNX Runtime has no error of its own for an operator set that it does not know."""

_logger = logging.getLogger(__name__)


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
    model
        The model. Its outputs are exchanged while it is handed to ONNX Runtime, and put back.
    inputs
        Its inputs.
    outputs
        Tensors to return.
    nodes
        Nodes to add to the graph.
    where
        The file, for messages.

    Returns
    -------
    callable
        Takes int64 arrays by canonical input name. It raises ModelSourceError if ONNX Runtime does
        not run the model.

    Raises
    ------
    ModelSourceError
        If ONNX Runtime does not load the model.
    """
    onnxruntime = _quiet_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with _outputs_changed(model, outputs, nodes):
        try:
            runner = _session(model, options)
            taken = {item.name for item in runner.get_inputs()}
        except Exception as error:  # ONNX Runtime has a class per status, without a common base
            if _UNKNOWN_SET not in str(error) or any(node.domain for node in model.graph.node):
                raise ModelSourceError(
                    "ONNX Runtime cannot load the model",
                    where=where,
                    why=error_lines(error)[0],
                    todo="export it again; verify=False imports it without comparing it with "
                    "itself",
                ) from error
            from onnx.reference import ReferenceEvaluator

            _logger.info("ONNX Runtime does not know the operator set: onnx evaluates the model")
            runner = ReferenceEvaluator(model)
            taken = set(runner.input_names)

    def run(arrays: Mapping[str, NDArray[np.int64]]) -> tuple[NDArray[np.float32], ...]:
        feed = {
            item.name: arrays[item.canonical].astype(item.dtype)
            for item in inputs
            if item.name in taken
        }
        try:
            return tuple(runner.run(list(outputs), feed))
        except Exception as error:  # as above
            raise ModelSourceError(
                "ONNX Runtime cannot run the model",
                where=where,
                why=error_lines(error)[0],
                todo="export it again; verify=False imports it without comparing it with itself",
            ) from error

    return run


@contextmanager
def _outputs_changed(
    model: onnx.ModelProto, outputs: Sequence[str], nodes: Sequence[onnx.NodeProto]
) -> Iterator[None]:
    """Give a model these outputs, and nodes that compute them, for the length of a block."""
    import onnx

    graph = model.graph
    before, count = list(graph.output), len(graph.node)
    known = {item.name: item for item in before}
    try:
        graph.node.extend(nodes)
        del graph.output[:]
        graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
        yield
    finally:
        del graph.node[count:]
        del graph.output[:]
        graph.output.extend(before)


def _quiet_onnxruntime() -> Any:
    """ONNX Runtime without telemetry.

    When it is imported it stores an id of the device in the user's cache folder, and later looks up
    a host of its maker, unless this variable says no by then.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _session(model: onnx.ModelProto, options: Any) -> Any:
    import onnx

    onnxruntime = _quiet_onnxruntime()
    if model.ByteSize() < _LARGEST:
        data = model.SerializeToString()
        return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        file = Path(folder) / "model.onnx"
        onnx.save_model(copy, file, save_as_external_data=True, location="data")
        return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])

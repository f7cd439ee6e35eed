"""The integer program as an ONNX file, for viewers of graphs such as Netron.

Its operators are of this project's own domain, so viewers show it and no runtime runs it. What is
proven of a value are attributes of the node that makes it; a matrix of weights is an attribute that
says its type, not its numbers, so that the file is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import UsageError
from ..common.extras import require
from ..common.files import marked, write_file
from ..common.strict_json import JsonObject
from ..common.version import __version__

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.integer.types import TensorType

    from ..model.artefact import QuantizedModel

GRAPH = marked("a graph that `ibert report` wrote", b"\x12\x09ibert_tvm")  # producer_name
DOMAIN, DOMAIN_VERSION = "ibert_tvm.integer", 1
_IR_VERSION, _OPSET = 10, 21
_PROVEN = ("low", "high", "bits", "of_bits", "headroom", "width", "word", "spare")
_LOW, _HIGH = -(2**63), 2**63 - 1


def write_onnx(model: QuantizedModel, graph: JsonObject, path: Path) -> Path:
    """Write the graph of a quantised model.

    Parameters
    ----------
    model
        The model.
    graph : dict
        Its `program_graph`.
    path : pathlib.Path
        Where to, with the suffix ``.onnx``, by which viewers know the format.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    UsageError
        If the suffix is another one.
    MissingExtraError
        If onnx is not installed.
    """
    check_suffix(path)
    require("onnx", to="ibert report --graph")
    import onnx
    from onnx import helper

    program = model.program
    nodes = [_node(step) for step in graph["steps"]]
    types = {step.name: step.type for step in program.steps}
    made = helper.make_graph(
        nodes,
        "integer_program",
        [_value(name, type_) for name, type_ in program.inputs.items()],
        [_value(name, types.pop(name)) for name in program.outputs],
        value_info=[_value(name, type_) for name, type_ in types.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    result = helper.make_model(
        made,
        opset_imports=opsets,
        ir_version=_IR_VERSION,
        producer_name="ibert_tvm",
        producer_version=__version__,
        doc_string="An integer program of ibert_tvm, for viewing: ranges, widths and headroom "
        "(in bits) of every value are attributes of the node that makes it.",
    )
    info = model.info
    helper.set_model_props(
        result,
        {
            "architecture": info.architecture,
            "source": info.source,
            "source_sha256": info.source_sha256,
            "preset": model.preset,
            "longest_sequence": str(graph["longest_sequence"]),
        },
    )
    onnx.checker.check_model(result)
    with write_file(path, GRAPH) as temporary:
        temporary.write_bytes(result.SerializeToString())
    return path


def check_suffix(path: Path) -> None:
    """Refuse a file that viewers would take for another format, with a `UsageError`."""
    if path.suffix.lower() != ".onnx":
        raise UsageError(
            f"bad value for --graph: {str(path)!r}",
            why="viewers know the format by the suffix, and the file is ONNX",
            todo="give a name that ends in .onnx",
        )


def _node(step: JsonObject) -> Any:
    from onnx import helper

    attributes = {f"parameter_{o['name']}": o["type"] for o in _parameters(step)}
    attributes |= {name: _plain(value) for name, value in step["attributes"].items()}
    attributes |= {f"proven_{name}": _plain(step[name]) for name in _PROVEN}
    attributes |= {
        f"stage_{stage['name']}": f"{stage['low']} to {stage['high']}" for stage in step["stages"]
    }
    reads = [o["value"] for o in step["operands"] if o["from"] != "parameter"]
    return helper.make_node(
        step["operator"].rpartition(".")[2],
        reads,
        [step["name"]],
        name=step["name"],
        domain=DOMAIN,
        **attributes,
    )


def _parameters(step: JsonObject) -> list[Mapping[str, str]]:
    return [operand for operand in step["operands"] if operand["from"] == "parameter"]


def _plain(value: Any) -> Any:
    """An integer as an attribute, or as text where it has more than 64 bits."""
    return value if isinstance(value, str) or _LOW <= value <= _HIGH else str(value)


def _value(name: str, type_: TensorType) -> Any:
    from onnx import TensorProto, helper

    shape = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
    return helper.make_tensor_value_info(name, getattr(TensorProto, type_.dtype.upper()), shape)

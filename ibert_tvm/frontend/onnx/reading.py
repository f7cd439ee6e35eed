"""Reading ONNX files: the protobuf, data kept in other files, and what is refused at the door."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, inliner, numpy_helper

from ...common.errors import error_lines
from ...common.strict_json import shown
from ..errors import ModelSourceError, UnsupportedModelError

if TYPE_CHECKING:
    from google.protobuf.message import Message

OLDEST_OPSET = 11
"""Older ones slice and clip by attributes, as no current exporter writes them."""

MOST_NODES = 2**18
"""Of a model whose functions are written out."""

_TODO = "export or copy the file again"
# The checker's word for an operator that it does not know.
_UNKNOWN = "No Op registered for"
# Protobuf cannot serialise more than 2 GB, which the checker does.
_MOST_BYTES = 2**31 - 2**20


def read_model_files(file: Path) -> tuple[onnx.ModelProto, tuple[Path, ...]]:
    """Read an ONNX file with all its data, check it, and name the files that were read.

    Parameters
    ----------
    file : pathlib.Path
        The file. Data that it keeps in other files is looked for beside it.

    Returns
    -------
    model : onnx.ModelProto
        The model; every array in memory.
    files : tuple of Path
        The file, then those of its data in name order.

    Raises
    ------
    ModelSourceError
        If the file is missing, truncated or no ONNX model, or a file of its data is.
    UnsupportedModelError
        If its operator set is too old or unknown.
    """
    model = _read_graph(file)
    files = _with_data(model, file)
    try:
        onnx.load_external_data_for_model(model, str(file.parent))
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        raise ModelSourceError(
            f"the data of {file.name} cannot be read",
            where=str(file.parent),
            why=error_lines(error)[0],
            todo="copy the files of its weights beside it, under the names that the model gives",
        ) from error
    check_model(model, str(file))
    check_arrays(model.graph, str(file))
    return model, files


def data_files(file: Path) -> tuple[Path, ...]:
    """Name a file and those of its data in name order, which need not be there."""
    return _with_data(_read_graph(file), file)


def _read_graph(file: Path) -> onnx.ModelProto:
    """Read a file without data that it keeps elsewhere."""
    from google.protobuf.message import DecodeError

    if not file.is_file():
        raise ModelSourceError(
            f"there is no file {file}",
            where=str(file),
            why="the path does not exist" if not file.exists() else "it is not a file",
            todo="check the path",
        )
    try:
        model = onnx.load(file, load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise _unreadable(file, f"{error} ({file.stat().st_size} bytes)") from error
    if not model.opset_import or not model.graph.output:
        raise _unreadable(file, f"it holds no graph ({file.stat().st_size} bytes)")
    _check_text(model, str(file))
    return model


def check_model(model: onnx.ModelProto, where: str) -> None:
    """Refuse a model that is malformed or in an operator set that has no meaning here.

    Parameters
    ----------
    model
        The model.
    where
        The file, or what stands for it in messages.

    Raises
    ------
    ModelSourceError
        If onnx's checker finds it malformed.
    UnsupportedModelError
        If its operator set is older than `OLDEST_OPSET`, or newer than the installed onnx knows.
    """
    version = opsets(model).get("", 0)
    newest = onnx.defs.onnx_opset_version()
    if version < OLDEST_OPSET:
        raise UnsupportedModelError(
            f"the model uses operator set {version}",
            where=where,
            why=f"operator sets {OLDEST_OPSET} to {newest} are supported; older ones define slice, "
            "clip and softmax differently",
            todo=f"export it again with opset_version={OLDEST_OPSET} or newer, or convert it with "
            "onnx.version_converter",
        )
    if version > newest:
        raise UnsupportedModelError(
            f"the model uses operator set {version}",
            where=where,
            why=f"onnx {onnx.__version__} knows operator sets up to {newest}",
            todo="install a newer onnx, or export the model with an older operator set",
        )
    try:
        if model.ByteSize() < _MOST_BYTES:
            with _shaped(model.graph):
                onnx.checker.check_model(model)
            return
    except onnx.checker.ValidationError as error:
        if _UNKNOWN not in str(error):
            raise _malformed(error_lines(error)[0], where) from error
    # The checker stops at the first operator that it does not know, and ONNX Runtime writes some of
    # its own into the standard domain (LayerNormalization in old sets). Those that are unknown here
    # too are refused with the node in translation.
    context = type(onnx.checker.DEFAULT_CONTEXT)()
    context.ir_version, context.opset_imports = model.ir_version, opsets(model)
    _check_nodes(model.graph, context, where)


@contextlib.contextmanager
def _shaped(graph: onnx.GraphProto) -> Iterator[None]:
    """Give inputs and outputs without a shape one meanwhile, which the checker asks for.

    Their shapes are those of the probe in any case, and ONNX Runtime runs such models.
    """
    kinds = [item.type.tensor_type for item in (*graph.input, *graph.output)]
    bare = [kind for kind in kinds if kind.elem_type and not kind.HasField("shape")]
    for kind in bare:
        kind.shape.SetInParent()
    try:
        yield
    finally:
        for kind in bare:
            kind.ClearField("shape")


def _check_nodes(graph: onnx.GraphProto, context: Any, where: str) -> None:
    """Refuse nodes, of a graph and of those inside of it, that are not what their operators ask.

    Translation may then count on operands and attributes that every such node has.
    """
    for node in graph.node:
        inner = [item for item in node.attribute if item.type == onnx.AttributeProto.GRAPH]
        alone = node
        if inner:  # their nodes read values of the graph around them
            alone = onnx.NodeProto()
            alone.CopyFrom(node)
            for item in alone.attribute:
                if item.type == onnx.AttributeProto.GRAPH:
                    item.g.CopyFrom(onnx.GraphProto(name=item.name))
        try:
            if alone.ByteSize() < _MOST_BYTES:
                onnx.checker.check_node(alone, context)
        except onnx.checker.ValidationError as error:
            if _UNKNOWN not in str(error):
                raise _malformed(error_lines(error)[0], where) from error
        for item in inner:
            _check_nodes(item.g, context, where)


def without_functions(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return a model with the nodes of its functions in the place of their calls.

    Parameters
    ----------
    model
        The model.
    where
        The file, or what stands for it in messages.

    Raises
    ------
    ModelSourceError
        If that makes more than `MOST_NODES`, or a function calls itself.
    """
    if not model.functions:
        return model
    functions = {(item.domain, item.name): item for item in model.functions}
    counts: dict[tuple[str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto], calls: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in calls:
                raise _too_many(f"the function {shown(node.op_type)} calls itself", where)
            if key in functions and key not in counts:
                counts[key] = count(functions[key].node, (*calls, key))
            inner = (item.g.node for item in node.attribute if item.HasField("g"))
            total += counts.get(key, 1) + sum(count(body, calls) for body in inner)
            if total > MOST_NODES:
                raise _too_many(f"they have more than {MOST_NODES} nodes in all", where)
        return total

    count(model.graph.node, ())
    return inliner.inline_local_functions(model)


def _too_many(why: str, where: str) -> ModelSourceError:
    return ModelSourceError(
        "the functions of the model cannot be put in the place of their calls",
        where=where,
        why=why,
        todo="export the model without functions",
    )


def _malformed(why: str, where: str) -> ModelSourceError:
    return ModelSourceError("the model is malformed", where=where, why=why, todo=_TODO)


def check_arrays(message: Message, where: str) -> None:
    """Refuse arrays, of weights and in attributes, that have not the elements of their shape.

    Parameters
    ----------
    message
        A graph, or a part of one.
    where
        The file, or what stands for it in messages.

    Raises
    ------
    ModelSourceError
        With the name of the array.
    """
    for part in messages(message):
        if not isinstance(part, onnx.TensorProto):
            continue
        try:
            fits = min(part.dims, default=0) >= 0
            why = "" if fits else f"its shape is {list(part.dims)}"
            # A view of the file's bytes: nothing is copied.
            numpy_helper.to_array(part)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            why = error_lines(error)[0]
        if why:
            raise _malformed(f"the array {shown(part.name)} cannot be read: {why}", where)


def messages(message: Message) -> Iterator[Message]:
    """Yield a message and all that are inside of it."""
    yield message
    # Not by `ListFields`, which copies the bytes of weights.
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_MESSAGE:
            value = getattr(message, field.name)
            if not hasattr(value, "ListFields"):
                for part in value:
                    yield from messages(part)
            elif message.HasField(field.name):
                yield from messages(value)


def _check_text(model: onnx.ModelProto, where: str) -> None:
    """Refuse names that are no text: protobuf gives bytes for them, and onnx's checker fails."""
    for part in messages(model):
        for field, value in part.ListFields():
            texts = (value,) if isinstance(value, str | bytes) else value
            if field.type == field.TYPE_STRING and any(isinstance(text, bytes) for text in texts):
                raise _malformed(f"{field.name!r} of a {part.DESCRIPTOR.name} is not UTF-8", where)


def type_name(number: int) -> str:
    """Return the lower-case name of an element type, ``uint8`` for example; of any number."""
    known = number in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(number)).lower() if known else f"type {number}"


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Return the versions of the operator sets by domain; ``ai.onnx`` is the empty domain."""
    return {
        "" if item.domain == "ai.onnx" else item.domain: int(item.version)
        for item in model.opset_import
    }


def _with_data(model: onnx.ModelProto, file: Path) -> tuple[Path, ...]:
    """The file of a model that was read without data, and the files that hold those."""
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return file, *sorted(file.parent / name for name in names)


def _unreadable(file: Path, why: str) -> ModelSourceError:
    return ModelSourceError(
        f"{file.name} is no ONNX model that can be read", where=str(file), why=why, todo=_TODO
    )

"""Choosing what an ONNX model computes, and the nodes that this may add to its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from ...model.heads import HEADS, Head, OnnxOutput
from ..errors import ModelSourceError
from .naming import Naming

_SPLIT = ("Split", "Slice", "Gather")


_Ranks = Mapping[str, int | None]
"""Dimensions of a graph's outputs by name, None where the graph does not tell."""


@dataclass(frozen=True)
class Outputs:
    """What is imported of a graph.

    Parameters
    ----------
    heads
        What it is; several where only the dimensions tell, one of each rank.
    tensors
        Names of the tensors.
    names
        What a caller knows them by; empty to follow the head.
    nodes
        Nodes that compute them from the graph's own tensors.
    notes
        What is left to the caller.
    """

    heads: tuple[Head, ...]
    tensors: tuple[str, ...]
    names: tuple[str, ...] = ()
    nodes: tuple[onnx.NodeProto, ...] = ()
    notes: tuple[str, ...] = ()


def choose_outputs(
    graph: onnx.GraphProto,
    head: str | None,
    mask: str | None,
    opset: int,
    where: str,
    images: bool = False,
) -> Outputs:
    """Choose the outputs that a head asks for.

    Parameters
    ----------
    graph
        The graph.
    head
        The head; None for what the names of the graph's outputs say.
    mask
        The input that marks tokens, which mean pooling needs.
    opset
        Version of the operator set, for nodes that are added.
    where
        The file, for messages.
    images
        Whether it takes images or features, and not tokens: it has other heads.

    Returns
    -------
    Outputs
        What to import.

    Raises
    ------
    ModelSourceError
        If the graph does not compute the head.
    """
    ranks = {item.name: _rank(item) for item in graph.output}
    able = [h for h in HEADS.values() if (h.reals if images else h.tokens)]
    if head is None:
        found = _own(graph, able, ranks)
        if not found:
            return Outputs((HEADS["none"],), tuple(ranks), tuple(ranks))
    else:
        found = tuple(record for record in able if record.name == head)
    if not found:
        raise _missing(str(head), ranks, where)
    first = found[0]
    if first.onnx.normalised is not None:
        return _sentence(graph, first, ranks, mask, opset, where)
    tensor = next((name for name in first.onnx.names if name in ranks), None)
    rank = first.onnx.rank
    if tensor is None and first.onnx.only and rank is not None:
        tensor = _only(ranks, rank)
    if tensor and len(found) == 1 and None not in (rank, ranks[tensor]) and ranks[tensor] != rank:
        tensor = None
    if tensor is None:
        tensor = _joined(graph, first.onnx.columns, ranks)
    if tensor is None:
        raise _missing(first.name, ranks, where)
    return Outputs(found, (tensor,))


def _own(graph: onnx.GraphProto, able: Sequence[Head], names: _Ranks) -> tuple[Head, ...]:
    """The heads of the largest precedence that the names of the outputs speak of."""
    named = [head for head in able if _speak_of(head.onnx, names)]
    best = max((head.onnx.precedence for head in named), default=None)
    found = tuple(head for head in named if head.onnx.precedence == best)
    if len(found) > 1 and found[0].onnx.normalised is not None:
        normalised = _before_normalisation(graph, found[0].onnx.names[0]) is not None
        return tuple(head for head in found if head.onnx.normalised is normalised)
    return found


def _speak_of(output: OnnxOutput, names: _Ranks) -> bool:
    wanted = output.columns or output.names
    return (all if output.columns else any)(name in names for name in wanted)


def _rank(item: onnx.ValueInfoProto) -> int | None:
    kind = item.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def _only(ranks: _Ranks, rank: int) -> str | None:
    """Return the only output that can have `rank` dimensions and is not one of classes."""
    classes = {name for head in HEADS.values() if head.is_logits for name in head.onnx.names}
    fitting = [name for name in ranks if ranks[name] in (None, rank) and name not in classes]
    return fitting[0] if len(fitting) == 1 else None


def _missing(head: str, names: _Ranks, where: str) -> ModelSourceError:
    return ModelSourceError(
        f"the model does not compute the head {head}",
        where=where,
        why=f"its outputs are {', '.join(names)}",
        todo="leave the head out to import what the model computes, or export it with this head",
    )


def _sentence(
    graph: onnx.GraphProto, head: Head, ranks: _Ranks, mask: str | None, opset: int, where: str
) -> Outputs:
    (output,) = head.onnx.names
    if output in ranks:
        tensor = None if head.onnx.normalised else _before_normalisation(graph, output)
        if tensor is None:
            return Outputs((head,), (output,))
        whole = next(h.name for h in HEADS.values() if h.onnx.normalised)
        note = f"the source normalises its embeddings to length 1 afterwards; head={whole!r} has it"
        return Outputs((head,), (tensor,), notes=(note,))
    inner = HEADS["none"].onnx
    hidden = next((name for name in inner.names if name in ranks), None) or _only(ranks, 3)
    if head.onnx.normalised or hidden is None or mask is None:
        raise _missing(head.name, ranks, where)
    nodes = mean_pooling(hidden, mask, opset)
    return Outputs((head,), (nodes[-1].output[0],), nodes=nodes)


def mean_pooling(hidden: str, mask: str, opset: int) -> tuple[onnx.NodeProto, ...]:
    """Return nodes that average `hidden` over the tokens that `mask` marks."""

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
        name = f"ibert/{output}"
        return helper.make_node(op, inputs, [name], name=name, **attributes)

    places = {"last": -1, "tokens": 1}

    def along(op: str, x: str, axis: str, output: str, **attributes: object) -> onnx.NodeProto:
        if opset >= 13:  # axes became an operand
            return node(op, [x, f"ibert/{axis}"], output, **attributes)
        return node(op, [x], output, axes=[places[axis]], **attributes)

    constants = {
        name: helper.make_tensor(name, TensorProto.INT64, [1], [axis])
        for name, axis in places.items()
    }
    constants["floor"] = helper.make_tensor("floor", TensorProto.FLOAT, [], [1e-9])
    return (
        *(node("Constant", [], name, value=value) for name, value in constants.items()),
        node("Cast", [mask], "mask", to=TensorProto.FLOAT),
        along("Unsqueeze", "ibert/mask", "last", "column"),
        node("Mul", [hidden, "ibert/column"], "masked"),
        along("ReduceSum", "ibert/masked", "tokens", "sum", keepdims=0),
        along("ReduceSum", "ibert/column", "tokens", "count", keepdims=0),
        node("Max", ["ibert/count", "ibert/floor"], "divisor"),
        node("Div", ["ibert/sum", "ibert/divisor"], "sentence_embedding"),
    )


_FORWARD = ("Expand", "Clip", "Max", "Add", "Identity", "Cast", "Unsqueeze", "Sqrt")


def _before_normalisation(graph: onnx.GraphProto, output: str) -> str | None:
    """Return x if the output is x / |x|, however that is written; None if it is not."""
    naming = Naming(graph.node)
    node = naming.producer(output)
    if node is None:
        return None
    if node.op_type == "LpNormalization":
        return str(node.input[0])
    if node.op_type != "Div":
        return None
    numerator = str(node.input[0])
    walk = naming.producer(node.input[1])
    while walk is not None and walk.op_type in _FORWARD:
        walk = naming.producer(walk.input[0])
    if walk is None or walk.op_type not in ("ReduceL2", "ReduceSum", "ReduceSumSquare"):
        return None
    source = walk.input[0]
    if walk.op_type == "ReduceSum":  # of squares
        square = naming.producer(source)
        if square is None or square.op_type not in ("Pow", "Mul", "Abs"):
            return None
        while square is not None and square.op_type in ("Pow", "Mul", "Abs"):
            source = square.input[0]
            square = naming.producer(source)
    return numerator if source == numerator else None


def _joined(graph: onnx.GraphProto, columns: Sequence[str], names: _Ranks) -> str | None:
    """Return the tensor [batch, seq_len, n] of which outputs are the n columns, in order."""
    if not columns or any(name not in names for name in columns):
        return None
    naming = Naming(graph.node)
    sources = set()
    for name in columns:
        node = naming.producer(name)
        while node is not None and node.op_type in ("Squeeze", "Reshape"):
            node = naming.producer(node.input[0])
        if node is None or node.op_type not in _SPLIT:
            return None
        sources.add(str(node.input[0]))
    return sources.pop() if len(sources) == 1 else None

"""Choosing what an ONNX model computes, and the nodes that this may add to its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...model.model_info import HEADS
from ..errors import ModelSourceError
from .naming import Naming

if TYPE_CHECKING:
    import onnx

_HIDDEN = ("last_hidden_state", "token_embeddings")
_POOLED = ("pooler_output", "pooled_output")
_LOGITS = ("logits", "output_logits")
_SPAN = ("start_logits", "end_logits")
_OF_IMAGES = ("none", "pooled", "image_classification", "logits")
_RANKS = {
    "image_classification": 2,
    "sequence_classification": 2,
    "token_classification": 3,
    "logits": None,
}
"""Dimensions of the logits of a head; those of ``logits`` have to tell which it is."""


@dataclass(frozen=True)
class Outputs:
    """What is imported of a graph.

    Parameters
    ----------
    head : str
        One of `ibert_tvm.model.model_info.HEADS`; ``logits`` where only the dimensions tell.
    tensors : tuple of str
        Names of the tensors.
    names : tuple of str
        What a caller knows them by; empty to follow the head.
    nodes : tuple of onnx.NodeProto
        Nodes that compute them from the graph's own tensors.
    notes : tuple of str
        What is left to the caller.
    """

    head: str
    tensors: tuple[str, ...]
    names: tuple[str, ...] = ()
    nodes: tuple[onnx.NodeProto, ...] = ()
    notes: tuple[str, ...] = field(default=())


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
    graph : onnx.GraphProto
        The graph.
    head : str or None
        The head; None for what the names of the graph's outputs say.
    mask : str or None
        The input that marks tokens, which mean pooling needs.
    opset : int
        Version of the operator set, for nodes that are added.
    where : str
        The file, for messages.
    images : bool
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
    names = [item.name for item in graph.output]
    ranks = {item.name: _rank(item) for item in graph.output}
    if head is None:
        head = _default(names)
        if head == "sentence_embedding" and _before_normalisation(graph, head) is not None:
            head = "sentence_transformer"
        if head is None:
            return Outputs("none", tuple(names), tuple(names))
    if head not in (_OF_IMAGES if images else {*HEADS} - {"image_classification"} | {"logits"}):
        raise _missing(head, names, where)
    if head == "sentence_embedding":
        return _sentence(graph, names, ranks, mask, opset, where)
    if head == "sentence_transformer":
        if "sentence_embedding" not in names:
            raise _missing(head, names, where)
        return Outputs(head, ("sentence_embedding",))
    if head in _RANKS:
        tensor = _first(names, _LOGITS)
        expected = _RANKS[head]
        if tensor and expected and ranks[tensor] not in (None, expected):
            tensor = None
    elif head == "question_answering":
        tensor = _first(names, _LOGITS) or _span(graph, names)
    elif head == "pooled":
        tensor = _first(names, _POOLED) or _only(names, ranks, 2)
    else:
        head, tensor = "none", _first(names, _HIDDEN) or _only(names, ranks, 3)
    if tensor is None:
        raise _missing(head, names, where)
    return Outputs(head, (tensor,))


def _default(names: Sequence[str]) -> str | None:
    if _first(names, _LOGITS):
        return "logits"
    if all(name in names for name in _SPAN):
        return "question_answering"
    if "sentence_embedding" in names:
        return "sentence_embedding"
    if _first(names, _HIDDEN):
        return "none"
    return "pooled" if _first(names, _POOLED) else None


def _rank(item: onnx.ValueInfoProto) -> int | None:
    kind = item.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _only(names: Sequence[str], ranks: Mapping[str, int | None], rank: int) -> str | None:
    """Return the only output that can have `rank` dimensions."""
    fitting = [name for name in names if ranks[name] in (None, rank) and name not in _LOGITS]
    return fitting[0] if len(fitting) == 1 else None


def _missing(head: str, names: Sequence[str], where: str) -> ModelSourceError:
    return ModelSourceError(
        f"the model does not compute the head {head}",
        where=where,
        why=f"its outputs are {', '.join(names)}",
        todo="leave the head out to import what the model computes, or export it with this head",
    )


def _sentence(
    graph: onnx.GraphProto,
    names: Sequence[str],
    ranks: Mapping[str, int | None],
    mask: str | None,
    opset: int,
    where: str,
) -> Outputs:
    if "sentence_embedding" in names:
        tensor = _before_normalisation(graph, "sentence_embedding")
        if tensor is None:
            return Outputs("sentence_embedding", ("sentence_embedding",))
        note = (
            "the source normalises its embeddings to length 1 afterwards; "
            "head='sentence_transformer' has it"
        )
        return Outputs("sentence_embedding", (tensor,), notes=(note,))
    hidden = _first(names, _HIDDEN) or _only(names, ranks, 3)
    if hidden is None or mask is None:
        raise _missing("sentence_embedding", names, where)
    nodes = mean_pooling(hidden, mask, opset)
    return Outputs("sentence_embedding", (nodes[-1].output[0],), nodes=nodes)


def mean_pooling(hidden: str, mask: str, opset: int) -> tuple[onnx.NodeProto, ...]:
    """Return nodes that average `hidden` over the tokens that `mask` marks."""
    from onnx import TensorProto, helper

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
        name = f"ibert/{output}"
        return helper.make_node(op, inputs, [name], name=name, **attributes)

    last, tokens = helper.make_tensor("last", 7, [1], [-1]), helper.make_tensor("t", 7, [1], [1])
    floor = helper.make_tensor("floor", TensorProto.FLOAT, [], [1e-9])
    nodes = [
        node("Constant", [], "last", value=last),
        node("Constant", [], "tokens", value=tokens),
        node("Constant", [], "floor", value=floor),
        node("Cast", [mask], "mask", to=TensorProto.FLOAT),
    ]
    new = opset >= 13  # axes became an operand
    nodes += [
        node("Unsqueeze", ["ibert/mask", "ibert/last"], "column")
        if new
        else node("Unsqueeze", ["ibert/mask"], "column", axes=[-1]),
        node("Mul", [hidden, "ibert/column"], "masked"),
    ]
    for source, output in (("masked", "sum"), ("column", "count")):
        nodes.append(
            node("ReduceSum", [f"ibert/{source}", "ibert/tokens"], output, keepdims=0)
            if new
            else node("ReduceSum", [f"ibert/{source}"], output, axes=[1], keepdims=0)
        )
    nodes += [
        node("Max", ["ibert/count", "ibert/floor"], "divisor"),
        node("Div", ["ibert/sum", "ibert/divisor"], "sentence_embedding"),
    ]
    return tuple(nodes)


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


def _span(graph: onnx.GraphProto, names: Sequence[str]) -> str | None:
    """Return the tensor [batch, seq_len, 2] of which start and end logits are the two columns."""
    if any(name not in names for name in _SPAN):
        return None
    naming = Naming(graph.node)
    sources = []
    for name in _SPAN:
        node = naming.producer(name)
        while node is not None and node.op_type in ("Squeeze", "Reshape"):
            node = naming.producer(node.input[0])
        if node is None or node.op_type not in ("Split", "Slice", "Gather"):
            return None
        sources.append(str(node.input[0]))
    return sources[0] if sources[0] == sources[1] else None

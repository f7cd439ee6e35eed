"""Which tensors of an ONNX graph are the inputs and outputs that this project knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ..errors import UnsupportedModelError

if TYPE_CHECKING:
    import onnx

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Canonical names of inputs, in their order."""

# What other exporters call them, for the advice in the message only: names prove nothing.
_ADVICE = {
    "ids": "input_ids",
    "input": "input_ids",
    "input_word_ids": "input_ids",
    "tokens": "input_ids",
    "input_mask": "attention_mask",
    "mask": "attention_mask",
    "input_type_ids": "token_type_ids",
    "segment_ids": "token_type_ids",
    "token_types": "token_type_ids",
}


@dataclass(frozen=True)
class GraphInput:
    """One input of a graph.

    Parameters
    ----------
    name : str
        Its name in the graph.
    canonical : str
        What it is: one of `INPUTS`.
    dtype : str
        Its element type, as NumPy names it.
    sizes : tuple
        Batch and length: an int where the graph fixes it, else None.
    """

    name: str
    canonical: str
    dtype: str
    sizes: tuple[int | None, int | None]


def graph_inputs(
    graph: onnx.GraphProto, names: Mapping[str, str] | None, where: str
) -> tuple[GraphInput, ...]:
    """Tell what the inputs of a graph are.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.
    names : mapping of str to str, optional
        Canonical names by the graph's own names, where they differ.
    where : str
        The file, for messages.

    Returns
    -------
    tuple of GraphInput
        In canonical order.

    Raises
    ------
    UnsupportedModelError
        If an input is none of those known, or no tensor [batch, seq_len] of integers.
    UsageError
        If `names` does not fit the graph.
    """
    from onnx import TensorProto, helper

    weights = {item.name for item in graph.initializer}
    free = [item for item in graph.input if item.name not in weights]
    renamed = _checked_names(names or {}, [item.name for item in free], where)
    found: dict[str, GraphInput] = {}
    for item in free:
        canonical = renamed.get(item.name, item.name)
        if canonical not in INPUTS:
            raise _unknown(item.name, where)
        kind = item.type.tensor_type
        shape = kind.shape.dim if kind.HasField("shape") else None
        dtype = TensorProto.DataType.Name(kind.elem_type)
        fits = dtype in ("INT64", "INT32", "BOOL", "FLOAT") and (shape is None or len(shape) == 2)
        if not fits or (canonical != "attention_mask" and dtype in ("BOOL", "FLOAT")):
            raise UnsupportedModelError(
                f"the input {item.name} is {dtype.lower()} of "
                f"{'unknown' if shape is None else len(shape)} dimensions",
                where=where,
                why=f"{canonical} is a tensor [batch, seq_len] of int64 or int32",
                todo="export the model so that it takes token tensors",
            )
        found[canonical] = GraphInput(
            item.name,
            canonical,
            str(helper.tensor_dtype_to_np_dtype(kind.elem_type)),
            (None, None) if shape is None else (_fixed(shape[0]), _fixed(shape[1])),
        )
    if "input_ids" not in found:
        raise UnsupportedModelError(
            "the model takes no input_ids",
            where=where,
            why=f"its inputs are {', '.join(item.name for item in free) or '(none)'}",
            todo="name the input that holds token ids: inputs={'NAME': 'input_ids'}, on the "
            "command line --input NAME=input_ids",
        )
    return tuple(found[name] for name in INPUTS if name in found)


@dataclass(frozen=True)
class ProbeShape:
    """The shape at which a graph is translated.

    Parameters
    ----------
    batch, seq_len : int
        The shape, unequal, so that the axes can be told apart.
    static : tuple of (int or None)
        Batch and length that the graph fixes; None where it leaves them free.
    """

    batch: int
    seq_len: int
    static: tuple[int | None, int | None]


def probe_shape(inputs: Sequence[GraphInput], where: str) -> ProbeShape:
    """Choose the shape at which a graph is translated.

    Parameters
    ----------
    inputs : sequence of GraphInput
        Its inputs.
    where : str
        The file, for messages.

    Returns
    -------
    ProbeShape
        What the graph fixes, and 2 x 13 where it is free.

    Raises
    ------
    UnsupportedModelError
        If the inputs have different sizes, or one token.
    """
    static: list[int | None] = []
    for axis, what in enumerate(("batches", "lengths")):
        sizes = sorted({size for item in inputs if (size := item.sizes[axis]) is not None})
        if len(sizes) > 1 or (axis == 1 and sizes == [1]):
            raise UnsupportedModelError(
                f"the inputs have {what} of {' and '.join(map(str, sizes))}",
                where=where,
                why="all inputs are tensors [batch, seq_len] of one shape, with several tokens",
                todo="export the model with inputs of one shape, or with dynamic axes",
            )
        static.append(sizes[0] if sizes else None)
    length = static[1] or (13 if static[0] != 13 else 17)
    batch = static[0] or (2 if length != 2 else 3)
    if batch == length:
        raise UnsupportedModelError(
            f"the model is exported for {batch} sequences of {length} tokens",
            where=where,
            why="batch and length are equal, so that the two axes cannot be told apart",
            todo="export it with dynamic axes, or with another batch size",
        )
    return ProbeShape(batch, length, (static[0], static[1]))


def _fixed(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value > 0 else None


def _checked_names(names: Mapping[str, str], known: Sequence[str], where: str) -> dict[str, str]:
    for name, canonical in names.items():
        if name not in known:
            raise UsageError(
                f"the model has no input {name!r}",
                where=where,
                why=f"its inputs are {', '.join(known)}",
                todo="name one of these",
            )
        if canonical not in INPUTS or list(names.values()).count(canonical) > 1:
            raise UsageError(
                f"the input {name!r} cannot be {canonical!r}",
                where=where,
                why=f"inputs are {', '.join(INPUTS)}, each once",
                todo="use one of them",
            )
    return dict(names)


def _unknown(name: str, where: str) -> UnsupportedModelError:
    guess = _ADVICE.get(name.lower().partition(":")[0])
    return UnsupportedModelError(
        f"the model takes an input {name!r}, which is unknown here",
        where=where,
        why=f"inputs are {', '.join(INPUTS)}",
        todo=f"if it is one of them, say so: inputs={{{name!r}: {guess or 'input_ids'!r}}}, on the "
        f"command line --input {name}={guess or 'input_ids'}; else export the model without it",
    )

"""Which tensors of an ONNX graph are the inputs and outputs that this project knows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from ...common.errors import UsageError
from ...model.model_info import REAL_INPUTS
from ..errors import UnsupportedModelError
from .reading import type_name

INPUTS = ("input_ids", "attention_mask", "token_type_ids", *REAL_INPUTS)
"""Canonical names of inputs, in their order."""

MAX_TOKENS, MAX_NUMBERS = 2**16, 2**26
"""Of inputs whose shape the graph fixes: what is allocated before anything is known of it."""

# What other exporters call them, for the advice in the message only: names prove nothing.
_ADVICE = {
    "ids": "input_ids",
    "image": "pixel_values",
    "images": "pixel_values",
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
    name
        Its name in the graph.
    canonical
        What it is: one of `INPUTS`.
    dtype
        Its element type, as NumPy names it.
    sizes
        Batch and length: an int where the graph fixes it, else None.
    real
        Planes, height and width of images, planes and frames of features; empty for token tensors.
    """

    name: str
    canonical: str
    dtype: str
    sizes: tuple[int | None, int | None]
    real: tuple[int, ...] = ()


def graph_inputs(
    graph: onnx.GraphProto,
    names: Mapping[str, str] | None,
    where: str,
    image_size: Sequence[int] | None = None,
) -> tuple[GraphInput, ...]:
    """Tell what the inputs of a graph are.

    Parameters
    ----------
    graph
        The graph.
    names
        Canonical names by the graph's own names, where they differ.
    where
        The file, for messages.
    image_size
        Of images or features, where the graph leaves it free.

    Returns
    -------
    tuple of GraphInput
        In canonical order; images and features alone.

    Raises
    ------
    UnsupportedModelError
        If an input is none of those known, or no tensor [batch, seq_len] of integers, or no batch
        of images or features of one size.
    UsageError
        If `names` does not fit the graph.
    """
    weights = {item.name for item in graph.initializer}
    free = [item for item in graph.input if item.name not in weights]
    renamed = _checked_names(names or {}, [item.name for item in free], where)
    found: dict[str, GraphInput] = {}
    for item in free:
        canonical = renamed.get(item.name, item.name)
        if canonical not in INPUTS:
            raise _unknown(item.name, where)
        if canonical in REAL_INPUTS:
            found[canonical] = _real(item, canonical, len(free), image_size, where)
            continue
        kind = item.type.tensor_type
        shape = kind.shape.dim if kind.HasField("shape") else None
        dtype = type_name(kind.elem_type)
        fits = dtype in ("int64", "int32", "bool", "float") and (shape is None or len(shape) == 2)
        if not fits or (canonical != "attention_mask" and dtype in ("bool", "float")):
            raise UnsupportedModelError(
                f"the input {item.name} is {dtype} of "
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
    if "input_ids" not in found and not any(item.real for item in found.values()):
        raise UnsupportedModelError(
            "the model takes no input_ids",
            where=where,
            why=f"its inputs are {', '.join(item.name for item in free) or '(none)'}",
            todo="name the input that holds token ids: inputs={'NAME': 'input_ids'}, on the "
            "command line --input NAME=input_ids",
        )
    return tuple(found[name] for name in INPUTS if name in found)


def _real(
    item: onnx.ValueInfoProto,
    canonical: str,
    count: int,
    image_size: Sequence[int] | None,
    where: str,
) -> GraphInput:
    """An input of images or features, whose size is the graph's, or else the one that is given."""
    axes = REAL_INPUTS[canonical].axes
    dims = item.type.tensor_type.shape.dim
    kind = item.type.tensor_type.elem_type
    if kind != TensorProto.FLOAT or len(dims) != 1 + len(axes.split(", ")) or count > 1:
        others = f", beside {count - 1} others" if count > 1 else ""
        raise UnsupportedModelError(
            f"the input {item.name} is {type_name(kind)} of {len(dims)} dimensions{others}",
            where=where,
            why=f"{canonical} is float [batch, {axes}], and the only input",
            todo="export the part of the model that takes these alone",
        )
    batch, *fixed = map(_fixed, dims)
    given = list(image_size or fixed)
    if len(given) != len(fixed) or any(
        a not in (None, b) for a, b in zip(fixed, given, strict=False)
    ):
        raise UnsupportedModelError(
            f"the size of {item.name} is {_shown(fixed)}, and {_shown(given)} was given",
            where=where,
            why=f"a graph that fixes {axes} takes no others",
            todo="leave image_size out, or export the model for that size",
        )
    if None in given:
        raise UnsupportedModelError(
            f"the size of {item.name} is {_shown(fixed)} in the graph",
            where=where,
            why="there is one length of sequence per size, and the graph leaves it free",
            todo=f"give image_size=({axes}), or put the model's config.json beside the file",
        )
    if batch == 1:
        raise UnsupportedModelError(
            f"the model is exported for a batch of 1 of {item.name}",
            where=where,
            why="its axes cannot be told apart from others of extent 1",
            todo="export it with a dynamic batch, or for a batch of 2",
        )
    sizes = tuple(size for size in given if size is not None)
    return GraphInput(item.name, canonical, "float32", (batch, None), sizes)


def _shown(sizes: Sequence[int | None]) -> str:
    return " x ".join("?" if size is None else str(size) for size in sizes)


@dataclass(frozen=True)
class ProbeShape:
    """The shape at which a graph is translated.

    Parameters
    ----------
    batch, seq_len
        The shape, unequal, so that the axes can be told apart.
    static
        Batch and length that the graph fixes; None where it leaves them free.
    """

    batch: int
    seq_len: int
    static: tuple[int | None, int | None]


def probe_shape(inputs: Sequence[GraphInput], where: str) -> ProbeShape:
    """Choose the shape at which a graph is translated.

    Parameters
    ----------
    inputs
        Its inputs.
    where
        The file, for messages.

    Returns
    -------
    ProbeShape
        What the graph fixes, and 2 x 13 where it is free.

    Raises
    ------
    UnsupportedModelError
        If the inputs have different sizes, one token, or more than `MAX_TOKENS`.
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
    numbers = max(math.prod((batch, *item.real)) for item in inputs)
    if batch * length > MAX_TOKENS or numbers > MAX_NUMBERS:
        raise UnsupportedModelError(
            f"the model is exported for {batch} sequences of {length} tokens"
            if batch * length > MAX_TOKENS
            else f"the model is exported for inputs of {numbers} numbers",
            where=where,
            why=f"it is run once at the shape that it fixes, of at most {MAX_TOKENS} tokens or "
            f"{MAX_NUMBERS} numbers",
            todo="export it with dynamic axes, or for a smaller shape",
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

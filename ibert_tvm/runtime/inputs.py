"""Checking what a caller gives to a compiled library, before it reaches code that cannot."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from ..common.errors import InputError
from ..model.model_info import REAL_INPUTS
from .metadata import LibraryMetadata
from .pixels import as_array, quantize_images


def check_inputs(
    metadata: LibraryMetadata, given: Mapping[str, ArrayLike | None]
) -> dict[str, np.ndarray]:
    """Check the inputs of a call against the model.

    Parameters
    ----------
    metadata
        The library.
    given
        `input_ids`, `attention_mask`, `token_type_ids`, `ibert_tvm.model.model_info.REAL_INPUTS`;
        None for what the caller left out.

    Returns
    -------
    dict of str to numpy.ndarray
        int32 [batch, length] for every input that the model takes, defaults filled in; or 8-bit
        images [batch, channels, height, width] or features [batch, channels, frames].

    Raises
    ------
    InputError
        If a dtype, rank, shape or value does not fit the model.
    """
    info = metadata.info
    taken = {record.name for record in metadata.inputs}
    if info.image_size is not None:
        return _images(metadata, info.image_size, given)
    for name in REAL_INPUTS:
        _take_no_other(name, given, metadata)
    ids = _integers("input_ids", given["input_ids"])
    if ids.ndim != 2:
        todo = "give [batch, length]"
        if ids.ndim == 1:
            todo += "; for one sequence, [ids] instead of ids"
        raise InputError(
            "input_ids has the wrong rank", why=f"its shape is {_shape(ids)}", todo=todo
        )
    if ids.size == 0:
        raise InputError(
            "input_ids is empty",
            why=f"its shape is {_shape(ids)}",
            todo="give at least one sequence of at least one token",
        )
    if ids.shape[1] > metadata.max_seq_len:
        lengths = sorted({f.seq_len for f in metadata.functions})
        raise InputError(
            "input_ids is too long",
            why=f"it has {ids.shape[1]} tokens per row; the compiled lengths are "
            f"{', '.join(map(str, lengths))}",
            todo="truncate it, or compile with a larger --seq-len",
        )
    _check_range("input_ids", ids, info.vocab_size, "the model's vocabulary")
    arrays = {"input_ids": ids}
    limits = {
        "attention_mask": (2, 1, "1 for tokens, 0 for padding"),
        "token_type_ids": (info.type_vocab_size, 0, "the model's token types"),
    }
    for name, (limit, default, meaning) in limits.items():
        value = given[name]
        if value is None:
            if name in taken:
                arrays[name] = np.full_like(ids, default)
            continue
        if name not in taken:
            _take_no_other(name, given, metadata)
        array = _integers(name, value)
        if array.shape != ids.shape:
            raise InputError(
                f"{name} has the wrong shape",
                why=f"its shape is {_shape(array)}; that of input_ids is {_shape(ids)}",
                todo=f"give {name} in the shape of input_ids",
            )
        _check_range(name, array, limit, meaning)
        arrays[name] = array
    return {name: array.astype(np.int32, copy=False) for name, array in arrays.items()}


def _images(
    metadata: LibraryMetadata, size: tuple[int, ...], given: Mapping[str, ArrayLike | None]
) -> dict[str, np.ndarray]:
    (record,) = metadata.inputs
    for name in given:
        if name != record.name:
            _take_no_other(name, given, metadata)
    return {record.name: quantize_images(record, given.get(record.name), size)}


def _take_no_other(
    name: str, given: Mapping[str, ArrayLike | None], metadata: LibraryMetadata
) -> None:
    if given.get(name) is not None:
        raise InputError(
            f"the model takes no {name}",
            why=f"its inputs are {', '.join(r.name for r in metadata.inputs)}",
            todo="leave it out",
        )


def _shape(array: np.ndarray) -> str:
    return str(list(array.shape))


def _integers(name: str, value: ArrayLike | None) -> np.ndarray:
    array = as_array(name, value, "give rows of one length; pad the shorter ones")
    if array.dtype.kind not in "iub" and array.size > 0:
        raise InputError(
            f"{name} has the wrong dtype", why=f"it is {array.dtype}", todo="give integers"
        )
    return array.astype(np.int64) if array.dtype.kind != "i" else array


def _check_range(name: str, array: np.ndarray, limit: int, meaning: str) -> None:
    # Read as unsigned, a negative number is a large one: one pass finds both.
    if array.view(array.dtype.str.replace("i", "u")).max() >= limit:
        bad = np.argwhere((array < 0) | (array >= limit))
        row, column = (int(i) for i in bad[0])
        raise InputError(
            f"{name} holds a value that is out of range",
            where=f"row {row}, token {column}",
            why=f"it is {int(array[row, column])}",
            todo=f"give values from 0 to {limit - 1} ({meaning})",
        )

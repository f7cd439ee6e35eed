"""Pixels become integers here, on the caller's side: compiled code has no floating point.

A model of images takes 8-bit pixels at one scale, which calibration chose, and one of features
8-bit features. The caller gives what the model's image processor or feature extractor yields,
float [batch, channels, height, width] or [batch, channels, frames]; it is divided by the scale,
rounded and clamped before the library is called.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..common.errors import InputError
from ..common.strict_json import JsonObject
from ..model.model_info import REAL_INPUTS
from .metadata import InputRecord, read_record


def image_record(inputs: Sequence[JsonObject]) -> InputRecord | None:
    """Return the input that holds images, from ``quantization["inputs"]`` of a quantised model.

    Parameters
    ----------
    inputs
        Name, dtype, scale, zero_point, low and high of every input that the caller quantises.

    Returns
    -------
    InputRecord or None
        None if there is none.
    """
    return next((read_record(InputRecord, entry) for entry in inputs), None)


def as_array(name: str, value: ArrayLike | None, todo: str) -> np.ndarray:
    """Return an input as an array; an `InputError` where parts of it have different shapes."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} is not an array", why=str(error), todo=todo) from error


def quantize_images(
    record: InputRecord, value: ArrayLike | None, image_size: Sequence[int]
) -> np.ndarray:
    """Check images and bring them to the integers that a model takes.

    Parameters
    ----------
    record
        The input: its name, dtype and quantisation.
    value
        Real pixels or features, float [batch, *image_size], as the source's image processor or
        feature extractor gives them; or integers of the record's dtype, taken as they are.
    image_size
        Channels, height and width that the model takes, or channels and frames.

    Returns
    -------
    numpy.ndarray
        Of the record's dtype, same shape: ``clamp(round(x / scale) + zero_point, low, high)``.

    Raises
    ------
    InputError
        If they are missing, or the dtype, shape or a value does not fit.
    """
    name, size = record.name, [int(extent) for extent in image_size]
    noun = "pixels" if len(size) == 3 else "numbers"
    real = REAL_INPUTS.get(name, REAL_INPUTS["pixel_values"])
    if value is None:
        raise InputError(
            f"{name} is missing",
            why=f"the model takes {real.what}",
            todo=f"give {name}, [batch, {', '.join(map(str, size))}]",
        )
    array = as_array(name, value, f"give {real.what} of one size")
    if array.ndim < 1 or list(array.shape[1:]) != size or array.shape[0] == 0:
        raise InputError(
            f"{name} has the wrong shape",
            why=f"its shape is {list(array.shape)}",
            todo=f"give [batch, {', '.join(map(str, size))}], as the model's {real.maker} does",
        )
    if str(array.dtype) == record.dtype:
        outside = (array < record.low) | (array > record.high)
        if outside.any():
            raise InputError(
                f"{name} holds a value that is out of range",
                why=f"it is {int(array[outside][0])}",
                todo=f"give integers from {record.low} to {record.high}, or real {noun}",
            )
        return array
    if array.dtype.kind != "f":
        raise InputError(
            f"{name} has the wrong dtype",
            why=f"it is {array.dtype}",
            todo=f"give floats, as the model's {real.maker} does"
            + (": pixels of 0 to 255 have to be normalised first" if len(size) == 3 else "")
            + f"; or {record.dtype} integers at the scale {record.scale:.6g}",
        )
    steps = np.floor(array.astype(np.float64) / record.scale + 0.5) + record.zero_point
    if not np.isfinite(steps).all():
        raise InputError(
            f"{name} holds values that are infinite or not a number",
            todo=f"check how the {real.what} were prepared",
        )
    return np.clip(steps, record.low, record.high).astype(record.dtype)

"""Arrays as torch's tensors, for callers who ask for these, and what these give as arrays."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.extras import require
from ..common.types import Array

if TYPE_CHECKING:
    import torch


def tensor_of(array: Array) -> torch.Tensor:
    """Return an array as a tensor that shares its memory.

    Parameters
    ----------
    array
        Of any shape.

    Returns
    -------
    torch.Tensor
        Of the same shape and type.

    Raises
    ------
    MissingExtraError
        If torch is not installed.
    """
    require("torch", to="a tensor", otherwise=", or ask for arrays (convert_to_numpy=True)")
    import torch

    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def are_tensors(*values: Any) -> bool:
    """Whether all are tensors, or sequences of tensors, of which the first is looked at."""
    torch = sys.modules.get("torch")
    firsts = [v[0] if isinstance(v, list | tuple) and v else v for v in values]
    return torch is not None and all(isinstance(each, torch.Tensor) for each in firsts)


def array_of(values: Any) -> NDArray[np.float32]:
    """Return numbers of an array, a tensor on any device, or a sequence of these as an array."""
    if not are_tensors(values):
        return np.asarray(values, np.float32)
    if isinstance(values, list | tuple):
        return np.stack([array_of(value) for value in values])
    array: NDArray[np.float32] = values.detach().cpu().float().numpy()
    return array

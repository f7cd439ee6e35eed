"""Arrays as torch's tensors, for callers who ask for these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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

    return torch.from_numpy(np.ascontiguousarray(array))

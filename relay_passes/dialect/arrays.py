"""Types of NumPy arrays, as signatures name them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
"""Values and weights of the canonical form."""
Ids: TypeAlias = NDArray[np.int64]
"""Ids, masks and positions of the canonical form."""
Reals: TypeAlias = NDArray[np.float64]
"""Scales, and what is computed at compile time."""
Integers: TypeAlias = NDArray[np.integer[Any]]
"""Integers of any storage type."""
AnyArray: TypeAlias = NDArray[Any]
"""An array of any kind."""

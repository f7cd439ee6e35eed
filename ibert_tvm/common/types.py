"""Types of arrays; shapes are said where they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""An array; what its entries are is known when the program runs."""
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Weights: TypeAlias = Mapping[str, Floats]
"""Float arrays of a model by name."""

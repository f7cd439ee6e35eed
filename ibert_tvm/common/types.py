"""The type of arrays at the borders of the project."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""An array; what its entries are is known when the program runs."""

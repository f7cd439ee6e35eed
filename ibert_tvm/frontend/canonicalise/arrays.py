"""Arrays of any element type: weights, and what the source computes of its inputs."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""The element type is the source's."""

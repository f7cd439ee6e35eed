"""What the translator knows about each tensor of an ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from ...common.errors import ModelError
from ...common.types import Array


class Untranslatable(ModelError):
    """A node has no translation; the text is the reason."""


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor whose elements are known: an initializer, or computed from such at import.

    Parameters
    ----------
    array
        Its elements.
    name
        The initializer that it comes from; empty for constants that are no weights.
    """

    array: Array
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """Its element type, as NumPy names it."""
        return str(self.array.dtype)


@dataclass(frozen=True, eq=False)
class Traced:
    """A tensor that depends on the model's inputs.

    Parameters
    ----------
    var
        The variable that holds it, of static shape.
    tokens
        Whether it depends on inputs and constants only, not on weights: masks, positions, ids.
    """

    var: relax.Var
    tokens: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(int(extent) for extent in self.var.ty.shape.values)

    @property
    def dtype(self) -> str:
        """Its element type, as NumPy names it."""
        return str(self.var.ty.dtype)


@dataclass(frozen=True, eq=False)
class Refused:
    """A tensor that could not be translated.

    Parameters
    ----------
    var
        A variable that stands for it; where it comes from says why.
    """

    var: relax.Var


Operand: TypeAlias = Known | Traced


def constant(value: Any) -> relax.Constant:
    """Return a constant of the element type of `value`; Relax alone would make 64 bits 32."""
    array = np.asarray(value)
    return relax.const(array, str(array.dtype))

"""Zeros around images or beside tokens: the convolution that reads them takes them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.types import Array, Longs
from . import views
from .builder import Builder
from .images import Pixels
from .mismatch import Mismatch
from .values import Change, Hidden, Value
from .views import Axis

ZEROS_ONLY = "borders of zeros beside a convolution have a form (padding_mode='zeros')"
_ELSEWHERE = "zeros are put beside a tensor, and only convolutions have a form with such a border"


@dataclass(frozen=True, eq=False)
class Bordered(Value):
    """Images, features or tokens with zeros beside them.

    Parameters
    ----------
    inside
        Without the zeros.
    zeros
        How many lie before and after, by what an axis enumerates: ``row``, ``column`` or
        ``tokens``.
    """

    inside: Pixels | Hidden
    zeros: Mapping[str, tuple[int, int]]

    def hidden(self, c: Builder) -> Hidden:
        raise Mismatch(_ELSEWHERE)

    def elementwise(self, c: Builder, op: str) -> Value:
        raise Mismatch(_ELSEWHERE)

    def moved(self, c: Builder, op: str, change: Change) -> Value:
        try:
            return self.after(op, inside=self.inside.moved(c, op, change))
        except Mismatch as error:
            raise Mismatch(_ELSEWHERE) from error

    def taken_in(self, padding: Sequence[int]) -> list[int]:
        """Return the padding of a convolution, before all axes and then behind them, with these."""
        kinds = [_enumerated(axis) for axis in self.inside.view[2:]]
        if len(kinds) * 2 != len(padding) or not self.zeros.keys() <= set(kinds):
            raise Mismatch(_ELSEWHERE)
        ends = zip(*(self.zeros.get(kind, (0, 0)) for kind in kinds), strict=True)
        return [a + b for a, b in zip(padding, (n for end in ends for n in end), strict=True)]


def bordered(value: Pixels | Hidden | Bordered, op: str, widths: Longs) -> Bordered:
    """Return a value with zeros beside it, [axes, 2] of them.

    Raises
    ------
    Mismatch
        If no convolution can take them in.
    """
    outer = value if isinstance(value, Bordered) else Bordered(value, {})
    inside, zeros = outer.inside, dict(outer.zeros)
    view = inside.view
    if sum(any(atom.kind == "patch" for atom in axis) for axis in view) > 1:
        raise Mismatch(
            "rows and columns of an image's tokens are padded, as windows of them are: "
            "attention within windows of two directions has no form"
        )
    if (widths < 0).any():
        raise Mismatch(f"{-widths.min()} entries are cut off an end of {views.describe(view)}")
    for axis, (before, after) in zip(view, widths.tolist(), strict=True):
        kind = _enumerated(axis)
        if (before or after) and not kind:
            raise Mismatch(
                f"zeros are put beside {views.describe((axis,))} of {views.describe(view)}, and "
                "only beside rows and columns of pixels, or tokens, they have a form"
            )
        if before or after:
            first, last = zeros.get(kind, (0, 0))
            zeros[kind] = (first + before, last + after)
    return Bordered(inside, zeros, ops=(*value.ops, op), layer=value.layer)


def _enumerated(axis: Axis) -> str:
    """What an axis enumerates that zeros can lie beside; "" if nothing."""
    if views.is_tokens(axis):
        return "tokens"
    whole = [atom.kind for atom in views.merged(axis) if atom.stride == 1]
    return whole[0] if len(views.merged(axis)) == 1 and whole in (["row"], ["column"]) else ""


def repeats_edges(index: Array, extent: int) -> bool:
    """Tell whether indices of an axis are all of it with others before or behind."""
    inside = np.flatnonzero(index == 0)
    whole = np.arange(extent)
    return index.size > extent and any(
        np.array_equal(index.reshape(-1)[first : first + extent], whole) for first in inside
    )

"""What canonical norms share: rows that are tokens, or heads of a token."""

from __future__ import annotations

from dataclasses import dataclass

from ..dialect.arrays import Floats
from ..dialect.heads import norm_rows
from ..dialect.record import Dims
from .errors import CanonicalError
from .operator import CanonicalOperator


@dataclass(frozen=True)
class Norm(CanonicalOperator):
    """Base of norms of rows: all channels of a token, or where gamma is [H or 1, D] each head.

    Parameters
    ----------
    epsilon : float
    """

    epsilon: float

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels."""
        if "D" in dims and norm_rows(dims["C"], dims["D"], dims.get("H")) is None:
            raise CanonicalError(
                f"weights of {dims.get('H', 1)} heads of {dims['D']} channels for {dims['C']} "
                "channels",
                self.where,
                "a row of them is for each head, or for all of them",
                "give [channels], or [heads, channels of a head], or [1, channels of a head]",
            )


def by_rows(x: Floats, gamma: Floats) -> Floats:
    """See x [..., C] as rows that weights are for: [..., heads, D] where they are of heads."""
    return x if gamma.ndim == 1 else x.reshape(*x.shape[:-1], -1, gamma.shape[-1])

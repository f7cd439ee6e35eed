"""`integer.capped_attention`: attention whose scores a cap keeps below a bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import flattened
from ...errors import LoweringError
from ...spec.score_cap import ScoreCap, cap_score
from ..domain import Entry, Heads, Index, Tensor
from .attention import Attention


@dataclass(frozen=True)
class CappedAttention(Attention):
    """Attention of all heads whose scores are ``2^14 tanh(S q k^T / c)`` (softcap).

    Otherwise what `Attention` is. Terms of the scores are added, and keys masked, behind the cap,
    so a bias and the exponential have the scale ``c / 2^14``.

    Parameters
    ----------
    cap : ScoreCap
        From ``ScoreCap.from_scale(S, c)``, S the scale of Q K^T.
    """

    cap: ScoreCap = field(kw_only=True, metadata=flattened("cap", ScoreCap))

    OP = "integer.capped_attention"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (
            ("down_shift", 0, 24),
            ("up_shift", 0, 8),
            ("multiplier", 1, 2**15 - 1),
        ):
            if not low <= getattr(self.cap, name) <= high:
                raise LoweringError(
                    f"cap_{name} is {getattr(self.cap, name)}",
                    self.where,
                    f"allowed: {low} to {high}",
                    "derive the cap with ScoreCap.from_scale",
                )

    def changed_scores(self, heads: Heads, products: Tensor) -> Tensor:
        """Capped products."""

        def capped(b: Index, h: Index, i: Index, j: Index) -> Entry:
            return cap_score(heads.exact_score(products, b, h, i, j), self.cap)

        return heads.per_score("capped", capped)

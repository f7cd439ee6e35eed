"""`integer.attention_pool`: i-softmax of scores per token, times V, requantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...dialect.record import Operand, flattened
from ...errors import LoweringError
from ...spec import short_softmax, softmax
from ...spec.exponential import Exponential
from ...spec.short_requantise import requantise_short
from ...spec.short_softmax import ShortExponential
from ...spec.values import not_equal
from ..checks import SHORT_DTYPES, check_bounds, check_shift, check_short_shift
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..types import MASK
from .attention import EXPONENTIALS


@dataclass(frozen=True)
class AttentionPool(Operator):
    """Attention of one query, [b, C], whose scores are given: [b, s, H], H heads.

    A token counts if the mask keeps it; 0 for a sequence without tokens. scores and v are packed if
    `slots` are given; the mask must be given, then.

    Parameters
    ----------
    exponential : ShortExponential, PolynomialExponential or ReleasedExponential
        The first is that of 16-bit arithmetic: u8 exponentials times V, divided once by their sum.
        With the others u8 probabilities of scale 1/256 are multiplied with V, as published.
    shift, low, high, dtype, zero_point
        Requantisation, as for `integer.attention`.
    """

    exponential: Exponential | ShortExponential = field(
        metadata=flattened("exp", EXPONENTIALS, "exponential")
    )
    shift: int
    low: int
    high: int
    dtype: str = "int8"
    zero_point: int = 0

    OP = "integer.attention_pool"
    OPERANDS = (
        Operand("scores", ("int8", "int16"), "b s H"),
        Operand("v", ("int8",), "b s C"),
        Operand("multiplier", ("int16", "int32"), "1|C"),
        Operand("mask", MASK, "b s", optional=True, is_mask=True),
        Operand("slots", ("int32",), "b s", optional=True, counted=-1),
    )
    RESULT = "b C"

    def __post_init__(self) -> None:
        if isinstance(self.exponential, ShortExponential):
            check_bounds(self, SHORT_DTYPES)
            check_short_shift(self)
        else:
            check_bounds(self)
            check_shift(self)

    def dtypes_of(self, operand: Operand) -> tuple[str, ...]:
        """The multiplier of the short softmax has 16 bits."""
        if operand.name == "multiplier":
            return ("int16",) if isinstance(self.exponential, ShortExponential) else ("int32",)
        return operand.dtypes

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Heads divide the channels."""
        if dims["H"] < 1 or dims["C"] % dims["H"]:
            raise LoweringError(
                f"{dims['H']} heads do not divide {dims['C']} channels",
                self.where,
                "every head has the same number of channels",
                "give a score for each head",
            )

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        multiplier = operands.pop("multiplier")
        pool = _Pool(domain, **operands)
        if isinstance(self.exponential, ShortExponential):
            context = _short(pool, self.exponential)
        else:
            context = _normalised(pool, self.exponential)
        requantised = self.shift, self.zero_point, self.low, self.high
        shared = multiplier.shape[0] == 1

        def entry(b: Index, c: Index) -> Entry:
            factor = multiplier[0 if shared else c]
            if isinstance(self.exponential, ShortExponential):
                return requantise_short(context(b, c), factor, 0, *requantised)
            return softmax.output_of(context(b, c), factor, *requantised)

        return domain.define("attended", pool.shape, entry, self.dtype)


class _Pool:
    """The operands by sequence, head and token."""

    def __init__(
        self,
        domain: Domain,
        scores: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> None:
        self.domain, self.scores, self.v, self.mask, self.slots = domain, scores, v, mask, slots
        self.heads = scores.shape[1]
        self.length = v.shape[0] // domain.batch if slots is None else slots.shape[1]
        self.shape = (domain.batch, v.shape[1])
        self.by_head = (domain.batch, self.heads)
        self.by_score = (domain.batch, self.length, self.heads)

    def score(self, b: Index, j: Index, h: Index) -> Entry:
        """Of a token that is not kept, any."""
        return self.scores[self.domain.row_of_token(self.scores, self.slots, b, j), h]

    def kept(self, b: Index, j: Index) -> Any:
        """Whether the mask keeps a token: a condition. There must be a mask."""
        assert self.mask is not None
        return not_equal(self.mask[b, j], 0)

    def products(self, weights: Tensor) -> Tensor:
        """Define the sum of the values with these weights [b, s, H]."""
        width = self.shape[1] // self.heads

        def term(b: Index, c: Index, j: Index) -> Entry:
            row = self.domain.row_of_token(self.v, self.slots, b, j)
            return weights[b, j, c // width] * self.v[row, c]

        return self.domain.sum("context", self.shape, self.length, term, "int32")

    def of_head(self, stage: Tensor) -> Callable[[Index, Index], Entry]:
        """A stage by head, as a function of a sequence and a channel."""
        width = self.shape[1] // self.heads
        return lambda b, c: stage[b, c // width]


def _short(pool: _Pool, k: ShortExponential) -> Callable[[Index, Index], Entry]:
    """u8 exponentials times V, divided by their sum once per channel."""
    domain = pool.domain

    def score(b: Index, j: Index, h: Index) -> Entry:
        value = pool.score(b, j, h)
        if pool.mask is None:
            return value
        return short_softmax.score_of(value, short_softmax.key_offset(pool.kept(b, j)))

    scores = domain.define("scores", pool.by_score, score, "int32")
    top = domain.max("row_max", pool.by_head, pool.length, lambda b, h, j: scores[b, j, h], "int32")
    e = domain.define(
        "exponential",
        pool.by_score,
        lambda b, j, h: short_softmax.exponential_of(
            scores[b, j, h], short_softmax.row_floor(top[b, h]), k
        ),
        "int32",
    )
    total = domain.sum("row_sum", pool.by_head, pool.length, lambda b, h, j: e[b, j, h], "int32")
    largest = k.maximum * pool.length
    bits = domain.define(
        "row_bits", pool.by_head, lambda b, h: short_softmax.sum_bits(total[b, h], largest), "int32"
    )
    factor = domain.define(
        "row_factor",
        pool.by_head,
        lambda b, h: short_softmax.reciprocal(total[b, h], bits[b, h]),
        "int32",
    )
    products, bits_of, factor_of = pool.products(e), pool.of_head(bits), pool.of_head(factor)
    return lambda b, c: short_softmax.context_of(products[b, c], bits_of(b, c), factor_of(b, c))


def _normalised(pool: _Pool, k: Exponential) -> Callable[[Index, Index], Entry]:
    """Probabilities of 8 bits, as published, times V."""
    domain = pool.domain

    def score(b: Index, j: Index, h: Index) -> Entry:
        value = pool.score(b, j, h)
        return value if pool.mask is None else softmax.masked_score(value, pool.kept(b, j))

    scores = domain.define("scores", pool.by_score, score, "int32")
    top = domain.max("row_max", pool.by_head, pool.length, lambda b, h, j: scores[b, j, h], "int32")
    e = domain.define(
        "exponential",
        pool.by_score,
        lambda b, j, h: softmax.exp_of(
            scores[b, j, h],
            top[b, h],
            not_equal(scores[b, j, h], softmax.MASKED_SCORE),
            k,
        ),
        "int32",
    )
    total = domain.sum("row_sum", pool.by_head, pool.length, lambda b, h, j: e[b, j, h])
    factor = domain.define(
        "row_factor", pool.by_head, lambda b, h: softmax.factor_of_sum(total[b, h]), "int64"
    )
    probability = domain.define(
        "probability",
        pool.by_score,
        lambda b, j, h: softmax.probability_of(e[b, j, h], factor[b, h]),
        "int32",
    )
    products = pool.products(probability)
    return lambda b, c: softmax.context_of_probabilities(products[b, c])

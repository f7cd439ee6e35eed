"""Poolings: one row for each sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import ClassVar, Generic

from ...dialect.record import Dims, Operand, flattened
from ...dialect.rules import AttentionPoolRule
from ...spec import pooling, short_softmax, softmax
from ...spec.exponential import Exponential
from ...spec.short_requantise import requantise_short
from ...spec.short_softmax import ShortExponential
from ...spec.values import Ranged, indicator, known, not_equal, select
from ..checks import check_attribute, check_requantisation
from ..domain import Condition, Domain, Entry, EntryAt, Index, T
from ..operator import Operator, Traits
from ..types import LARGEST_INDEX, MASK, NARROW, dtype_bounds
from .attention import EXPONENTIALS

_MASK = Operand("mask", MASK, "b s", optional=True, is_mask=True)
SLOTS = Operand("slots", ("int32",), "b s", optional=True, counted=-1)
"""Where the tokens of a packed operand are; -1 for those that were not kept."""


class ScaledPool(Operator, abstract=True):
    """Base of poolings, [b, C], that divide: what is left of the division are fraction bits.

    Without a mask every token counts. x is packed if `slots` are given; the mask must be given,
    then.

    Parameters
    ----------
    fraction_bits
        The result's scale is the input's times 2^-fraction_bits.
    """

    fraction_bits: int = 0

    OPERANDS: ClassVar[tuple[Operand, ...]] = (Operand("x", NARROW, "b s C"), _MASK, SLOTS)
    RESULT: ClassVar[str] = "b C"
    dtype = "int32"

    def __post_init__(self) -> None:
        check_attribute(self, "fraction_bits", 0, 15)


class Tokens(Generic[T]):
    """The tokens of an operand [batch, seq_len, channels], by sequence, channel and position.

    Parameters
    ----------
    domain
        Of the body.
    x
        [rows, channels], packed if there are slots.
    mask
        [batch, seq_len], 0 at padding; None if every token counts.
    slots
        Rows of x by sequence and position; None if they are in order.

    Attributes
    ----------
    shape : tuple of int
        [batch, channels].
    length : int
        Positions of a sequence.
    """

    def __init__(
        self, domain: Domain[T], x: T, mask: T | None = None, slots: T | None = None
    ) -> None:
        self.domain, self.x, self.mask, self.slots = domain, x, mask, slots
        self.shape = (domain.batch, x.shape[1])
        self.length = x.shape[0] // domain.batch

    def entry(self, batch: Index, channel: Index, token: Index) -> Entry:
        """One entry; of a token that is not kept, any of x."""
        return self.x[self.domain.row_of_token(self.x, self.slots, batch, token), channel]

    def kept(self, batch: Index, token: Index) -> Condition:
        """Whether the mask keeps a token: a condition. There must be a mask."""
        assert self.mask is not None
        return not_equal(self.mask[batch, token], 0)

    def indicator(self, batch: Index, token: Index) -> Entry:
        """1 for a token that counts, else 0."""
        return 1 if self.mask is None else indicator(self.kept(batch, token))

    def sum(self) -> T:
        """Define the sum of the tokens that count, [batch, channels], int32."""
        return self.domain.sum(
            "token_sum",
            self.shape,
            self.length,
            lambda b, c, s: self.entry(b, c, s) * self.indicator(b, s),
            "int32",
        )

    def count(self) -> T:
        """Define their number, [batch], int32."""
        rows = self.shape[:1]
        if self.mask is None:
            return self.domain.define(
                "count", rows, lambda b: self.domain.tokens(self.length), "int32"
            )
        return self.domain.sum("count", rows, self.length, self.indicator, "int32")


class MeanPool(ScaledPool):
    """Mean over the tokens that the mask keeps."""

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Sum of the tokens, their count, one division per sequence."""
        tokens = Tokens(domain, **operands)
        total, count = tokens.sum(), tokens.count()
        reciprocal = domain.define(
            "reciprocal", tokens.shape[:1], lambda b: pooling.reciprocal_of_count(count[b]), "int32"
        )
        bounds = Ranged(*domain.bounds(tokens.x))
        return domain.define(
            "mean",
            tokens.shape,
            lambda b, c: pooling.mean_of_tokens(
                total[b, c], reciprocal[b], self.fraction_bits, entry=bounds
            ),
            "int32",
        )


class WeightedMeanPool(ScaledPool):
    """Mean over the tokens that the mask keeps, token t weighing t + 1."""

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Sum of the weighted tokens and of their weights, one division per channel."""
        tokens = Tokens(domain, **operands)

        def weight(b: Index, s: Index) -> Entry:
            return (domain.number(s, 0, tokens.length - 1) + 1) * tokens.indicator(b, s)

        # The sum over long sequences needs 64 bits, over short ones the narrower type serves.
        total = domain.sum(
            "token_sum",
            tokens.shape,
            tokens.length,
            lambda b, c, s: tokens.entry(b, c, s) * weight(b, s),
        )
        weights = domain.sum("weight", tokens.shape[:1], tokens.length, weight, "int32")
        bounds = domain.bounds(tokens.x)
        return domain.define(
            "mean",
            tokens.shape,
            lambda b, c: pooling.quotient_within(
                total[b, c], weights[b], self.fraction_bits, bounds
            ),
            "int32",
        )


class SqrtMeanPool(ScaledPool):
    """``sum / sqrt(n)`` of the n tokens that the mask keeps."""

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Sum of the tokens, the root of their count, one division per channel."""
        tokens = Tokens(domain, **operands)
        total, count = tokens.sum(), tokens.count()
        rows = tokens.shape[:1]
        half = domain.define("half_bits", rows, lambda b: pooling.root_half_bits(count[b]), "int32")
        root = domain.define(
            "square_root", rows, lambda b: pooling.root_of_count(count[b], half[b]), "int32"
        )
        return domain.define(
            "mean",
            tokens.shape,
            lambda b, c: pooling.over_root(total[b, c], root[b], self.fraction_bits),
            "int32",
        )


class MaxPool(Operator):
    """Maximum over the tokens that the mask keeps, [b, C]; without a mask, over all.

    0 for a sequence without tokens. x is packed if `slots` are given; the mask must be given, then.
    """

    OPERANDS = (Operand("x", ("uint8", *NARROW), "b s C"), _MASK, SLOTS)
    RESULT = "b C"
    dtype = "int32"

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Maximum of the tokens, with the least number of the type in the place of padding."""
        tokens = Tokens(domain, **operands)
        if tokens.mask is None:
            return domain.max("largest", tokens.shape, tokens.length, tokens.entry, "int32")
        least = dtype_bounds(tokens.x.dtype)[0]

        def kept(b: Index, c: Index, s: Index) -> Entry:
            return select(tokens.kept(b, s), tokens.entry(b, c, s), least)

        largest = domain.max("largest", tokens.shape, tokens.length, kept, "int32")
        count = tokens.count()
        low, high = domain.bounds(tokens.x)

        def pooled(b: Index, c: Index) -> Entry:
            # Where there is a token, the maximum is one of x.
            found = select(not_equal(count[b], 0), largest[b, c], 0)
            return known(found, min(low, 0), max(high, 0))

        return domain.define("pooled", tokens.shape, pooled, "int32")


class LastToken(Operator):
    """The last token that the mask keeps, [b, C]; 0 for a sequence without tokens.

    x is packed if `slots` are given.
    """

    OPERANDS = (
        Operand("x", ("uint8", *NARROW), "b s C"),
        Operand("mask", MASK, "b s", is_mask=True),
        SLOTS,
    )
    RESULT = "b C"
    KEEPS = "x"
    TRAITS = Traits(takes_epilogue=False)

    def body(self, domain: Domain[T], **operands: T) -> T:
        """The largest position that is kept, then its token."""
        tokens = Tokens(domain, **operands)

        def position(b: Index, s: Index) -> Entry:
            return indicator(tokens.kept(b, s)) * domain.number(s, 0, tokens.length - 1)

        last = domain.max("last", tokens.shape[:1], tokens.length, position, "int32")

        def selected(b: Index, c: Index) -> Entry:
            place = domain.index(last[b])
            return tokens.entry(b, c, place) * indicator(tokens.kept(b, place))

        return domain.define("selected", tokens.shape, selected, tokens.x.dtype)


class SelectToken(Operator):
    """The token at one position, [b, C]; x is packed if `slots` are given.

    Parameters
    ----------
    index
        Position in the sequence; not negative.
    """

    index: int = 0

    OPERANDS = (Operand("x", ("uint8", *NARROW), "b s C"), SLOTS)
    RESULT = "b C"
    KEEPS = "x"
    TRAITS = Traits(takes_epilogue=False)

    def __post_init__(self) -> None:
        check_attribute(self, "index", 0, LARGEST_INDEX)

    def check_dims(self, dims: Dims) -> None:
        """A sequence has such a token; a symbolic one is checked when it is specialised."""
        if isinstance(dims["s"], int) and self.index >= dims["s"]:
            raise self.refused(
                f"token {self.index} of sequences of {dims['s']} tokens",
                "tokens are counted from 0",
                "compile for longer sequences",
            )

    def selected_tokens(self) -> tuple[int, ...]:
        """The token at `index`."""
        return (self.index,)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, slots = operands["x"], operands.get("slots")
        return domain.define(
            "selected",
            (domain.batch, x.shape[1]),
            lambda row, channel: x[domain.row_of_token(x, slots, row, self.index), channel],
            x.dtype,
        )


class AttentionPool(AttentionPoolRule, Operator):
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

    OPERANDS = (
        Operand("scores", ("int8", "int16"), "b s H"),
        Operand("v", ("int8",), "b s C"),
        Operand("multiplier", ("int16", "int32"), "1|C"),
        _MASK,
        SLOTS,
    )
    RESULT = "b C"

    def __post_init__(self) -> None:
        check_requantisation(self, short=isinstance(self.exponential, ShortExponential))

    def dtypes_of(self, operand: Operand) -> tuple[str, ...]:
        """The multiplier of the short softmax has 16 bits."""
        if operand.name == "multiplier":
            return ("int16",) if isinstance(self.exponential, ShortExponential) else ("int32",)
        return operand.dtypes

    def body(self, domain: Domain[T], **operands: T) -> T:
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


class _Pool(Tokens[T]):
    """The operands by sequence, head and token."""

    def __init__(
        self, domain: Domain[T], scores: T, v: T, mask: T | None = None, slots: T | None = None
    ) -> None:
        super().__init__(domain, v, mask, slots)
        self.scores, self.heads = scores, scores.shape[1]
        self.by_head = (domain.batch, self.heads)
        self.by_score = (domain.batch, self.length, self.heads)

    def score(self, b: Index, j: Index, h: Index) -> Entry:
        """Of a token that is not kept, any."""
        return self.scores[self.domain.row_of_token(self.scores, self.slots, b, j), h]

    def per_score(self, name: str, entry: EntryAt) -> T:
        """Define a stage [batch, tokens, heads], int32."""
        return self.domain.define(name, self.by_score, entry, "int32")

    def per_head(self, name: str, entry: EntryAt, dtype: str = "int32") -> T:
        """Define a stage [batch, heads]."""
        return self.domain.define(name, self.by_head, entry, dtype)

    def over_tokens(self, reduce: Callable[..., T], name: str, stage: T, dtype: str = "") -> T:
        """Reduce a stage of scores, [batch, heads]."""
        return reduce(name, self.by_head, self.length, lambda b, h, j: stage[b, j, h], dtype)

    def products(self, weights: T) -> T:
        """Define the sum of the values with these weights [b, s, H]."""
        width = self.shape[1] // self.heads

        def term(b: Index, c: Index, j: Index) -> Entry:
            return weights[b, j, c // width] * self.entry(b, c, j)

        return self.domain.sum("context", self.shape, self.length, term, "int32")

    def of_head(self, stage: T) -> Callable[[Index, Index], Entry]:
        """A stage by head, as a function of a sequence and a channel."""
        width = self.shape[1] // self.heads
        return lambda b, c: stage[b, c // width]


def _short(pool: _Pool[T], k: ShortExponential) -> Callable[[Index, Index], Entry]:
    """u8 exponentials times V, divided by their sum once per channel."""

    def score(b: Index, j: Index, h: Index) -> Entry:
        value = pool.score(b, j, h)
        if pool.mask is None:
            return value
        return short_softmax.score_of(value, short_softmax.key_offset(pool.kept(b, j)))

    def exponential(b: Index, j: Index, h: Index) -> Entry:
        floor = short_softmax.row_floor(top[b, h])
        return short_softmax.exponential_of(scores[b, j, h], floor, k)

    scores = pool.per_score("scores", score)
    top = pool.over_tokens(pool.domain.max, "row_max", scores, "int32")
    e = pool.per_score("exponential", exponential)
    total = pool.over_tokens(pool.domain.sum, "row_sum", e, "int32")
    largest = k.maximum * pool.length
    bits = pool.per_head("row_bits", lambda b, h: short_softmax.sum_bits(total[b, h], largest))
    factor = pool.per_head(
        "row_factor", lambda b, h: short_softmax.reciprocal(total[b, h], bits[b, h])
    )
    products, bits_of, factor_of = pool.products(e), pool.of_head(bits), pool.of_head(factor)
    return lambda b, c: short_softmax.context_of(products[b, c], bits_of(b, c), factor_of(b, c))


def _normalised(pool: _Pool[T], k: Exponential) -> Callable[[Index, Index], Entry]:
    """Probabilities of 8 bits, as published, times V."""

    def score(b: Index, j: Index, h: Index) -> Entry:
        value = pool.score(b, j, h)
        return value if pool.mask is None else softmax.masked_score(value, pool.kept(b, j))

    def exponential(b: Index, j: Index, h: Index) -> Entry:
        counts = not_equal(scores[b, j, h], softmax.MASKED_SCORE)
        return softmax.exp_of(scores[b, j, h], top[b, h], counts, k)

    scores = pool.per_score("scores", score)
    top = pool.over_tokens(pool.domain.max, "row_max", scores, "int32")
    e = pool.per_score("exponential", exponential)
    total = pool.over_tokens(pool.domain.sum, "row_sum", e)
    factor = pool.per_head("row_factor", lambda b, h: softmax.factor_of_sum(total[b, h]), "int64")
    probability = pool.per_score(
        "probability", lambda b, j, h: softmax.probability_of(e[b, j, h], factor[b, h])
    )
    products = pool.products(probability)
    return lambda b, c: softmax.context_of_probabilities(products[b, c])

"""Attention of all heads: Q K^T, i-softmax and P V, requantised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field

from ...dialect.heads import UNBOUNDED, attention_problems, window_problems
from ...dialect.record import Dims, Operand, flattened
from ...spec import short_softmax, softmax
from ...spec.exponential import Exponential, PolynomialExponential
from ...spec.released import ReleasedExponential
from ...spec.score_cap import ScoreCap, cap_score
from ...spec.short_requantise import requantise_short
from ...spec.short_softmax import ShortExponential
from ...spec.values import indicator, not_equal, select
from ..checks import check_requantisation
from ..domain import Condition, Domain, Entry, Heads, Index, T
from ..operator import Operator, Traits
from ..types import MASK, TensorType, static

SOFTMAX_MODES = ("short", "normalised")
EXPONENTIALS = {
    "short": ShortExponential,
    "polynomial": PolynomialExponential,
    "released": ReleasedExponential,
}


class Attention(Operator):
    """Attention of all heads, [b, s, H D].

    Keys and values may have fewer heads than queries, G of them, in order: head h of the queries
    reads head h // (H / G).
    A key counts for a query if the mask keeps it, `pair_mask` keeps the pair of query and key, and
    the distance, key - query, lies in the window.
    A score may get a term that depends on the head, the query and the key: a constant, `bias`, and
    computed ones, `query_term` [sequence, query, head, key] and `key_term` [sequence, key, head,
    query], which have the scale of the scores and are never packed. Values per token are
    packed if `starts` are given (the first row of each sequence); the mask must be, then, and where
    distances matter `tokens`, the token in each row.

    Parameters
    ----------
    num_heads
        H; the channels of q are H * D, those of k and v G * D.
    softmax
        "short": u8 exponentials times V, divided once per row by their sum, in 16-bit arithmetic.
        V may be wide, then: int16 within `short_softmax.VALUE_LIMIT`.
        "normalised": u8 probabilities of scale 1/256 times V, as published.
    exponential : ShortExponential, PolynomialExponential or ReleasedExponential
        The first belongs to "short", the others to "normalised".
    shift, low, high, dtype, zero_point
        Requantisation of the context. "short": its values come with 7 fraction bits in the scale
        of V's 8 bits (of wide V with 4 in its own scale),
        the int16 multiplier is Q15, ``S_v / 128 / S_out * 2^shift``; dtype int8, uint8 or int16.
        "normalised": 8 fraction bits, a multiplier ``S_v / 256 / S_out * 2^shift`` of 15 bits at
        most; dtype int8, uint8, int16 or int32.
    before, after
        Window: the largest distance at which a key in front of its query counts, and behind it
        (0 for causal attention). `UNBOUNDED` where nothing limits it.
    """

    num_heads: int
    softmax: str
    exponential: Exponential | ShortExponential = field(
        metadata=flattened("exp", EXPONENTIALS, "exponential")
    )
    shift: int
    low: int
    high: int
    dtype: str = "int8"
    zero_point: int = 0
    before: int = UNBOUNDED
    after: int = UNBOUNDED

    # bias, in the scale of the scores: by distance, entry d + P - 1 of [H or 1, 2 P - 1] for
    # d = key - query; or by query and key, [H or 1, P, P]. P positions are as many as s at least.
    OPERANDS = (
        Operand("q", ("int8",), "b s C"),
        Operand("k", ("int8",), "b s K"),
        Operand("v", ("int8", "int16"), "b s K"),
        Operand("mask", MASK, "b s", optional=True, by_token=True, is_mask=True),
        Operand("multiplier", ("int16", "int32"), "1|C"),
        Operand("pair_mask", MASK, "b s s", optional=True),
        Operand("bias", ("int32",), "1|H D or 1|H P P", optional=True),
        Operand("starts", ("int32",), "n", optional=True, counted=0),
        Operand("tokens", ("int32",), "b s", optional=True, by_token=True, counted=0),
        Operand("query_term", ("int32",), "b s H s", optional=True),
        Operand("key_term", ("int32",), "b s H s", optional=True),
    )
    RESULT = "b s C"
    TRAITS = Traits(
        takes_epilogue=False, reads_views=("q", "k", "v"), offsets=True, by_sequence=True
    )

    def __post_init__(self) -> None:
        self.choose("softmax", self.softmax, SOFTMAX_MODES)
        if (self.softmax == "short") != isinstance(self.exponential, ShortExponential):
            raise self.refused(
                f"a {type(self.exponential).__name__} in {self.softmax} softmax",
                "a ShortExponential belongs to short softmax, the others to normalised softmax",
                "derive both from one preset",
            )
        for problem in window_problems(self.before, self.after):
            raise self.refused(*problem)
        check_requantisation(self, short=self.softmax == "short")
        if self.softmax != "short" and self.exponential.maximum > 65535:
            raise self.refused(
                f"exponentials up to {self.exponential.maximum} in normalised softmax",
                "this mode stores them in 16 bits",
                "derive the exponential with a smaller maximum",
            )

    @property
    def limits_distance(self) -> bool:
        """Whether a key can be too far from its query."""
        return min(self.before, self.after) < UNBOUNDED

    def needs_places(self, operands: Collection[str]) -> bool:
        """A window or a term of the scores is a matter of places."""
        terms = {"bias", "query_term", "key_term"}
        return self.limits_distance or not terms.isdisjoint(operands)

    def dtypes_of(self, operand: Operand) -> tuple[str, ...]:
        """The multiplier of the short softmax has 16 bits, and only its values may have."""
        short = self.softmax == "short"
        if operand.name == "multiplier":
            return ("int16",) if short else ("int32",)
        return ("int8",) if operand.name == "v" and not short else operand.dtypes

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels, and a bias has a row for each."""
        for problem in attention_problems(self.num_heads, dims):
            raise self.refused(*problem)

    def sequence_limit(self, types: Mapping[str, TensorType]) -> int | None:
        """As many tokens as the bias has positions."""
        if "bias" not in types:
            return None
        *_, extent = shape = static(types["bias"].shape)
        return extent if len(shape) == 3 else (extent + 1) // 2

    def multiply_accumulates(self, types: Mapping[str, TensorType]) -> int:
        """Q K^T and P V."""
        batch, queries, channels = static(types["q"].shape)
        return 2 * batch * queries * static(types["k"].shape)[1] * channels

    def body(self, domain: Domain[T], **operands: T) -> T:
        heads = domain.heads(self, operands)
        if isinstance(self.exponential, ShortExponential):
            context = self._short(heads, self.exponential)
        else:
            context = self._normalised(heads, self.exponential)
        requantised = self.shift, self.zero_point, self.low, self.high

        def entry(b: Index, h: Index, i: Index, d: Index, factor: Entry) -> Entry:
            if self.softmax == "short":
                return requantise_short(context(b, h, i, d), factor, 0, *requantised)
            return softmax.output_of(context(b, h, i, d), factor, *requantised)

        return heads.output(entry, operands["multiplier"], self.dtype)

    def changed_scores(self, heads: Heads[T], products: T) -> T | None:
        """Scores [batch, head, query, key] where they are something else than products.

        Before terms are added to them and keys masked. None here.
        """
        return None

    def _short(self, heads: Heads[T], k: ShortExponential) -> Callable[..., Entry]:
        """u8 exponentials times V, divided by the row's sum once per entry of the context."""
        products = heads.products()
        short_softmax.check_scores(*heads.score_bounds)
        if heads.wide_values:
            short_softmax.check_values(*heads.value_bounds)
        changed = self.changed_scores(heads, products)

        def key_offset(b: Index, h: Index, j: Index) -> Entry:
            offset = short_softmax.key_offset(heads.kept_key(b, j))
            if changed is not None:
                return offset
            return short_softmax.score_of(heads.key_correction(b, h, j), offset)

        offset = heads.per_key("key_offset", key_offset)

        def pair_term(b: Index, h: Index, i: Index, j: Index) -> Entry:
            bias = heads.bias(b, h, i, j) if heads.has_bias else 0
            if not heads.has_window:
                return bias
            return select(heads.in_window(b, i, j), bias, short_softmax.PAIR_MASKED)

        # A stage: the maximum and the exponentials read scores in two loops, and in both TVM's
        # elimination of common subexpressions would share the distances across them, wrongly.
        paired = heads.has_bias or heads.has_window
        term = heads.per_score("pair_term", pair_term) if paired else None

        def score(b: Index, h: Index, i: Index, j: Index) -> Entry:
            own = (products if changed is None else changed)[b, h, i, j]
            value = short_softmax.score_of(own, offset[b, h, j])
            return value if term is None else short_softmax.score_of(value, term[b, h, i, j])

        scores = heads.per_score("scores", score)
        top = heads.row_max("row_max", scores)
        e = heads.weights(
            "exponential",
            lambda b, h, i, j: short_softmax.exponential_of(
                scores[b, h, i, j], short_softmax.row_floor(top[b, h, i]), k
            ),
            k.maximum,
        )
        total = heads.row_sum("row_sum", e, k.maximum)
        largest = k.maximum * heads.key_count
        bits = heads.per_row(
            "row_bits", lambda b, h, i: short_softmax.sum_bits(total[b, h, i], largest), "int32"
        )
        factor = heads.per_row(
            "row_factor",
            lambda b, h, i: short_softmax.reciprocal(total[b, h, i], bits[b, h, i]),
            "int32",
        )
        products_v = heads.context(e, k.maximum)
        return lambda b, h, i, d: short_softmax.context_of(
            products_v(b, h, i, d), bits[b, h, i], factor[b, h, i], heads.wide_values
        )

    def _normalised(self, heads: Heads[T], k: Exponential) -> Callable[..., Entry]:
        """Probabilities of 8 bits, as published, times V."""
        products = heads.products()
        softmax.check_scores(*heads.score_bounds)
        changed = self.changed_scores(heads, products)
        near = None
        if heads.has_window:
            near = heads.per_score("near", lambda b, h, i, j: indicator(heads.in_window(b, i, j)))

        def score(b: Index, h: Index, i: Index, j: Index) -> Entry:
            if changed is None:
                value = heads.exact_score(products, b, h, i, j)
            else:
                value = changed[b, h, i, j]
            if heads.has_bias:
                value = value + heads.bias(b, h, i, j)
            value = softmax.masked_score(value, heads.kept_key(b, j))
            if near is None:
                return value
            # One select after the other: from both conditions in one, LLVM made code for AVX-512
            # that masked wrong keys where places are read from packed tokens.
            return softmax.masked_score(value, not_equal(near[b, h, i, j], 0))

        scores = heads.per_score("scores", score)
        top = heads.row_max("row_max", scores)

        def kept(b: Index, h: Index, i: Index, j: Index) -> Condition:
            if near is None:
                return heads.kept_key(b, j)
            return not_equal(scores[b, h, i, j], softmax.MASKED_SCORE)

        exponential = heads.per_score(
            "exponential",
            lambda b, h, i, j: softmax.exp_of(
                scores[b, h, i, j], top[b, h, i], kept(b, h, i, j), k
            ),
        )
        total = heads.row_sum("row_sum", exponential, k.maximum)
        factor = heads.per_row(
            "row_factor", lambda b, h, i: softmax.factor_of_sum(total[b, h, i]), "int64"
        )
        probability = heads.weights(
            "probability",
            lambda b, h, i, j: softmax.probability_of(exponential[b, h, i, j], factor[b, h, i]),
            255,
        )
        products_v = heads.context(probability, 255)
        return lambda b, h, i, d: softmax.context_of_probabilities(products_v(b, h, i, d))


class CappedAttention(Attention):
    """Attention of all heads whose scores are ``2^14 tanh(S q k^T / c)`` (softcap).

    Otherwise what `Attention` is. Terms of the scores are added, and keys masked, behind the cap,
    so a bias and the exponential have the scale ``c / 2^14``.

    Parameters
    ----------
    cap
        From ``ScoreCap.from_scale(S, c)``, S the scale of Q K^T.
    """

    cap: ScoreCap = field(kw_only=True, metadata=flattened("cap", ScoreCap))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (
            ("down_shift", 0, 24),
            ("up_shift", 0, 8),
            ("multiplier", 1, 2**15 - 1),
        ):
            if not low <= getattr(self.cap, name) <= high:
                raise self.refused(
                    f"cap_{name} is {getattr(self.cap, name)}",
                    f"allowed: {low} to {high}",
                    "derive the cap with ScoreCap.from_scale",
                )

    def changed_scores(self, heads: Heads[T], products: T) -> T:
        """Capped products."""

        def capped(b: Index, h: Index, i: Index, j: Index) -> Entry:
            return cap_score(heads.exact_score(products, b, h, i, j), self.cap)

        return heads.per_score("capped", capped)

"""What calibration remembers of an activation, and how it chooses a range from it.

`Statistics` see every token: per channel the smallest and largest value, streaming, and whole rows
of a bounded sample of tokens. Three observers turn that into the scale of an 8-bit form:

* ``minmax``: nothing that was seen is clipped;
* ``percentile``: the given share of the sample's absolute values is not clipped;
* ``mse``: of a grid of clippings, the one with the smallest squared error on the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import ActivationQuant

_CLIPPINGS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
# Rows of the sample on which clippings are compared; their error needs no more.
_CLIP_ROWS = 512
# Zero points further from the middle of 8 bits would leave requantisation in 16 bits no fraction
# bits: the range then reaches as far as it must instead.
_FARTHEST = 4 * 127
# Ranges of single channels are taken as they are from this many tokens on: the packaged texts'.
_MANY_TOKENS = 8000
# Of all-mpnet-base-v2's GELU outputs, single ones went 4 to 8 in texts that calibration had not
# seen, where it had seen 1.5 to 2.5, and the middling channel 3.
_RARE = 1.5
# An activation that is 0 throughout still needs a scale.
SMALLEST_RANGE = 1e-6
# That of a symmetric one is a middling one: of 1e-6 scores would have a scale that is too fine for
# the exponential.
_RANGE_OF_ZERO = 1.0


@dataclass
class Statistics:
    """Streaming statistics of one value.

    Attributes
    ----------
    low, high
        Smallest and largest value per channel, float64 [C].
    rows
        Sampled tokens, float32 [tokens, C] each.
    tokens
        How many were seen.
    first_sum
        Sum of the first tokens of texts, float64 [C].
    first_square_sum
        Sum of their squares, float64 [C].
    first_count
        How many these are.
    """

    low: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    high: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    tokens: int = 0
    first_sum: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    first_square_sum: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    first_count: int = 0

    def merge(self, later: Statistics) -> None:
        """Add what was seen of tokens that come after these."""
        self.low = np.minimum(self.low, later.low) if self.low.size else later.low
        self.high = np.maximum(self.high, later.high) if self.high.size else later.high
        self.rows += later.rows
        self.tokens += later.tokens
        self.first_sum = self.first_sum + later.first_sum
        self.first_square_sum = self.first_square_sum + later.first_square_sum
        self.first_count += later.first_count

    def update(
        self,
        values: NDArray[np.float32],
        sampled: NDArray[np.float32],
        first: NDArray[np.float32] | None = None,
    ) -> None:
        """See some tokens.

        Parameters
        ----------
        values
            All of them, [tokens, C].
        sampled
            Those to keep, [n, C], n may be 0; copied by the caller.
        first
            The first of each text, [texts, C]; without, or of none, nothing is known of these.
        """
        low, high = (ends.astype(np.float64) for ends in (values.min(axis=0), values.max(axis=0)))
        seen = Statistics(low, high, [sampled] if sampled.shape[0] else [], values.shape[0])
        if first is not None and first.shape[0]:
            seen.first_sum = first.sum(axis=0, dtype=np.float64)
            seen.first_square_sum = np.square(first, dtype=np.float64).sum(axis=0)
            seen.first_count = first.shape[0]
        self.merge(seen)

    @property
    def first(self) -> NDArray[np.float64] | None:
        """Mean of the first tokens of texts, [C]; None where none was seen."""
        return self.first_sum / self.first_count if self.first_count else None

    @property
    def first_deviation(self) -> NDArray[np.float64] | None:
        """How far first tokens are from their mean, as a root of mean squares, [C]."""
        if self.first is None:
            return None
        mean_square = self.first_square_sum / self.first_count
        return np.asarray(np.sqrt(np.maximum(mean_square - self.first**2, 0.0)))

    def shift(self, offset: NDArray[np.float64]) -> None:
        """Take a number off each channel of all that was seen; [C]."""
        self.low, self.high = self.low - offset, self.high - offset
        self.rows = [rows - offset.astype(np.float32) for rows in self.rows]
        if self.first_count:
            moved = offset * (self.first_count * offset - 2 * self.first_sum)
            self.first_square_sum = self.first_square_sum + moved
            self.first_sum = self.first_sum - self.first_count * offset

    def widened(self, margin: float) -> Statistics:
        """The same, as if the extremes were so many times as far from 0."""
        return replace(self, low=self.low * margin, high=self.high * margin)

    def at_least(self, magnitude: NDArray[np.float64] | float) -> Statistics:
        """The same, as if every channel went that far to both sides."""
        low, high = np.minimum(self.low, -magnitude), np.maximum(self.high, magnitude)
        return replace(self, low=low, high=high)

    @property
    def sample(self) -> NDArray[np.float32]:
        """All sampled tokens, [n, C]."""
        if len(self.rows) != 1:
            self.rows = [np.concatenate(self.rows)] if self.rows else []
        return self.rows[0] if self.rows else np.zeros((0, self.low.size), np.float32)

    @property
    def channel_magnitude(self) -> NDArray[np.float64]:
        """Largest absolute value per channel, [C]."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def channel_half_range(self) -> NDArray[np.float64]:
        """Half of the range per channel, [C], wider than what few tokens have shown of it."""
        return (self.high - self.low) / 2 * self._wider

    def channel_ends(self, rare: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ends of the range per channel, [C] each, wider than what few tokens have shown of it.

        Parameters
        ----------
        rare
            Whether channels may stand for what few texts have, as those of a feed-forward layer's
            activation do. Such a channel may not have met its own yet, and is clipped when it does:
            it is taken to go at least `_RARE` times as far from its mean as the middling channel
            went.
        """
        low, high = self.low, self.high
        if rare and self.sample.shape[0]:
            mean = self.sample.mean(axis=0, dtype=np.float64)
            low = np.minimum(low, mean - _RARE * np.median(mean - low))
            high = np.maximum(high, mean + _RARE * np.median(high - mean))
        middle, half = (low + high) / 2, (high - low) / 2 * self._wider
        return middle - half, middle + half

    @property
    def _wider(self) -> float:
        """The largest of n normal values grows with the root of log n."""
        few = math.log(_MANY_TOKENS) / math.log(max(self.tokens, 2))
        return math.sqrt(max(few, 1.0))

    @property
    def magnitude(self) -> float:
        """Largest absolute value."""
        return float(self.channel_magnitude.max())


@dataclass(frozen=True, eq=False)
class RangeForm:
    """What of an 8-bit form is decided before its range.

    Parameters
    ----------
    divisor
        Per channel [C]: the value is divided by it first (smoothing).
    splits
        Columns of each channel, int64 [C], if channels are split.
    unsigned
        0..255 with a zero point instead of -127..127.
    centred
        A zero point per channel, so that its range lies around the middle of the integers.
    in_phase
        Of a centred form: the mean of the first tokens is on the grid of each channel.
    ends
        Of a centred form: `Statistics.channel_ends`, where the caller has them.
    """

    divisor: NDArray[np.float64] | None = None
    splits: NDArray[np.int64] | None = None
    unsigned: bool = False
    centred: bool = False
    in_phase: bool = False
    ends: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def scaling(self) -> NDArray[np.float64]:
        """The divisor, or ones."""
        return np.ones(1) if self.divisor is None else self.divisor

    @property
    def parts(self) -> NDArray[np.int64] | NDArray[np.float64]:
        """Columns of each channel, or ones."""
        return np.ones(1) if self.splits is None else self.splits


def choose_range(
    statistics: Statistics,
    observer: str,
    percentile: float = 99.99,
    form: RangeForm = RangeForm(),
) -> ActivationQuant:
    """Choose the 8-bit form of a value.

    Parameters
    ----------
    statistics
        Of the value.
    observer : {"mse", "minmax", "percentile"}
        See the module.
    percentile
        For the observer of that name.
    form
        What is decided already.
    """
    sample = statistics.sample[:: max(statistics.sample.shape[0] // _CLIP_ROWS, 1)]
    if form.centred:
        return _around_centres(statistics, sample if observer == "mse" else sample[:0], form)
    scaling, parts = form.scaling, form.parts
    # Of an unsigned form further columns reach higher, not lower.
    low = min(float((statistics.low / scaling / (1 if form.unsigned else parts)).min()), 0.0)
    high = max(float((statistics.high / scaling / parts).max()), 0.0)
    sample = (sample / scaling).astype(np.float32)
    if observer == "percentile" and sample.size:
        low, high = _percentile_range((sample / parts).astype(np.float32), percentile, low, high)
    if observer != "mse" or not sample.size:
        return _over(low, high, form)
    # The error counts in the value's own units: a divided channel is multiplied again later.
    weight = (scaling**2).astype(np.float32)

    def error(quant: ActivationQuant) -> float:
        return float((_rounding_error(sample, quant) ** 2 * weight).mean())

    return min((_over(low * c, high * c, form) for c in _CLIPPINGS), key=error)


def finer(quant: ActivationQuant, limit: int) -> ActivationQuant:
    """The range of a symmetric form, from -`limit` to `limit` steps."""
    scale = quant.scale * max(-quant.low, quant.high) / limit
    return replace(quant, scale=scale, low=-limit, high=limit)


def _around_centres(
    statistics: Statistics, sample: NDArray[np.float32], form: RangeForm
) -> ActivationQuant:
    """Zero points that put the middle of each channel's range into the middle of the integers.

    Clippings are compared on the sample; without one, nothing is clipped.
    """
    scaling, parts = form.scaling, form.parts
    low, high = (0, 255) if form.unsigned else (-127, 127)
    first, last = form.ends or statistics.channel_ends(rare=form.unsigned)
    half, middle = (last - first) / 2, (first + last) / 2
    levels, bound = parts * (high - low) / 2, parts * (low + high) / 2

    def clipped(clipping: float) -> ActivationQuant:
        needed = np.maximum(
            half * clipping / levels, (np.abs(middle) + half * clipping) / (levels + _FARTHEST)
        )
        scale = max(float((needed / scaling).max()), SMALLEST_RANGE / 127)
        points = np.rint(bound - middle / (scale * scaling))
        limit = np.broadcast_to(bound, points.shape)
        points = np.clip(points, np.ceil(limit - _FARTHEST), np.floor(limit + _FARTHEST))
        return ActivationQuant(
            scale,
            low,
            high,
            channel_divisor=form.divisor,
            splits=form.splits,
            channel_zero_point=points.astype(np.int64),
            phase=phase_of(statistics, scale * scaling) if form.in_phase else None,
        )

    def error(quant: ActivationQuant) -> float:
        steps = quant.rounded(sample / quant.channel_scale)
        return float(((steps * quant.channel_scale - sample) ** 2).mean())

    return min(map(clipped, _CLIPPINGS), key=error) if sample.size else clipped(1.0)


def phase_of(statistics: Statistics, scale: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """What puts the first tokens' mean on the grid of each channel, [C], in steps.

    What a model has at the first token of a text, a special one, hardly depends on the text: in the
    inner layers of MiniLM it goes 20 to 400 times less far than at other tokens. All of them attend
    to it, so that its rounding is an error that all texts share, and most of what they have in
    common.
    """
    first = statistics.first
    if first is None:
        return None
    steps = first / scale
    return np.asarray(np.rint(steps) - steps)


def _percentile_range(
    sample: NDArray[np.float32], percentile: float, low: float, high: float
) -> tuple[float, float]:
    tail = (100.0 - percentile) / 2.0
    below, above = np.percentile(sample, [tail, 100.0 - tail])
    return max(low, min(float(below), 0.0)), min(high, max(float(above), 0.0))


def _over(low: float, high: float, form: RangeForm) -> ActivationQuant:
    """The form over a range of divided values that holds 0."""
    if not form.unsigned:
        magnitude = max(-low, high) or _RANGE_OF_ZERO
        scale = max(magnitude, SMALLEST_RANGE) / 127
        return ActivationQuant(scale, -127, 127, 0, form.divisor, form.splits)
    ideal = -low / max(high - low, SMALLEST_RANGE) * 255
    # Either neighbour of the ideal zero point wastes a little of one side: take the finer scale.
    scale, zero_point = min(
        (_unsigned_scale(low, high, zero_point), zero_point)
        for zero_point in {math.floor(ideal), math.ceil(ideal)}
        if (zero_point > 0 or low == 0) and (zero_point < 255 or high == 0)
    )
    return ActivationQuant(scale, 0, 255, zero_point, form.divisor, form.splits)


def _unsigned_scale(low: float, high: float, zero_point: int) -> float:
    """Finest scale at which 0..255 around the zero point covers [low, high]."""
    below = -low / zero_point if zero_point else 0.0
    above = high / (255 - zero_point) if zero_point < 255 else 0.0
    return max(below, above, SMALLEST_RANGE / 255)


def _rounding_error(sample: NDArray[np.float32], quant: ActivationQuant) -> NDArray[np.float32]:
    """Error of quantising `sample`, which is divided already, in single precision."""
    scale = np.float32(quant.scale)
    steps = np.rint(sample / scale)
    np.clip(steps, *quant.reach, out=steps)
    steps *= scale
    steps -= sample
    return steps

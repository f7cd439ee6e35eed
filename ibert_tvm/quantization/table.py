"""From statistics to a quantisation table."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.lower.required_scales import Reader
from ibert_tvm.relay_passes.lower.rule import FACTOR, FACTOR_BY_CHANNEL, FACTORS, MATMUL, TERM
from ibert_tvm.relay_passes.quantization_table import (
    WIDE_RANGE,
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from ibert_tvm.relay_passes.spec.parts import OPERAND_LIMIT
from ibert_tvm.relay_passes.spec.presets import Preset, preset
from ibert_tvm.relay_passes.spec.short_softmax import CONTEXT_BITS, VALUE_BITS

from ..common.types import Array
from .in_order import in_order
from .observers import SMALLEST_RANGE, RangeForm, Statistics, choose_range, finer, phase_of
from .options import CalibrationOptions
from .smoothing import OperandForm, OperandQuant, extra_columns, quantize_operand
from .weights import quantize_embedding

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.lower import Requirement

# Constants that attention's values do without, since the layer behind adds them again.
#
# The weights with which attention averages its values sum to 1. So whatever is taken off a channel
# of the values is missing in the context, and nothing else: the next layer's bias takes its product
# with the weights, which is made of the float weights, so that this part is not even rounded. The
# values then lie around 0, and 8 bits serve a smaller range.


def take_off_offsets(
    needed: Mapping[str, Requirement], statistics: Mapping[str, Statistics]
) -> dict[str, NDArray[np.float64]]:
    """Choose what is taken off the values, and take it off the statistics.

    Parameters
    ----------
    needed
        From `ibert_tvm.relay_passes.lower.requirements`.
    statistics
        Of the values and of the contexts; changed.

    Returns
    -------
    dict of str to numpy.ndarray
        By the canonical name of the layer that computes the values, float64 [channels]: the middle
        of what was seen of a channel.
    """
    offsets = {}
    for name, value in needed.items():
        context = _context(value, needed)
        if context is None:
            continue
        seen = statistics[name]
        offsets[name] = (seen.low + seen.high) / 2
        statistics[context].shift(offsets[name])
        seen.shift(offsets[name])
        # A range around 0 has no side to spare for what few tokens have not shown.
        seen.low, seen.high = -seen.channel_half_range, seen.channel_half_range
    return offsets


def move_onto_grid(
    name: str,
    needed: Mapping[str, Requirement],
    statistics: Mapping[str, Statistics],
    scale: NDArray[np.float64],
) -> NDArray[np.float64] | float:
    """Take a fraction of a step more off values, so that their first tokens' mean is not rounded.

    Parameters
    ----------
    name
        Of the values.
    needed
        As above.
    statistics
        Of the values and of the contexts; changed.
    scale
        Steps of the values, one or one per channel.

    Returns
    -------
    numpy.ndarray or float
        What is taken off besides, [channels]; 0 where no first tokens were seen.
    """
    phase = phase_of(statistics[name], scale)
    context = _context(needed[name], needed)
    if phase is None or context is None:
        return 0.0
    more = -phase * scale
    for shifted in (name, context):
        statistics[shifted].shift(more)
    return more


def _context(value: Requirement, needed: Mapping[str, Requirement]) -> str | None:
    """The mean of tokens of a layer's results, if all that reads it are layers."""
    whole = value.section == "weights" and not value.stream and not value.is_output
    if not whole or [reader.form for reader in value.readers] != [FACTOR_BY_CHANNEL]:
        return None
    mean = needed[value.readers[0].name]
    forms = {reader.form for reader in mean.readers}
    alone = forms == {MATMUL} and not mean.stream and not mean.is_output
    return mean.name if mean.need.averages and alone and mean.channels == value.channels else None


# Text outside the calibration data may go further than it did. Streams have bits to spare for
# that: 16-bit ones use two thirds of their range, 15-bit ones three quarters, wide sums an eighth
# of 21 bits.
_HEADROOM = 1.5
_SHORT_HEADROOM = 1.33
STREAM_HIGH = 2**15 - 1
SHORT_HIGH = 2**14 - 1
# A 15-bit sum must leave this many steps to the median channel: some models have a few channels
# that are hundreds of times larger than the others.
_CHANNEL_STEPS = 200
_SUM_STEPS = 2**17
SUM_HIGH = 2**19 - 1
# Positions and kinds of tokens are few beside the vocabulary, and added to every token.
_FINE_SHARE = 1 / 16
# Steps of 11 bits are so fine that a range with room for later texts costs next to nothing.
_WIDE_HEADROOM = 1.5
# Steps of 8 bits from their mean that first tokens may be: MiniLM's inner layers have 0.05 to 0.1,
# its last two 0.4 and 0.8.
_ALIKE = 0.25
# Of fewer texts nothing is known of others.
_FEW_TEXTS = 16
# The context comes with 7 fraction bits of V's step and must not have finer steps in any channel,
# however far averaging takes it below V: MiniLM's reach a tenth of that.
_CONTEXT_LIMIT = 127 << 2
# Steps of 8 bits that a range gets which would have finer steps than it may: some are clipped away.
_ROOM = 1024
# A bias in units of its accumulator; sums of products have the rest of 31 bits.
_LARGEST_BIAS = 2**29
# A value that calibration saw next to nothing of still gets a range.
_SMALLEST_STREAM = 0.5
# One that is this small throughout, and what a layer yields, keeps its bits.
_SMALL_STREAM = _SMALLEST_STREAM / 128


@dataclass(frozen=True)
class TableReport:
    """What was chosen, for the record in the artefact.

    Attributes
    ----------
    alphas
        Smoothing strength by the canonical name of the smoothed activation.
    errors
        Relative squared error of the outputs of the layers that read it.
    by_row
        Canonical names of the activations that have a scale per token.
    coarser
        How many times coarser queries are rounded than they could be, by the canonical name of
        attention whose scores are nearly equal.
    """

    alphas: dict[str, float]
    errors: dict[str, float]
    by_row: list[str] = field(default_factory=list)
    coarser: dict[str, float] = field(default_factory=dict)


class TableBuilder:
    """Builds the quantisation table of one model.

    Parameters
    ----------
    needed
        From `ibert_tvm.relay_passes.lower.requirements`.
    parameters
        Float weights of the model.
    preset_name
        "accurate" or "paper".
    options
        How scales are chosen.
    fixed
        Layers whose integers are given, and stay as they are.
    """

    def __init__(
        self,
        needed: Mapping[str, Requirement],
        parameters: Mapping[str, Array],
        preset_name: str,
        options: CalibrationOptions,
        fixed: Container[str] = (),
    ) -> None:
        self.needed = needed
        self.parameters = parameters
        self.preset: Preset = preset(preset_name)
        self.options = options
        self.fixed = fixed
        self._narrow: set[str] = set()

    @property
    def observed(self) -> list[str]:
        """Names of the values that must be observed."""
        return [name for name, value in self.needed.items() if value.matmul or value.stream]

    @property
    def operands(self) -> list[str]:
        """Names of the values that matrix products read."""
        return [name for name, value in self.needed.items() if value.matmul]

    @property
    def sampled(self) -> list[str]:
        """Those of them whose rows must be sampled: extremes say all of a range without layers."""
        if self.options.observation.observer != "minmax":
            return self.operands
        return [name for name in self.operands if self.needed[name].layers]

    def build(
        self, statistics: dict[str, Statistics], advance: Callable[[], None]
    ) -> tuple[QuantizationTable, TableReport]:
        """Choose all scales and integer weights.

        Parameters
        ----------
        statistics
            Of every name in `observed`. Samples are dropped as they are used up.
        advance
            Called after each of `operands`.

        Returns
        -------
        table : QuantizationTable
        report : TableReport
        """
        matmul: dict[str, ActivationQuant] = {}
        weights: dict[str, WeightQuant] = {}
        report = TableReport({}, {})
        stream = self._streams(statistics)
        offsets = {}
        if self.options.forms.value_offsets and self.preset.smoothing:
            offsets = take_off_offsets(self.needed, statistics)
        self._narrow = self._narrow_values(statistics)
        of_layers = [name for name in self.operands if self._layers(name)]
        # What layers read of attention depends on what that averages.
        for name in self.operands:
            if name in of_layers:
                continue
            quant = self._attention_operand(name, statistics[name])
            if self.options.forms.first_tokens and name in offsets:
                offsets[name] = offsets[name] + move_onto_grid(
                    name, self.needed, statistics, quant.channel_scale
                )
            matmul[name] = quant
            statistics[name].rows.clear()
            advance()

        def choose(name: str) -> OperandQuant:
            least = self._least_steps(name, averaged)
            return self._layer_operand(name, statistics[name], least)

        averaged = dict(matmul)
        # Those that take longest come first, or one processor would wait for the last of them.
        longest = sorted(of_layers, key=lambda name: self.needed[name].channels, reverse=True)
        found: dict[str, OperandQuant] = {}
        for name, chosen in zip(longest, in_order(choose, longest), strict=True):
            found[name] = chosen
            statistics[name].rows.clear()
            advance()
        for name in of_layers:
            chosen = found[name]
            matmul[name] = chosen.activation
            taken_off = offsets.get(self._averaged(name) or "")
            for layer, rows in chosen.weights.items():
                bias = self.parameters[self.needed[layer].bias].astype(np.float64)
                bias = bias - offsets.get(layer, 0.0)
                if taken_off is not None:
                    bias = bias + self.parameters[self.needed[layer].weight] @ taken_off
                weights[layer] = _with_room(rows, bias, chosen.activation)
            report.alphas[name] = chosen.alpha
            report.errors[name] = chosen.error
            if chosen.activation.by_row:
                report.by_row.append(name)
        matmul = {name: matmul[name] for name in self.operands}
        report.coarser.update(self._coarsen_factors(matmul))
        table = QuantizationTable(
            self.preset.name,
            matmul,
            stream,
            weights,
            self.embeddings(),
            centred=self.options.search.centre,
            offsets=offsets,
            calibrated=True,
        )
        return table, report

    def _layer_operand(
        self, name: str, statistics: Statistics, least: NDArray[np.float64] | float
    ) -> OperandQuant:
        """Choose the form of what layers read, of no finer steps than `_least_steps` says."""
        seen, readers = self._with_margin(name, statistics), self._layers(name)
        form = self._operand_form(name, self._limit(name))
        chosen = quantize_operand(seen, readers, self.options, form)
        if (chosen.activation.channel_scale < least).any():
            seen = seen.at_least(_ROOM * least)
            chosen = quantize_operand(seen, readers, self.options, form)
        return chosen

    def _least_steps(
        self, name: str, matmul: Mapping[str, ActivationQuant]
    ) -> NDArray[np.float64] | float:
        """Steps, one or per channel, that what averages values must have at least; 0 for others.

        An average is known to a fraction of a step of the values, and requantised to 8 bits by
        factors below 1.
        """
        values = self._averaged(name)
        if values is None or self.preset.softmax != "short":
            return 0.0
        quant = matmul[values]
        wide = quant.high > WIDE_RANGE[1] >> VALUE_BITS
        steps = quant.channel_scale * 2.0 ** ((VALUE_BITS if wide else 0) - CONTEXT_BITS)
        return steps if steps.size in (1, self.needed[name].channels) else float(steps.max())

    def _averaged(self, name: str) -> str | None:
        """What attention of this name averages; None if it is something else."""
        reader = Reader(name, FACTOR_BY_CHANNEL)
        needed = self.needed
        return next((other for other in self.operands if reader in needed[other].readers), None)

    def _coarsen_factors(self, matmul: dict[str, ActivationQuant]) -> dict[str, float]:
        """Give queries a coarser scale where products with keys would be too fine.

        Their scores are then nearly equal, and so are the weights that attention makes of them.
        """
        coarser = {}
        for name, value in self.needed.items():
            factors = [
                other
                for other, operand in self.needed.items()
                for reader in operand.readers
                if (reader.name, reader.form) == (name, FACTOR)
            ]
            if value.need.finest is None or not set(factors) <= matmul.keys():
                continue
            bias = self.parameters[value.bias] if value.bias else np.zeros(1)
            least = value.need.finest(float(np.abs(bias).max()))
            product = math.prod(matmul[other].scale for other in factors)
            if product < least:
                share = least / product if len(set(factors)) > 1 else math.sqrt(least / product)
                first = matmul[factors[0]]
                matmul[factors[0]] = replace(first, scale=first.scale * share)
                coarser[name] = share
        return coarser

    def embeddings(self) -> dict[str, WeightQuant]:
        """Tables of rows: of 16 bits where they are small beside the others, if asked for."""
        tables = {
            name: self.parameters[value.weight]
            for name, value in self.needed.items()
            if value.section == "embeddings"
        }
        most = _FINE_SHARE * sum(table.size for table in tables.values())
        per_row, fine = self.preset.embedding_scale_per_row, self.options.forms.fine_tables
        return {
            name: quantize_embedding(table, per_row, fine and per_row and table.size <= most)
            for name, table in tables.items()
        }

    def _operand_form(self, name: str, limit: int) -> OperandForm:
        """What may be done with a value that layers read."""
        return OperandForm(
            smooth=self.preset.smoothing and self._may_divide(name),
            compensate=self.preset.compensated_rounding,
            unsigned=self._unsigned(name) and not limit,
            columns=0 if limit else self._extra_columns(name),
            may_be_by_row=not self.needed[name].static and not limit,
            centred=self._has_zero_points(name) and not limit,
            limit=limit,
        )

    def _layers(self, name: str) -> dict[str, NDArray[np.float32]]:
        """Matrices of the linear layers that read a value, by name; none where one is fixed."""
        layers = self.needed[name].layers
        if any(layer in self.fixed for layer in layers):
            return {}
        return {layer: self.parameters[self.needed[layer].weight] for layer in layers}

    def _may_divide(self, name: str) -> bool:
        """Whether the 8-bit form is made by a requantisation, and its readers can multiply again.

        Pixels are quantised by the caller, with one scale.
        """
        value = self.needed[name]
        return not value.need.given and FACTOR not in value.factor_forms

    def _extra_columns(self, name: str) -> int:
        """Columns into which channels with outliers may be split: layers compute them, or copies.

        What attention and rotations yield has 8 bits already.
        """
        value, options = self.needed[name], self.options
        if not self.preset.split_outliers or not self._may_divide(name):
            return 0
        if value.of_layers:
            return extra_columns(value.channels, options.forms.split_share)
        return 0 if value.static else extra_columns(value.channels, options.forms.copied_share)

    def _limit(self, name: str) -> int:
        """Largest integer of what linear layers read with more than 8 bits; 0 for what has 8.

        What norms, activation functions and attention yield may have more.
        """
        value, averages = self.needed[name], self.needed[name].need.averages
        may = self._may_divide(name) and not value.factor_forms
        may = may and (averages or not value.static) and self.preset.softmax == "short"
        if not (self.options.forms.wide_operands and may):
            return 0
        return _CONTEXT_LIMIT if averages else OPERAND_LIMIT

    def _unsigned(self, name: str) -> bool:
        """Whether the values lie on one side of 0, so that a sign would waste half the range."""
        value = self.needed[name]
        return self.preset.unsigned_gelu_output and value.need.one_sided and not value.factor_forms

    def _has_zero_points(self, name: str) -> bool:
        """Whether each channel may have a zero point: where a requantisation makes the integers."""
        may = self.preset.smoothing and not self.needed[name].static and self._may_divide(name)
        return may and self.options.forms.channel_zero_points

    def _with_margin(self, name: str, statistics: Statistics) -> Statistics:
        """Statistics of what attention yields, as if it went further; of wide operands likewise."""
        if self._limit(name):
            return statistics.widened(_WIDE_HEADROOM)
        wider = self.preset.smoothing and self.needed[name].need.averages
        return statistics.widened(self.options.observation.margin) if wider else statistics

    def _attention_operand(self, name: str, statistics: Statistics) -> ActivationQuant:
        divisor, seen = None, self.options.observation
        forms = self.needed[name].factor_forms
        if not forms:  # fixed layers read it
            form = RangeForm(unsigned=self._unsigned(name))
            return choose_range(statistics, seen.observer, seen.percentile, form)
        if self.preset.value_scale_per_channel and forms == {FACTOR_BY_CHANNEL}:
            # The context is requantised per channel anyway, so every channel of V has its own
            # scale at no cost.
            magnitude = statistics.channel_magnitude
            top = float(magnitude.max())
            if top > 0:
                divisor = np.maximum(magnitude / top, 2.0**-6)
        wide = self._may_be_wide(name) and name not in self._narrow
        if wide:
            statistics = statistics.widened(_WIDE_HEADROOM)
        quant = choose_range(statistics, seen.observer, seen.percentile, RangeForm(divisor))
        return finer(quant, WIDE_RANGE[1]) if wide else quant

    def _narrow_values(self, statistics: Mapping[str, Statistics]) -> set[str]:
        """What attention averages in 8 bits although it may have more: if that is most of it.

        First tokens have the largest weights, so more bits are for them above all. Where they are
        so alike in all texts that a grid with their mean rounds none of them, 8 bits do. Programs
        of few such layers do without: a second kind of attention is code of its own.
        """
        averaged = [name for name in self.operands if self._may_be_wide(name)]
        alike = {name for name in averaged if self._first_tokens_alike(statistics[name])}
        return alike if 2 * len(alike) > len(averaged) else set()

    def _first_tokens_alike(self, statistics: Statistics) -> bool:
        """Whether first tokens of texts are within `_ALIKE` steps of 8 bits of their mean."""
        deviation = statistics.first_deviation
        few = statistics.first_count < _FEW_TEXTS
        if deviation is None or few or not self.options.forms.first_tokens:
            return False
        steps = 127 * deviation / np.maximum(statistics.channel_magnitude, SMALLEST_RANGE)
        return float(np.square(steps).mean()) <= _ALIKE**2

    def _may_be_wide(self, name: str) -> bool:
        """Whether all that reads a value averages it, in arithmetic that has room for more bits."""
        readers = self.needed[name].readers
        averaged = all(
            reader.form == FACTOR_BY_CHANNEL and self.needed[reader.name].need.averages
            for reader in readers
        )
        return self.options.forms.wide_values and self.preset.softmax == "short" and averaged

    def _streams(self, statistics: Mapping[str, Statistics]) -> dict[str, ActivationQuant]:
        result: dict[str, ActivationQuant] = {}
        # Backwards, so that a sum that only feeds another sum can take that one's scale: its
        # requantisation then disappears.
        for name, value in reversed(list(self.needed.items())):
            if not value.stream:
                continue
            if value.stream_for is not None:
                result[name] = value.stream_for(statistics[name].magnitude * _SHORT_HEADROOM)
                continue
            if not value.need.sums:
                largest = _range(statistics[name].magnitude * _HEADROOM, value.section == "weights")
                result[name] = ActivationQuant(largest / STREAM_HIGH, -STREAM_HIGH, STREAM_HIGH)
                continue
            sums = {reader.name for reader in value.readers if reader.form == TERM}
            if len(sums) == 1 and len(value.readers) == 1 and sums <= result.keys():
                following = result[sums.pop()]
                result[name] = ActivationQuant(following.scale, following.low, following.high)
            else:
                result[name] = self._sum(statistics[name], value)
        return result

    def _sum(self, statistics: Statistics, value: Requirement) -> ActivationQuant:
        """Quantise a sum: in 15 bits where that serves most channels, otherwise in 20."""
        finest = [r.finest for r in value.readers if r.finest and r.form not in FACTORS]
        least = max((scale(0.0) for scale in finest), default=0.0)
        short = max(_range(statistics.magnitude * _SHORT_HEADROOM) / SHORT_HIGH, least)
        median = float(np.median(statistics.channel_magnitude))
        if value.need.short and median >= _CHANNEL_STEPS * short:
            return ActivationQuant(short, -SHORT_HIGH, SHORT_HIGH)
        scale = max(_range(statistics.magnitude) / _SUM_STEPS, least)
        return ActivationQuant(scale, -SUM_HIGH, SUM_HIGH)


def _range(magnitude: float, may_be_small: bool = True) -> float:
    """Return what a stream reaches, which calibration saw go that far."""
    small = may_be_small and 0 < magnitude < _SMALL_STREAM
    return magnitude if small else max(magnitude, _SMALLEST_STREAM)


def _with_room(rows: WeightQuant, bias: NDArray[np.float64], x: ActivationQuant) -> WeightQuant:
    """Give rows whose bias is far larger than their products steps that leave it in int32."""
    scale = np.maximum(rows.scale, np.abs(bias) / (x.scale * _LARGEST_BIAS))
    if np.array_equal(scale, rows.scale):
        return rows
    values = np.rint(rows.values * (rows.scale / scale)[:, None])
    return WeightQuant(values.astype(rows.values.dtype), scale)

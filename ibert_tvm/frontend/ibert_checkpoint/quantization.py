"""What an `ibert` checkpoint knows of its own quantisation, as a quantisation table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import (
    RELEASED_STREAM_LIMIT,
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from ibert_tvm.relay_passes.spec.released.exponential import MAX_Z, top_of_polynomial

from ...common.errors import ModelError
from ...common.types import Floats, Weights
from ...model.heads import HEADS
from .canonical import layer
from .config import IbertConfig

# The QuantActs of an `ibert` model: their ranges, and which canonical value each one rounds.
#
# A QuantAct remembers the smallest and the largest value that training saw, as a moving average,
# and rounds to ``max(|x_min|, |x_max|) / (2^(bits-1) - 1)``. Some are never used by the released
# code (`embeddings_act2`, the `activation` of every LayerNorm), so their ranges mean nothing.

# A range is reset to +-1e-5 and counts as new below 1.1e-5, as released.
_NEW = np.float32(1.1e-5)

FIRST = "grids"
LAST = "matmul"
SUM = "stream"


@dataclass(frozen=True)
class Range:
    """What a QuantAct saw.

    Parameters
    ----------
    low, high
        Smallest and largest value, float32 numbers.
    """

    low: float
    high: float

    @property
    def calibrated(self) -> bool:
        """Whether training moved it: it is not the initial +-1e-5, and not 0."""
        return bool(np.float32(self.low) <= -_NEW or np.float32(self.high) >= _NEW)

    def scale(self, bits: int) -> float:
        """Scale of the integers: a float32 number, as the released code computes it."""
        largest = max(abs(np.float32(self.low)), abs(np.float32(self.high)), _SMALLEST)
        return float(largest / np.float32(2 ** (bits - 1) - 1))

    def quant(self, bits: int) -> ActivationQuant:
        """Integers of ``bits`` bits, the whole of them."""
        return ActivationQuant(self.scale(bits), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


@dataclass(frozen=True)
class QuantAct:
    """One QuantAct that the released forward pass uses.

    Parameters
    ----------
    name
        Its module path.
    bits
        Of its integers.
    section
        Where it goes in the quantisation table: ``grids`` for the first rounding of a value,
        ``matmul`` for the last one before a matrix product, ``stream`` for a sum; empty for the
        exponentials of a softmax, whose range is in units of their integers.
    values
        Canonical names of the values that it rounds.
    """

    name: str
    bits: int
    section: str
    values: tuple[str, ...]


def quant_acts(layers: int) -> tuple[QuantAct, ...]:
    """List the QuantActs of an encoder, in the order of their use.

    Parameters
    ----------
    layers
        Encoder layers.
    """
    sums = ("embeddings.add_token_type", "embeddings.add_position")
    result = [
        QuantAct("embeddings.embeddings_act1", 16, SUM, sums),
        QuantAct("embeddings.output_activation", 8, FIRST, ("embeddings.LayerNorm",)),
    ]
    for index in range(layers):
        path = layer(index)
        inner, attended = f"{path}.attention.self", f"{path}.attention.output"
        norm, gelu = f"{attended}.LayerNorm", f"{path}.intermediate.gelu"
        result += [
            QuantAct(f"{inner}.{part}_activation", 8, LAST, (f"{inner}.{part}",))
            for part in ("query", "key", "value")
        ]
        result += [
            QuantAct(f"{inner}.softmax.act", 16, "", (inner,)),
            QuantAct(f"{inner}.output_activation", 8, LAST, (inner,)),
            QuantAct(f"{attended}.ln_input_act", 22, SUM, (f"{attended}.add",)),
            QuantAct(f"{attended}.output_activation", 8, FIRST, (norm,)),
            QuantAct(f"{path}.pre_intermediate_act", 8, LAST, (norm,)),
            QuantAct(f"{path}.intermediate.output_activation", 8, FIRST, (gelu,)),
            QuantAct(f"{path}.pre_output_act", 8, LAST, (gelu,)),
            QuantAct(f"{path}.output.ln_input_act", 22, SUM, (f"{path}.output.add",)),
            QuantAct(f"{path}.output.output_activation", 8, FIRST, (f"{path}.output.LayerNorm",)),
        ]
    return tuple(result)


def range_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all buffers of an encoder's QuantActs and layer norms, by name.

    Parameters
    ----------
    layers
        Encoder layers.
    """
    result: dict[str, tuple[int, ...]] = {}
    for act in quant_acts(layers):
        result |= {f"{act.name}.x_min": (1,), f"{act.name}.x_max": (1,)}
    return result | {f"{name}.shift": (1,) for name in layer_norms(layers)}


def layer_norms(layers: int) -> list[str]:
    """Canonical names of the layer norms of an encoder, which are their module paths."""
    names = ["embeddings.LayerNorm"]
    for index in range(layers):
        names += [f"{layer(index)}.attention.output.LayerNorm", f"{layer(index)}.output.LayerNorm"]
    return names


def ranges_of(layers: int, buffers: Weights) -> dict[str, Range]:
    """Read the ranges.

    Parameters
    ----------
    layers
        Encoder layers.
    buffers
        What `range_shapes` names.

    Returns
    -------
    dict of str to Range
        By QuantAct.
    """
    return {
        act.name: Range(
            float(buffers[f"{act.name}.x_min"][0]), float(buffers[f"{act.name}.x_max"][0])
        )
        for act in quant_acts(layers)
    }


# Integer weights, derived again from the float weights as the released code derives them.
#
# In float32, with ``round((1 / S) w)`` to the nearest, halves to even, clamped to -127..126: the
# asymmetric end is the released code's.

_TOP = 127
_SMALLEST = np.float32(1e-8)


def _integers(weight: Floats, scale: Floats) -> NDArray[np.int8]:
    steps = np.rint((np.float32(1.0) / scale)[:, None] * weight)
    return np.clip(steps, -_TOP, _TOP - 1).astype(np.int8)


def linear_integers(weight: Floats) -> WeightQuant:
    """Int8 rows of a linear layer, a scale per row.

    Parameters
    ----------
    weight
        float32 [N, K].

    Returns
    -------
    WeightQuant
        Its scales are float32 numbers.
    """
    largest = np.maximum(np.abs(weight).max(axis=1), _SMALLEST)
    scale = largest / np.float32(_TOP)
    return WeightQuant(_integers(weight, scale), scale.astype(np.float64))


def embedding_integers(table: Floats) -> WeightQuant:
    """Int8 rows of an embedding, one scale for all.

    Parameters
    ----------
    table
        float32 [V, C].
    """
    largest = np.maximum(np.abs(table).max(), _SMALLEST)
    scale = np.full(table.shape[0], largest / np.float32(_TOP), np.float32)
    return WeightQuant(_integers(table, scale), scale.astype(np.float64))


PRESET = "released"
# tanh is 1 to seven digits from 8 on.
_TANH_RANGE = 8.0
_TANH_HIGH = 2**15 - 1
_BYTE_HIGH = 127


@dataclass(frozen=True, eq=False)
class IbertQuantization:
    """Ranges and weights of a checkpoint, and how they become a table of the preset `released`.

    Attributes
    ----------
    config
        Sizes and how the checkpoint was trained.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    output
        Canonical name of the output.
    weights
        Float weights by canonical parameter name.
    ranges
        By module path of the QuantAct.
    norm_shifts
        By canonical name of the layer norm.
    where
        The folder, for messages.
    """

    config: IbertConfig
    head: str
    output: str
    weights: Weights
    ranges: Mapping[str, Range]
    norm_shifts: Mapping[str, int]
    where: str

    @property
    def trained(self) -> bool:
        """Whether the checkpoint was trained with quantisation; if not its ranges mean nothing."""
        return self.config.quant_mode

    @property
    def uncalibrated(self) -> tuple[str, ...]:
        """QuantActs without a range that the integer program needs one of.

        Where softmax ran in float during training its exponentials have no range, and need none:
        their largest value is known.
        """
        return tuple(
            act.name
            for act in quant_acts(self.config.num_hidden_layers)
            if not self.ranges[act.name].calibrated
            and (act.section or not self.config.dequantised("softmax"))
        )

    @property
    def to_observe(self) -> tuple[str, ...]:
        """Canonical values whose ranges calibration has to supply, each once."""
        missing = set(self.uncalibrated)
        return tuple(
            dict.fromkeys(
                value
                for act in quant_acts(self.config.num_hidden_layers)
                if act.name in missing and act.section
                for value in act.values
            )
        )

    def refuse_without_calibration(self) -> None:
        """Refuse a checkpoint that cannot be quantised from its own ranges.

        Raises
        ------
        ModelError
            If it was not trained with quantisation, or lacks ranges; lists them.
        """
        if not self.trained:
            raise ModelError(
                "the checkpoint was not trained with quantisation",
                where=self.where,
                why="quant_mode is false in config.json, so it has float weights and no ranges "
                "that belong to them",
                todo="give calibration texts (--calibration FILE): it is then quantised like any "
                "float model",
            )
        missing = self.uncalibrated
        if missing:
            raise ModelError(
                f"{len(missing)} of {len(self.ranges)} ranges of the checkpoint were never "
                "calibrated",
                where=self.where,
                why=f"x_min and x_max are 0 or +-1e-5 in: {', '.join(missing)}",
                todo="train with quantisation for some steps, or give calibration texts "
                "(--calibration FILE), from which these ranges, and no others, are taken",
            )

    def table(self, observed: Mapping[str, float] | None = None) -> QuantizationTable:
        """Make the quantisation table.

        Parameters
        ----------
        observed
            Largest absolute value by canonical name, for `to_observe`.

        Returns
        -------
        QuantizationTable
            Of the preset `released`, complete.

        Raises
        ------
        ModelError
            If ranges are missing.
        """
        if observed is None:
            self.refuse_without_calibration()
        observed = observed or {}
        sections: dict[str, dict[str, ActivationQuant]] = {FIRST: {}, LAST: {}, SUM: {}}
        for act in quant_acts(self.config.num_hidden_layers):
            known = self.ranges[act.name]
            if not known.calibrated and act.section:
                largest = max(observed[value] for value in act.values)
                known = Range(-largest, largest)
            if act.section:
                quant = known.quant(act.bits)
                sections[act.section] |= {value: quant for value in act.values}
        grids, matmul, stream = sections[FIRST], sections[LAST], sections[SUM]
        for name, quant in grids.items():
            matmul.setdefault(name, quant)  # read as it is where no second QuantAct follows
            stream[name] = quant
        for index in range(self.config.num_hidden_layers):
            inner = f"{layer(index)}.attention.self"
            stream[f"{inner}.exponential"] = self._exponentials(inner, matmul)
        weights = self._linear_weights()
        self._head(weights, matmul, stream)
        embeddings = {
            f"embeddings.{part}_embeddings": embedding_integers(
                self.weights[f"embeddings.{part}_embeddings.weight"]
            )
            for part in ("word", "token_type", "position")
        }
        return QuantizationTable(
            PRESET, matmul, stream, weights, embeddings, grids, dict(self.norm_shifts)
        )

    def _exponentials(self, inner: str, matmul: Mapping[str, ActivationQuant]) -> ActivationQuant:
        """Scale of the exponentials, in units of their own integers; as trained where it was."""
        known = self.ranges[f"{inner}.softmax.act"]
        if known.calibrated:
            return known.quant(16)
        scale = matmul[f"{inner}.query"].scale * matmul[f"{inner}.key"].scale
        top = top_of_polynomial(scale / math.sqrt(self.config.head_size)) * 2.0**MAX_Z
        return Range(0.0, float(np.float32(top))).quant(16)

    def _linear_weights(self) -> dict[str, WeightQuant]:
        return {
            name.removesuffix(".weight"): linear_integers(array)
            for name, array in self.weights.items()
            if array.ndim == 2 and not name.startswith("embeddings.")
        }

    def _head(
        self,
        weights: Mapping[str, WeightQuant],
        matmul: dict[str, ActivationQuant],
        stream: dict[str, ActivationQuant],
    ) -> None:
        """Scales of a head, which the released code leaves in float: known bounds, no data."""
        count = self.config.num_hidden_layers
        last = f"{layer(count - 1)}.output.LayerNorm"
        for name in ("pooler", "classifier"):
            matmul[f"{name}.first_token"] = matmul[last]
            stream[f"{name}.dense"] = ActivationQuant(
                _TANH_RANGE / _TANH_HIGH, -_TANH_HIGH, _TANH_HIGH
            )
        one = ActivationQuant(1.0 / _BYTE_HIGH, -_BYTE_HIGH, _BYTE_HIGH)
        matmul["classifier.tanh"] = one
        if self.output in weights:
            squashed = any(step.op == "tanh" for step in HEADS[self.head].checkpoint or ())
            source = one if squashed else matmul[last]
            rows = weights[self.output]
            sums = np.abs(rows.values.astype(np.int64)).sum(axis=1) * rows.scale * source.scale
            bias = np.abs(self.weights[f"{self.output}.bias"].astype(np.float64))
            largest = float((sums * -source.low + bias).max())
            high = RELEASED_STREAM_LIMIT - 1
            stream[self.output] = ActivationQuant(max(largest, 1e-6) / high, -high, high)

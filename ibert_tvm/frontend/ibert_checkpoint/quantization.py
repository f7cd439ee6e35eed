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
from ...model.heads import HEADS
from .canonical import layer
from .config import IbertConfig
from .quant_acts import FIRST, LAST, SUM, Range, quant_acts

# Integer weights, derived again from the float weights as the released code derives them.
#
# In float32, with ``round((1 / S) w)`` to the nearest, halves to even, clamped to -127..126: the
# asymmetric end is the released code's.

_TOP = 127
_SMALLEST = np.float32(1e-8)


def _integers(weight: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.int8]:
    steps = np.rint((np.float32(1.0) / scale)[:, None] * weight)
    return np.clip(steps, -_TOP, _TOP - 1).astype(np.int8)


def linear_integers(weight: NDArray[np.float32]) -> WeightQuant:
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


def embedding_integers(table: NDArray[np.float32]) -> WeightQuant:
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
    weights: Mapping[str, NDArray[np.float32]]
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

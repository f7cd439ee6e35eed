"""Matrices of 4 bits in training: scales of their groups are learned, and what they begin with.

A weight is rounded as `ibert quantize` rounds what was trained
(`ibert_tvm.model.trained_scales.nearest_in_groups`); gradients are straight-through within the half
bytes, and those of the groups' scales are LSQ's. Rounding changes outputs far more than that of
activations to 8 bits does, so steps without labels leave activations in float, which takes a third
of the time (`IntegerModel.float_values`); what is scored, and kept, are the integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ibert_tvm.relay_passes.canonical.evaluate import FloatStep
from ibert_tvm.relay_passes.canonical.operators.norms import Norm
from ibert_tvm.relay_passes.integer.operators.linear import NibbleLinear
from ibert_tvm.relay_passes.quantization_table import WeightQuant
from ibert_tvm.relay_passes.spec import nibbles

from ..common.types import Longs
from ..quantization.batches import Calibration
from ..quantization.narrow_weights import samples, with_narrow_weights
from ..quantization.word_table import packed_rows
from .straight_through import replaced

if TYPE_CHECKING:
    from .module import IntegerModel

_WITHIN = 0.3
"""Steps to which a weight in training may lie from its half byte at first: what rounding in order
has chosen is then not undone by the first steps."""


class GroupScales(torch.nn.Module):
    """Logarithms of the scales of groups, by layer.

    Parameters
    ----------
    groups
        Scales 1..16 [N, G] by canonical name of the linear layer.
    """

    def __init__(self, groups: Mapping[str, Longs]) -> None:
        super().__init__()
        self._keys = {name: name.replace(".", "|") for name in groups}
        self.logarithms = torch.nn.ParameterDict(
            {
                self._keys[name]: torch.nn.Parameter(torch.from_numpy(scales).float().log())
                for name, scales in groups.items()
            }
        )

    def __contains__(self, layer: str) -> bool:
        return layer in self._keys

    def integers(self) -> dict[str, Longs]:
        """The scales 1..16, int64 [N, G] by layer."""
        return {name: self._steps(name).to(torch.int64).cpu().numpy() for name in self._keys}

    def parameter(self, layer: str) -> torch.nn.Parameter:
        """The logarithms of a layer."""
        return self.logarithms[self._keys[layer]]

    def _steps(self, layer: str) -> torch.Tensor:
        return self.parameter(layer).detach().exp().round().clamp(1, nibbles.LARGEST_SCALE)

    def rounded(self, layer: str, weight: torch.Tensor, rows: WeightQuant) -> torch.Tensor:
        """What the integers of a layer stand for, with gradients to its weight and scales.

        Parameters
        ----------
        layer
            Its canonical name.
        weight
            [N, K], multiplied by the divisors of its operand's channels.
        rows
            Its integers.
        """
        logarithm = self.parameter(layer)
        by_row = torch.from_numpy(rows.scale.astype(np.float32)).to(weight.device)[:, None]
        real = torch.from_numpy(rows.values).to(weight.device).float() * by_row
        groups = self._steps(layer)
        steps = (groups * by_row)[..., None]
        least = torch.where(groups == nibbles.LARGEST_SCALE, nibbles.LEAST + 1, nibbles.LEAST)
        bounds = (least[..., None] - 0.5) * steps, (nibbles.MOST + 0.5) * steps
        # The value is that of the integers; the gradient is that of the logarithm.
        scale = steps * torch.exp(logarithm - logarithm.detach())[..., None]
        found = replaced(_by_group(weight), _by_group(real), bounds, scale, -nibbles.LEAST)
        return found.flatten(1)[:, : weight.shape[1]]


def _by_group(rows: torch.Tensor) -> torch.Tensor:
    """[N, K] as [N, G, 32], with zeros where a row ends."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % nibbles.GROUP))
    return padded.unflatten(1, (-1, nibbles.GROUP))


def word_rows(rows: WeightQuant) -> torch.Tensor:
    """What a table of words stands for once it has 4 bits, float32 [V, C]."""
    packed, unit = packed_rows(rows.values, rows.scale)  # type: ignore[arg-type]
    table = nibbles.unpack(packed.table, packed.scales, rows.values.shape[1])
    factors = (packed.rows * unit).astype(np.float32)
    return torch.from_numpy(table * factors[:, None])


def begin(model: IntegerModel, calibration: Calibration, seq_len: int) -> None:
    """Give a model of 8 bits matrices of 4 bits, rounded on the calibration texts.

    Weights move towards the half bytes that `ibert_tvm.quantization.narrow_weights` chooses, and
    biases make up for what products lose in the mean.
    """
    wide = model.quantized()
    narrow = with_narrow_weights(wide, samples(wide, calibration, seq_len))
    table, now = model.table(), model.weights()
    groups: dict[str, Longs] = {}
    changed: dict[str, torch.Tensor] = {}
    steps_of = {s.name: s for s in narrow.program.steps if isinstance(s.operator, NibbleLinear)}
    for layer, step in steps_of.items():
        packed, scales = (narrow.parameters[step.operands[k]] for k in ("weight", "scales"))
        rows, operand = table.weights[layer], table.matmul[model.reads(layer)]
        channels = rows.values.shape[1]
        groups[layer] = nibbles.unpack_scales(scales, channels)
        names = model.weights_of(layer)
        unit = torch.from_numpy(rows.scale)[:, None]
        if operand.channel_divisor is not None:
            unit = unit / torch.from_numpy(operand.channel_divisor)
        values = torch.from_numpy(nibbles.unpack(packed, scales, channels))
        steps = torch.from_numpy(np.repeat(groups[layer], nibbles.GROUP, axis=1)[:, :channels])
        reach = _WITHIN * steps
        weight = now[names["weight"]].detach().cpu() / unit
        changed[names["weight"]] = weight.clamp(values - reach, values + reach) * unit
    model.set_weights(changed)
    model.set_groups(groups)
    # What an operand's zero point adds is folded in the biases, of the new weights by now.
    folded, changed = model.quantized(), {}
    for step in folded.program.steps:
        names = model.weights_of(step.name) if step.name in steps_of else {}
        if "bias" in names:
            bias = narrow.parameters[steps_of[step.name].operands["bias"]].astype(np.float64)
            moved = bias - folded.parameters[step.operands["bias"]]
            unit = table.weights[step.name].scale * table.matmul[model.reads(step.name)].scale
            changed[names["bias"]] = now[names["bias"]].detach().cpu() + torch.from_numpy(
                moved * unit
            )
    model.set_weights(changed)


def hidden_distance(
    found: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
    names: Sequence[str],
    mask: torch.Tensor,
) -> torch.Tensor:
    """Mean squared difference of values [batch, seq, C] at real tokens, by their variance."""
    kept = mask != 0
    parts = []
    for name in names:
        own, other = found[name][kept], wanted[name][kept]
        parts.append((own - other).square().mean() / other.var())
    return torch.stack(parts).mean()


def norms(steps: Sequence[FloatStep]) -> tuple[str, ...]:
    """Names of the outputs of norms of tokens: between them lies a part of a layer."""
    return tuple(step.operator.name for step in steps if isinstance(step.operator, Norm))

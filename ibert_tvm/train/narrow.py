"""Training in 4 bits: what it begins with, and what steps without labels add to the loss.

Rounding changes outputs far more than that of activations to 8 bits does, so steps without labels
leave activations in float, which takes a third of the time (`IntegerModel.float_values`); what is
scored, and kept, are the integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ibert_tvm.relay_passes.integer.operators.linear import NibbleLinear
from ibert_tvm.relay_passes.spec import nibbles

from ..common.types import Longs
from ..quantization.batches import Calibration
from ..quantization.narrow_weights import samples, with_narrow_weights
from .module import IntegerModel

_WITHIN = 0.3
"""Steps to which a weight in training may lie from its half byte at first: what rounding in order
has chosen is then not undone by the first steps."""


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

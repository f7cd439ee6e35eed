"""What 4-bit weights in training stand for: matrices with learned scales of groups, word tables.

A weight is rounded as `ibert quantize` rounds what was trained
(`ibert_tvm.model.trained_scales.nearest_in_groups`); gradients are straight-through within the half
bytes, and those of the groups' scales are LSQ's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ibert_tvm.relay_passes.quantization_table import WeightQuant
from ibert_tvm.relay_passes.spec import nibbles

from ..common.types import Longs
from ..quantization.word_table import packed_rows
from .straight_through import replaced


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

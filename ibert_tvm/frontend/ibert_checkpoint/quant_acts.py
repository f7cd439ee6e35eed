"""The QuantActs of an `ibert` model: their ranges, and which canonical value each one rounds.

A QuantAct remembers the smallest and the largest value that training saw, as a moving average,
and rounds to ``max(|x_min|, |x_max|) / (2^(bits-1) - 1)``. Some are never used by the released
code (`embeddings_act2`, the `activation` of every LayerNorm), so their ranges mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import ActivationQuant

from .canonical import layer

# A range is reset to +-1e-5 and counts as new below 1.1e-5, as released.
_NEW = np.float32(1.1e-5)
_SMALLEST = np.float32(1e-8)

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


def ranges_of(layers: int, buffers: Mapping[str, NDArray[np.float32]]) -> dict[str, Range]:
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

"""What emission knows about the kernel it is writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from tvm import te

from .layout import KernelLayout

_NEGATED_MAXIMUM = -127


@dataclass
class KernelContext:
    """State of one kernel under construction.

    Attributes
    ----------
    layout
        Operand layout of the target.
    batch, seq_len
        Static shape that the kernel serves.
    parameters
        Integer arrays by parameter name, unpacked: emission reads bounds from them.
    attributes
        Attributes of the resulting function, read by schedules.
    packed
        Placeholders of weights that this kernel reads packed, by parameter name.
    merged_output
        Whether the result is written as [batch, seq_len, heads, head_dim] and stored as [tokens,
        channels].
    both_minimum
        Matrix products both of whose factors may be -128; see `note_operands`.
    """

    layout: KernelLayout
    batch: int
    seq_len: int
    parameters: Mapping[str, np.ndarray]
    attributes: dict[str, object] = field(default_factory=dict)
    packed: dict[str, te.Tensor] = field(default_factory=dict)
    merged_output: bool = False
    both_minimum: list[str] = field(default_factory=list)

    def note_operands(self, product: str, lhs_low: int, rhs_low: int) -> None:
        """Tell schedules in which matrix products both factors may be -128.

        The sum of two such products is the only one of two int8 products that 16 bits do not hold.

        Parameters
        ----------
        product
            Name of its block.
        lhs_low, rhs_low
            Lower bounds of the factors.
        """
        if self.layout.lhs_dtype == "int8" and max(lhs_low, rhs_low) < _NEGATED_MAXIMUM:
            self.both_minimum.append(product)
            self.attributes["ibert.both_minimum"] = self.both_minimum

    def packed_weight(self, name: str) -> te.Tensor:
        """Placeholder of a weight in the layout's packed form."""
        if name not in self.packed:
            weight = self.parameters[name]
            self.packed[name] = te.placeholder(
                self.layout.packed_shape(*weight.shape), "int8", name="weight"
            )
        return self.packed[name]

"""`integer.select_token`: one token of every sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...errors import LoweringError
from ..checks import check_attribute
from ..domain import Domain, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import LARGEST_INDEX, NARROW, TensorType


@dataclass(frozen=True)
class SelectToken(Operator):
    """The token at one position, [b, C]; x is packed if `slots` are given.

    Parameters
    ----------
    index : int
        Position in the sequence; not negative.
    """

    index: int = 0

    OP = "integer.select_token"
    OPERANDS = (
        Operand("x", ("uint8", *NARROW), "b s C"),
        Operand("slots", ("int32",), "b s", optional=True, counted=-1),
    )
    RESULT = "b C"
    TRAITS = Traits(takes_epilogue=False)

    def __post_init__(self) -> None:
        check_attribute(self, "index", 0, LARGEST_INDEX)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """A sequence has such a token; a symbolic one is checked when it is specialised."""
        if isinstance(dims["s"], int) and self.index >= dims["s"]:
            raise LoweringError(
                f"token {self.index} of sequences of {dims['s']} tokens",
                self.where,
                "tokens are counted from 0",
                "compile for longer sequences",
            )

    def selected_tokens(self) -> tuple[int, ...]:
        """The token at `index`."""
        return (self.index,)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x, slots = operands["x"], operands.get("slots")
        return domain.define(
            "selected",
            (domain.batch, x.shape[1]),
            lambda row, channel: x[domain.row_of_token(x, slots, row, self.index), channel],
            x.dtype,
        )

"""The record of a canonical operator: what `Record` has, and its meaning in float.

A class in `ibert_tvm.relay_passes.canonical.operators` is all that the compiler knows of an
operator before lowering. `evaluate` is its only meaning: calibration, the check of an import
against its source, and the comparison with the float model run it (`canonical/evaluate.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..dialect.arrays import AnyArray
from ..dialect.record import Dialect, Operand, Record
from ..dialect.types import TensorType
from .errors import CanonicalError

CANONICAL = Dialect(
    "canonical",
    CanonicalError,
    "build the call with ibert_tvm.relay_passes.canonical",
    "cast it before it reaches the operator",
)
"""The canonical dialect."""
OPERATORS: dict[str, type[CanonicalOperator]] = CANONICAL.operators  # type: ignore[assignment]
"""Its operators by name, "canonical.linear" and so on."""

FLOAT = ("float32",)
"""The only float type of the canonical form."""
INDEX = ("int64",)
"""Type of ids and of the attention mask."""


class CanonicalOperator(Record, abstract=True):
    """Base of the records.

    Class variables
    ---------------
    BY_SEQUENCE
        Whether tokens of one sequence meet, [b, s, C] to [b, s, C].
    ELEMENTWISE
        Whether an entry of the result needs entries of the operands at its own place only.
    """

    DIALECT: ClassVar[Dialect] = CANONICAL
    BY_SEQUENCE: ClassVar[bool] = False
    ELEMENTWISE: ClassVar[bool] = False
    OPERANDS: ClassVar[tuple[Operand, ...]] = ()

    @classmethod
    def _problems(cls) -> list[str]:
        lacking = cls.evaluate is CanonicalOperator.evaluate
        return super()._problems() + (["evaluate is missing"] if lacking else [])

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """float32."""
        return FLOAT[0]

    def longest(self, types: Mapping[str, TensorType]) -> int | None:
        """Tokens of the longest sequence that its tables serve; None where none limits it."""
        return None

    def evaluate(self, *unnamed: Any, **operands: Any) -> AnyArray:
        """Compute the result with NumPy from operands by name, which are never written to."""
        raise NotImplementedError


PADDING_MASK = Operand("attention_mask", INDEX, "b s", optional=True, is_mask=True, is_input=True)
"""The padding mask [batch, seq_len], an input of the model: 0 is padding."""

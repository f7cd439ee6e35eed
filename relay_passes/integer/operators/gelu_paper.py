"""`integer.gelu_paper`: i-GELU as published."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.gelu import gelu_paper
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class GeluPaper(Elementwise):
    """Published i-GELU; the operands are the arrays of `PaperGelu`, as are the scales."""

    OP = "integer.gelu_paper"
    OPERANDS = (
        Operand("x", NARROW, "... C"),
        Operand("q_b", ("int32",), "1|C"),
        Operand("q_c", ("int64",), "1|C"),
        Operand("q_1", ("int32",), "1|C"),
        Operand("erf_shift", ("int32",), "1|C"),
    )
    RESULT = "... C"
    dtype = "int64"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "gelu"

    def entry(self, x: Entry, q_b: Entry, q_c: Entry, q_1: Entry, erf_shift: Entry) -> Entry:
        return gelu_paper(x, q_b, q_c, q_1, erf_shift)

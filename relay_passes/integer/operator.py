"""The record of an integer operator: what `Record` has, its meaning, and its traits, in one class.

A class in `ibert_tvm.relay_passes.integer.operators` is all that the compiler knows of an operator.
Attributes are never floats. Whoever processes programs asks for traits, so that nothing outside
names an operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..dialect.record import Dialect, Operand, Record
from ..errors import LoweringError
from .domain import Domain, Entry, Index, T, Tensor
from .types import NARROW, TensorType

INTEGER = Dialect(
    "integer", LoweringError, "quantise the model again", "requantise or convert it first"
)
"""The integer dialect."""
OPERATORS: dict[str, type[Operator]] = INTEGER.operators  # type: ignore[assignment]
"""Its operators by name."""


@dataclass(frozen=True)
class Traits:
    """What passes ask of an operator.

    Parameters
    ----------
    elementwise
        An entry of the result needs entries at its own place only (and constants, or table rows
        that it looks up), so it joins the kernel that makes its operand.
    takes_epilogue
        Elementwise operators may join its kernel; not where the result has another iteration
        space than what would follow.
    per_token
        Every token is treated by itself, wherever it lies: closed under leaving out padding.
    row_statistics
        It reduces rows of channels, and a kernel may keep a row in registers meanwhile.
    joins_rows
        An entry of the result needs the row at its place only, so it joins a kernel that keeps a
        row and makes its operand.
    rescales
        It only changes the scale of what a sum takes: the sum's kernel may do it instead.
    sums
        It adds two values of one scale; of the two, the one made last brings the kernel.
    view
        The result is a run of its operand's channels, which a reader may find in place:
        ``run_of(channels)`` says which.
    reads_views
        Operands that are read in place where a view makes them.
    offsets
        It has the attributes zero_point and dtype, and bounds low and high where it clamps; the
        result moves with them.
    matrix_product
        It is ``x weight^T + bias`` of 8-bit operands, of either signedness.
    merges
        Its constants by channel may be joined with those of another call with equal attributes.
    gathers
        Every entry of the result is one of an operand's, so that any kernel may look it up.
    by_sequence
        Tokens of one sequence meet, [b, s, C] to [b, s, C]; of packed operands, `starts` says
        where sequences begin.
    """

    elementwise: bool = False
    takes_epilogue: bool = True
    per_token: bool = False
    row_statistics: bool = False
    joins_rows: bool = False
    rescales: bool = False
    sums: bool = False
    view: bool = False
    reads_views: tuple[str, ...] = ()
    offsets: bool = False
    matrix_product: bool = False
    merges: bool = False
    gathers: bool = False
    by_sequence: bool = False


class Operator(Record, abstract=True):
    """Base of the records.

    Class variables
    ---------------
    TRAITS
    KEEPS
        The operand whose type the result has.
    """

    DIALECT: ClassVar[Dialect] = INTEGER
    TRAITS: ClassVar[Traits] = Traits()
    KEEPS: ClassVar[str] = ""

    @classmethod
    def _problems(cls) -> list[str]:
        problems = super()._problems()
        said = cls.KEEPS or hasattr(cls, "dtype") or "dtype" in cls.__annotations__
        if cls.result_dtype is Operator.result_dtype and not said:
            problems.append("neither dtype, KEEPS nor result_dtype says the result's type")
        known = {operand.name for operand in cls.OPERANDS}
        if cls.KEEPS and cls.KEEPS not in known:
            problems.append(f"KEEPS names {cls.KEEPS}, no operand")
        unread = set(cls.TRAITS.reads_views) - known
        if unread:
            problems.append(f"reads_views names {', '.join(sorted(unread))}, no operands")
        return problems + cls._lacking()

    @classmethod
    def _lacking(cls) -> list[str]:
        """What the class lacks of its meaning."""
        return ["body is missing"] if cls.body is Operator.body else []

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Compute the result from the operands; see `ibert_tvm.relay_passes.integer.domain`."""
        raise NotImplementedError

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """Storage type of the result: that of an operand, or the attribute `dtype`."""
        return types[self.KEEPS].dtype if self.KEEPS else str(self.dtype)  # type: ignore[attr-defined]

    def multiply_accumulates(self, types: Mapping[str, TensorType]) -> int:
        """Multiply-accumulates of the matrix products, for static shapes."""
        return 0

    def selected_tokens(self) -> tuple[int, ...]:
        """Positions that are read whatever the mask says."""
        return ()

    def longest_sequence(self, rows: int) -> int | None:
        """Longest sequence whose result names rows of a table with `rows` of them, if it does."""
        return None

    def sequence_limit(self, types: Mapping[str, TensorType]) -> int | None:
        """Longest sequence that the operands' constants serve, if they limit it."""
        return None

    def rows_per_token(self, types: Mapping[str, TensorType]) -> int:
        """Rows that the body makes of the channels of one token; see `rows_of`."""
        return 1

    def fixed_ids(self) -> int:
        """Ids below this number mean something to it: they cannot be numbered otherwise."""
        return 0

    def needs_places(self, operands: Collection[str]) -> bool:
        """Whether it asks where tokens lie in their sequence, given these operands by name."""
        return False

    @property
    def needs_no_operand(self) -> bool:
        """Whether the result depends on places only, so that any kernel may compute it."""
        return False


class Elementwise(Operator, abstract=True):
    """Base of operators whose result is a function of the operands' entries at the same place.

    Class variables
    ---------------
    OPERANDS
        One value x of signed integers, unless an operator names others.
    STAGE
        Name of the block.
    NARROW_STAGE
        Whether a kernel keeps the block in the narrowest type, not in that of the result: what
        follows goes on from there.
    """

    OPERANDS: ClassVar[tuple[Operand, ...]] = (Operand("x", NARROW, "... C"),)
    RESULT: ClassVar[str] = "... C"
    TRAITS: ClassVar[Traits] = Traits(elementwise=True, per_token=True)
    STAGE: ClassVar[str] = ""
    NARROW_STAGE: ClassVar[bool] = False

    @classmethod
    def _lacking(cls) -> list[str]:
        incomplete = cls.entry is Elementwise.entry or not cls.STAGE
        return ["entry or STAGE is missing"] if incomplete else []

    def entry(self, *operands: Any, **named: Any) -> Entry:
        """One entry of the result, from those of the operands in their order."""
        raise NotImplementedError

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Apply `entry` everywhere; constants are one, or one per channel."""
        x = operands[self.OPERANDS[0].name]
        given = [(operands[o.name], "|" in o.shape) for o in self.OPERANDS if o.name in operands]
        dtype = "" if self.NARROW_STAGE else self.result_dtype(_types(operands))

        def entry(*index: Index) -> Entry:
            return self.entry(
                *(per_channel(t, index[-1]) if constant else t[index] for t, constant in given)
            )

        return domain.define(self.STAGE, x.shape, entry, dtype)


class Serial(Operator, abstract=True):
    """Base of operators that count: what one step writes depends on the one before.

    Such an operator goes over one number per token and is a kernel of its own, written as loops
    that nothing schedules. Results are numbers of rows and tokens, for which int32 is enough, since
    memory has to hold the values that they count.

    Class variables
    ---------------
    LEAST
        Smallest number in the result.
    """

    TRAITS: ClassVar[Traits] = Traits(takes_epilogue=False)
    LEAST: ClassVar[int] = 0

    @classmethod
    def _lacking(cls) -> list[str]:
        incomplete = cls.evaluate is Serial.evaluate or cls.script is Serial.script
        return ["evaluate or script is missing"] if incomplete else []

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """int32."""
        return "int32"

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Compute the result with NumPy."""
        raise NotImplementedError

    def script(self, types: Mapping[str, TensorType]) -> str:
        """TVMScript of the kernel; nothing but numbers and dtypes may be put into it."""
        raise NotImplementedError

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers in the script besides the operands' sizes."""
        return ()


def per_channel(array: Tensor, channel: Index) -> Entry:
    """Constant of a channel, from an array with one entry per channel or one for all."""
    return array[0] if array.shape[0] == 1 else array[channel]


def _types(operands: Mapping[str, Tensor]) -> dict[str, TensorType]:
    return {name: TensorType(tensor.shape, tensor.dtype) for name, tensor in operands.items()}

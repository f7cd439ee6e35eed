"""What a compiled program without runtime takes and gives: the part that only the caller knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from .c_text import PREFIX, is_prefix

_ITEM_SIZES = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8}
_MULTIPLIER_BITS = 31
MAX_RANK = 4


def item_size(dtype: str) -> int:
    """Bytes of one entry of an integer type."""
    return _ITEM_SIZES[dtype]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of every function.

    Attributes
    ----------
    name
        What users call it.
    dtype
        ``"int8"`` to ``"int64"``, or ``"uint8"``.
    shape
        Sizes; ``"batch"`` and ``"seq_len"`` stand for those of a function.
    scale
        Real size of one step, ``real = (integer - zero_point) * scale``; 0 for what counts or
        points at something: ids, masks.
    zero_point
        Integer that stands for 0.
    low, high
        Values that the program accepts, both included; None where the type is the only limit.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    scale: float = 0.0
    zero_point: int = 0
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_SIZES:
            raise ValueError(f"tensor {self.name}: dtype {self.dtype!r}")
        if self.scale < 0 or not math.isfinite(self.scale):
            raise ValueError(f"tensor {self.name}: scale {self.scale}")
        if len(self.shape) > MAX_RANK:
            raise ValueError(f"tensor {self.name}: rank {len(self.shape)}, at most {MAX_RANK}")
        wrong = [axis for axis in self.shape if axis not in ("batch", "seq_len")]
        if any(not isinstance(axis, int) or axis < 1 for axis in wrong):
            raise ValueError(f"tensor {self.name}: shape {self.shape}")

    def extents(self, batch: int, seq_len: int) -> tuple[int, ...]:
        """Shape in the function of that batch size and sequence length."""
        named: dict[int | str, int] = {"batch": batch, "seq_len": seq_len}
        return tuple(named[axis] if isinstance(axis, str) else axis for axis in self.shape)

    def elements(self, batch: int, seq_len: int) -> int:
        """Number of entries in the function of that batch size and sequence length."""
        return math.prod(self.extents(batch, seq_len))

    def __str__(self) -> str:
        axes = ", ".join(str(axis) for axis in self.shape)
        scale = f", scale {self.scale!r}" if self.scale else ""
        offset = f", zero point {self.zero_point}" if self.zero_point else ""
        limits = "" if self.low is None else f", {self.low} to {self.high}"
        return f"{self.name}: {self.dtype} [{axes}]{scale}{offset}{limits}"

    @property
    def limits(self) -> tuple[int, int]:
        """Range of the entries, cut to 32 bits."""
        bits = min(8 * item_size(self.dtype), 32)
        unsigned = self.dtype.startswith("u")
        low = 0 if unsigned else -(2 ** (bits - 1))
        high = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1
        return (
            low if self.low is None else max(low, self.low),
            high if self.high is None else min(high, self.high),
        )

    @property
    def c_axes(self) -> list[str]:
        """The shape as C constants, filled up to the largest rank."""
        axes = [f"IBERT_{a.upper()}" if isinstance(a, str) else str(a) for a in self.shape]
        return axes + ["1"] * (MAX_RANK - len(axes))

    @property
    def decimal_scale(self) -> str:
        """The scale in decimal, exact in double; 0 where there is none."""
        return repr(float(self.scale)) if self.scale else "0"

    @property
    def dyadic_scale(self) -> tuple[int, int]:
        """The scale as ``multiplier / 2^shift``, to 31 bits; (0, 0) where there is none."""
        if not self.scale:
            return 0, 0
        _, exponent = math.frexp(self.scale)
        shift = _MULTIPLIER_BITS - exponent
        multiplier = round(Fraction(self.scale) * Fraction(2) ** shift)
        if multiplier == 2**_MULTIPLIER_BITS:  # rounded up to a power of two
            multiplier, shift = multiplier // 2, shift - 1
        return multiplier, shift


@dataclass(frozen=True)
class ShapeSpec:
    """One function of the program: its name in the module, and its shape."""

    name: str
    batch: int
    seq_len: int


@dataclass(frozen=True)
class Interface:
    """Signature of a program.

    Attributes
    ----------
    functions
        One per shape.
    inputs, outputs
        In the order in which functions take and return them.
    pad_token_id
        Id to fill short sequences up with; None for a model that takes no ids.
    source_sha256
        Hash of the source model, for people who compare a file with the model.
    prefix
        What its C names begin with, see `c_text.is_prefix`; macros in capitals.
    """

    functions: tuple[ShapeSpec, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    pad_token_id: int | None = None
    source_sha256: str = ""
    prefix: str = PREFIX

    def __post_init__(self) -> None:
        if not is_prefix(self.prefix):
            raise ValueError(f"the prefix {self.prefix!r}")
        if not self.functions or not self.inputs or not self.outputs:
            raise ValueError("a program has at least one function, input and output")

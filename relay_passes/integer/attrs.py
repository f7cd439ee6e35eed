"""Attributes of the `integer.*` operators: one frozen dataclass per operator.

An attribute is an int or a string, never a float: the integer module holds no float at all. The
constants of an approximation (a dataclass of `relay_passes.spec`) are flattened with a prefix, so
that the DictAttrs of a call stay flat and survive JSON unchanged. Every class converts both ways:
``LinearAttrs(...).to_attrs()`` and ``LinearAttrs.from_call(call)``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from tvm import ir, relax

from ..errors import LoweringError
from ..spec.exponential import BinaryExponential, Exponential, PolynomialExponential
from ..spec.gelu import AccurateGelu
from ..spec.layer_norm import LayerNormConstants
from ..spec.released import ReleasedExponential, ReleasedLayerNorm
from ..spec.short_layer_norm import ShortLayerNorm
from ..spec.short_softmax import ShortExponential

_Self = TypeVar("_Self", bound="OpAttrs")

STORAGE_DTYPES = ("int8", "uint8", "int16", "int32")
"""What `integer.requantise`, `integer.layer_norm` may store."""
SOFTMAX_MODES = ("short", "normalised")
SHORT_DTYPES = ("int8", "uint8", "int16")
"""What 16-bit arithmetic may store."""
GELU_FORMS = ("accurate", "paper")
POSITION_KINDS = ("absolute", "roberta")

_BOUNDS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


def dtype_bounds(dtype: str) -> tuple[int, int]:
    """Smallest and largest integer of a storage type, for example (-128, 127) for int8."""
    return _BOUNDS[dtype]


def _flatten(prefix: str, constants: Any) -> dict[str, int]:
    return {f"{prefix}_{field.name}": getattr(constants, field.name) for field in fields(constants)}


def _unflatten(prefix: str, cls: type, attrs: Any) -> Any:
    return cls(**{field.name: int(attrs[f"{prefix}_{field.name}"]) for field in fields(cls)})


def _choose(what: str, value: str, allowed: Any, where: str) -> None:
    if value not in allowed:
        raise LoweringError(
            f"unknown {what} {value!r}",
            where,
            "the integer dialect does not define it",
            f"use one of: {', '.join(allowed)}",
        )


def _check_output(attrs: Any) -> None:
    _check_bounds(attrs)
    _check_shift(attrs)


def _check_bounds(attrs: Any, allowed: tuple[str, ...] = STORAGE_DTYPES) -> None:
    _choose("dtype", attrs.dtype, allowed, attrs.name)
    low, high = dtype_bounds(attrs.dtype)
    if not low <= attrs.low <= attrs.high <= high:
        raise LoweringError(
            f"bounds [{attrs.low}, {attrs.high}] cannot be stored as {attrs.dtype}",
            attrs.name,
            f"{attrs.dtype} holds [{low}, {high}], and low must not exceed high",
            "choose a wider dtype or tighter bounds",
        )


def _check_short_shift(attrs: Any) -> None:
    if not 0 <= attrs.shift <= 14:
        raise LoweringError(
            f"shift {attrs.shift} is outside [0, 14]",
            attrs.name,
            "it leaves at least one of the 15 bits of a Q15 product",
            "derive it with relay_passes.spec.short_requantise",
        )


def _check_shift(attrs: Any) -> None:
    if not 0 <= attrs.shift <= 62:
        raise LoweringError(
            f"shift {attrs.shift} is outside [0, 62]",
            attrs.name,
            "the shifted product is an int64",
            "derive multiplier and shift with relay_passes.spec.fixed_point",
        )


@dataclass(frozen=True)
class OpAttrs:
    """What every operator carries.

    Parameters
    ----------
    name : str
        Canonical name of the value the operator produces (with a suffix where one canonical
        operator becomes several), unique in the module.
    """

    name: str

    OP: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_attrs(self) -> ir.Attrs:
        """Return the attributes as a TVM DictAttrs."""
        return ir.make_node("ir.DictAttrs", **self.to_dict())

    @classmethod
    def from_attrs(cls: type[_Self], attrs: Any) -> _Self:
        """Read the attributes of a call; `attrs` is anything that is indexed by names."""
        return cls(**{field.name: attrs[field.name] for field in fields(cls)})

    @classmethod
    def from_call(cls: type[_Self], call: relax.Call) -> _Self:
        """Read the attributes of a Relax call."""
        return cls.from_attrs(call.attrs)


@dataclass(frozen=True)
class PositionIdsAttrs(OpAttrs):
    """Attributes of `integer.position_ids` (the same as `canonical.position_ids`).

    Parameters
    ----------
    kind : str
        "absolute": ``offset + 0 .. seq - 1`` in every row. "roberta":
        ``cumsum(id != padding_index) * (id != padding_index) + padding_index``.
    offset, padding_index : int
        See `kind`.
    """

    kind: str = "absolute"
    offset: int = 0
    padding_index: int = 0

    OP: ClassVar[str] = "integer.position_ids"

    def __post_init__(self) -> None:
        _choose("kind", self.kind, POSITION_KINDS, self.name)


@dataclass(frozen=True)
class EmbeddingAttrs(OpAttrs):
    """Attributes of `integer.embedding`.

    Parameters
    ----------
    shift : int
        Common right shift of the per-row multipliers, 0..62.
    """

    shift: int = 0

    OP: ClassVar[str] = "integer.embedding"


@dataclass(frozen=True)
class LinearAttrs(OpAttrs):
    """Attributes of `integer.linear`: only the name."""

    OP: ClassVar[str] = "integer.linear"


@dataclass(frozen=True)
class AddAttrs(OpAttrs):
    """Attributes of `integer.add`: only the name."""

    OP: ClassVar[str] = "integer.add"


@dataclass(frozen=True)
class ReluAttrs(OpAttrs):
    """Attributes of `integer.relu`: only the name."""

    OP: ClassVar[str] = "integer.relu"


@dataclass(frozen=True)
class PatchesAttrs(OpAttrs):
    """Attributes of `integer.patches`.

    Parameters
    ----------
    patch_height, patch_width : int
        Size of a patch in pixels.
    """

    patch_height: int
    patch_width: int

    OP: ClassVar[str] = "integer.patches"


@dataclass(frozen=True)
class PrependTokensAttrs(OpAttrs):
    """Attributes of `integer.prepend_tokens`: only the name."""

    OP: ClassVar[str] = "integer.prepend_tokens"


@dataclass(frozen=True)
class AddPositionsAttrs(OpAttrs):
    """Attributes of `integer.add_positions`: only the name."""

    OP: ClassVar[str] = "integer.add_positions"


@dataclass(frozen=True)
class RequantiseAttrs(OpAttrs):
    """Attributes of `integer.requantise`.

    Parameters
    ----------
    shift : int
        Right shift, 0..62, the same for every channel.
    zero_point : int
        Added after the shift.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    """

    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP: ClassVar[str] = "integer.requantise"

    def __post_init__(self) -> None:
        _check_output(self)


@dataclass(frozen=True)
class RequantiseShortAttrs(OpAttrs):
    """Attributes of `integer.requantise_short`.

    Parameters
    ----------
    shift : int
        Fraction bits of the Q15 product, 0..14, the same for every channel.
    zero_point : int
        Added before the shift, as ``zero_point 2^shift``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8 or int16.
    """

    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP: ClassVar[str] = "integer.requantise_short"

    def __post_init__(self) -> None:
        _check_bounds(self, SHORT_DTYPES)
        _check_short_shift(self)


@dataclass(frozen=True)
class AddShortAttrs(OpAttrs):
    """Attributes of `integer.add_short`.

    Parameters
    ----------
    low, high : int
        Closed interval of the sum, within int16.
    """

    low: int
    high: int

    OP: ClassVar[str] = "integer.add_short"

    @property
    def dtype(self) -> str:
        """Type of the sum."""
        return "int16"

    def __post_init__(self) -> None:
        _check_bounds(self, ("int16",))


@dataclass(frozen=True)
class RequantiseEvenAttrs(OpAttrs):
    """Attributes of `integer.requantise_even`.

    Parameters
    ----------
    split : int
        Bits by which the value is split before the multiplication; see
        `relay_passes.spec.released.wide_product`.
    zero_point : int
        Added after the shift.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    """

    split: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP: ClassVar[str] = "integer.requantise_even"

    def __post_init__(self) -> None:
        _check_bounds(self)


@dataclass(frozen=True)
class GeluAttrs(OpAttrs):
    """Attributes of `integer.gelu`.

    Parameters
    ----------
    constants : AccurateGelu or None
        In the DictAttrs: ``form="accurate"`` and the constants prefixed by ``gelu_``. None is
        ``form="paper"``, whose constants are all operands.
    """

    constants: AccurateGelu | None

    OP: ClassVar[str] = "integer.gelu"

    @property
    def form(self) -> str:
        """Name of the form, "accurate" or "paper"."""
        return "paper" if self.constants is None else "accurate"

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        constants = {} if self.constants is None else _flatten("gelu", self.constants)
        return {"name": self.name, "form": self.form, **constants}

    @classmethod
    def from_attrs(cls, attrs: Any) -> GeluAttrs:
        """Read the attributes of a call."""
        _choose("form of GELU", attrs["form"], GELU_FORMS, attrs["name"])
        if attrs["form"] == "paper":
            return cls(attrs["name"], None)
        return cls(attrs["name"], _unflatten("gelu", AccurateGelu, attrs))


@dataclass(frozen=True)
class TanhAttrs(OpAttrs):
    """Attributes of `integer.tanh`.

    Parameters
    ----------
    exponential : BinaryExponential
        Constants of 2^(-2 |x| log2 e), from ``BinaryExponential.for_tanh(scale)``; prefixed by
        ``exp_`` in the DictAttrs.
    fraction_bits : int
        The result's scale is 2^-fraction_bits, its bound 2^fraction_bits - 1.
    """

    exponential: BinaryExponential
    fraction_bits: int = 15

    OP: ClassVar[str] = "integer.tanh"

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        return {
            "name": self.name,
            "fraction_bits": self.fraction_bits,
            **_flatten("exp", self.exponential),
        }

    @classmethod
    def from_attrs(cls, attrs: Any) -> TanhAttrs:
        """Read the attributes of a call."""
        exponential = _unflatten("exp", BinaryExponential, attrs)
        return cls(attrs["name"], exponential, int(attrs["fraction_bits"]))


@dataclass(frozen=True)
class LayerNormAttrs(OpAttrs):
    """Attributes of `integer.layer_norm`.

    Parameters
    ----------
    constants : LayerNormConstants
        input_limit, epsilon, reciprocal_bits, normalised_bits; prefixed by ``norm_`` in the
        DictAttrs.
    shift : int
        Right shift of ``n * gain + offset``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    """

    constants: LayerNormConstants
    shift: int
    low: int
    high: int
    dtype: str

    OP: ClassVar[str] = "integer.layer_norm"

    def __post_init__(self) -> None:
        _check_output(self)

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        plain = {name: getattr(self, name) for name in ("name", "shift", "low", "high", "dtype")}
        return {**plain, **_flatten("norm", self.constants)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> LayerNormAttrs:
        """Read the attributes of a call."""
        constants = _unflatten("norm", LayerNormConstants, attrs)
        return cls(
            attrs["name"], constants, attrs["shift"], attrs["low"], attrs["high"], attrs["dtype"]
        )


@dataclass(frozen=True)
class ShortLayerNormAttrs(OpAttrs):
    """Attributes of `integer.layer_norm_short`.

    Parameters
    ----------
    constants : ShortLayerNorm
        Prefixed by ``norm_`` in the DictAttrs.
    shift : int
        Right shift of ``n * gain + offset``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8 or int16.
    """

    constants: ShortLayerNorm
    shift: int
    low: int
    high: int
    dtype: str

    OP: ClassVar[str] = "integer.layer_norm_short"

    def __post_init__(self) -> None:
        _check_bounds(self, SHORT_DTYPES)
        _check_shift(self)

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        plain = {name: getattr(self, name) for name in ("name", "shift", "low", "high", "dtype")}
        return {**plain, **_flatten("norm", self.constants)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> ShortLayerNormAttrs:
        """Read the attributes of a call."""
        constants = _unflatten("norm", ShortLayerNorm, attrs)
        return cls(
            attrs["name"], constants, attrs["shift"], attrs["low"], attrs["high"], attrs["dtype"]
        )


@dataclass(frozen=True)
class ReleasedLayerNormAttrs(OpAttrs):
    """Attributes of `integer.released_layer_norm`.

    Parameters
    ----------
    constants : ReleasedLayerNorm
        Prefixed by ``norm_`` in the DictAttrs.
    """

    constants: ReleasedLayerNorm

    OP: ClassVar[str] = "integer.released_layer_norm"

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        return {"name": self.name, **_flatten("norm", self.constants)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> ReleasedLayerNormAttrs:
        """Read the attributes of a call."""
        return cls(attrs["name"], _unflatten("norm", ReleasedLayerNorm, attrs))


@dataclass(frozen=True)
class AttentionAttrs(OpAttrs):
    """Attributes of `integer.attention`.

    Parameters
    ----------
    num_heads : int
        H; the channels of q, k and v are H * D.
    softmax : str
        "short": u8 exponentials times V, divided once per row by their sum, in 16-bit arithmetic.
        "normalised": u8 probabilities of scale 1/256 times V, as published.
    exponential : ShortExponential, PolynomialExponential or ReleasedExponential
        In the DictAttrs: ``exponential="short"``, ``"polynomial"`` or ``"released"``, constants
        prefixed by ``exp_``. The first belongs to "short", the others to "normalised".
    shift, zero_point, low, high, dtype
        Requantisation of the context. "short": its values come with 7 fraction bits in V's scale,
        the int16 multiplier is Q15, ``S_v / 128 / S_out * 2^shift``; dtype int8, uint8 or int16.
        "normalised": 8 fraction bits, a multiplier ``S_v / 256 / S_out * 2^shift`` of 15 bits at
        most; dtype int8, uint8, int16 or int32.
    """

    num_heads: int
    softmax: str
    exponential: Exponential | ShortExponential
    shift: int
    low: int
    high: int
    dtype: str = "int8"
    zero_point: int = 0

    OP: ClassVar[str] = "integer.attention"
    EXPONENTIALS: ClassVar[dict[str, type]] = {
        "short": ShortExponential,
        "polynomial": PolynomialExponential,
        "released": ReleasedExponential,
    }

    def __post_init__(self) -> None:
        _choose("softmax", self.softmax, SOFTMAX_MODES, self.name)
        if (self.softmax == "short") != isinstance(self.exponential, ShortExponential):
            raise LoweringError(
                f"a {type(self.exponential).__name__} in {self.softmax} softmax",
                self.name,
                "a ShortExponential belongs to short softmax, the others to normalised softmax",
                "derive both from one preset",
            )
        if self.softmax == "short":
            _check_bounds(self, SHORT_DTYPES)
            _check_short_shift(self)
            return
        _check_output(self)
        if self.exponential.maximum > 65535:
            raise LoweringError(
                f"exponentials up to {self.exponential.maximum} in normalised softmax",
                self.name,
                "this mode stores them in 16 bits",
                "derive the exponential with a smaller maximum",
            )

    def to_dict(self) -> dict[str, Any]:
        """Flat dictionary of ints and strings."""
        kind = next(
            key for key, form in self.EXPONENTIALS.items() if isinstance(self.exponential, form)
        )
        plain = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "exponential"
        }
        return {**plain, "exponential": kind, **_flatten("exp", self.exponential)}

    @classmethod
    def from_attrs(cls, attrs: Any) -> AttentionAttrs:
        """Read the attributes of a call."""
        _choose("exponential", attrs["exponential"], cls.EXPONENTIALS, attrs["name"])
        plain = {field.name: attrs[field.name] for field in fields(cls)}
        kind = cls.EXPONENTIALS[plain["exponential"]]
        return cls(**{**plain, "exponential": _unflatten("exp", kind, attrs)})


@dataclass(frozen=True)
class SplitChannelsAttrs(OpAttrs):
    """Attributes of `integer.split_channels`.

    Parameters
    ----------
    index, parts : int
        Which of how many equal runs of channels.
    """

    index: int
    parts: int

    OP: ClassVar[str] = "integer.split_channels"

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.parts:
            raise LoweringError(
                f"part {self.index} of {self.parts}",
                self.name,
                "parts are counted from 0",
                "build the call in relay_passes.passes.merge_projections",
            )


@dataclass(frozen=True)
class MeanPoolAttrs(OpAttrs):
    """Attributes of `integer.mean_pool`.

    Parameters
    ----------
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.
    """

    fraction_bits: int = 0

    OP: ClassVar[str] = "integer.mean_pool"


@dataclass(frozen=True)
class SelectTokenAttrs(OpAttrs):
    """Attributes of `integer.select_token`.

    Parameters
    ----------
    index : int
        Position in the sequence; not negative.
    """

    index: int = 0

    OP: ClassVar[str] = "integer.select_token"


@dataclass(frozen=True)
class MaskTokensAttrs(OpAttrs):
    """Attributes of `integer.mask_tokens`: only the name."""

    OP: ClassVar[str] = "integer.mask_tokens"


@dataclass(frozen=True)
class TokenSlotsAttrs(OpAttrs):
    """Attributes of `integer.token_slots`.

    Parameters
    ----------
    selected : str
        Positions that are kept whatever the mask says, separated by commas.
    """

    selected: str = ""

    OP: ClassVar[str] = "integer.token_slots"

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions in `selected`."""
        return tuple(int(position) for position in self.selected.split(",") if position)


@dataclass(frozen=True)
class SlotTokensAttrs(OpAttrs):
    """Attributes of `integer.slot_tokens`: only the name."""

    OP: ClassVar[str] = "integer.slot_tokens"


@dataclass(frozen=True)
class SlotStartsAttrs(OpAttrs):
    """Attributes of `integer.slot_starts`: only the name."""

    OP: ClassVar[str] = "integer.slot_starts"


@dataclass(frozen=True)
class PackTokensAttrs(OpAttrs):
    """Attributes of `integer.pack_tokens`: only the name."""

    OP: ClassVar[str] = "integer.pack_tokens"

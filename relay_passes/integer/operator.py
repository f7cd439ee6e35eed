"""The record of an operator: operands, attributes, type rule, meaning and traits, in one class.

A class in `ibert_tvm.relay_passes.integer.operators` is all that the compiler knows of an operator.
Its attributes are the fields of the dataclass (an int, a string, or the constants of an
approximation, flattened with a prefix, never a float); the rest are class variables. Whoever
processes programs asks for traits, so that nothing outside names an operator. A class that lacks a
part is refused when it is defined, which is when the package is imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..errors import LoweringError
from .domain import Domain, Entry, Tensor
from .types import Dim, TensorType, dtype_bounds

STORAGE_DTYPES = ("int8", "uint8", "int16", "int32")
"""What a requantisation may store."""
SHORT_DTYPES = ("int8", "uint8", "int16")
"""What 16-bit arithmetic may store."""

_COUNTS_OF_BITS = ("shift", "bits", "split")
"""Ends of the names of attributes by which numbers are shifted."""
_MOST_BITS = 63

OPERATORS: dict[str, type[Operator]] = {}
"""All operators by name, "integer.linear" and so on."""

_Self = TypeVar("_Self", bound="Operator")


@dataclass(frozen=True)
class Operand:
    """An operand of an operator.

    Parameters
    ----------
    name : str
        As the body takes it.
    dtypes : tuple of str
        Storage types that it may have.
    shape : str
        Dimensions, by names that stand for one extent in all operands: ``"... K"`` (any leading
        dimensions), ``"N K"``. ``"1|C"`` is one entry, or one per C; ``" or "`` separates forms of
        different rank. Capitals are known numbers, what else a batch has may be symbolic.
    optional : bool
        Whether a call may leave it out.
    by_token : bool
        Whether it has one entry per token, [batch, seq_len], that moves with the token where
        padding is left out: ids, a mask.
    is_mask : bool
        Whether it is 0 at padding.
    packed : bool
        Whether kernels read it in the order of the target's dot-product instruction: a weight.
    """

    name: str
    dtypes: tuple[str, ...]
    shape: str
    optional: bool = False
    by_token: bool = False
    is_mask: bool = False
    packed: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant of the model: it has no dimension of a batch in front."""
        return self.shape.split()[0] not in ("...", "b", "n")


@dataclass(frozen=True)
class Traits:
    """What passes ask of an operator.

    Parameters
    ----------
    elementwise : bool
        An entry of the result needs entries at its own place only (and constants, or table rows
        that it looks up), so it joins the kernel that makes its operand.
    takes_epilogue : bool
        Elementwise operators may join its kernel; not where the result has another iteration
        space than what would follow.
    per_token : bool
        Every token is treated by itself, wherever it lies: closed under leaving out padding.
    row_statistics : bool
        It reduces rows of channels, and a kernel may keep a row in registers meanwhile.
    rescales : bool
        It only changes the scale of what a sum takes: the sum's kernel may do it instead.
    lookup : bool
        It reads rows of a table.
    sums : bool
        It adds two values of one scale; of the two, the one made last brings the kernel.
    view : bool
        The result is a run of its operand's channels, which a reader may find in place.
    reads_views : tuple of str
        Operands that are read in place where a view makes them.
    offsets : bool
        It has the attributes zero_point, low, high and dtype, and the result moves with them.
    matrix_product : bool
        It is ``x weight^T + bias`` of 8-bit operands, of either signedness.
    merges : bool
        Its constants by channel may be joined with those of another call with equal attributes.
    hides_padding : bool
        Its result per token is 0 at padding.
    by_sequence : bool
        Tokens of one sequence meet, [b, s, C] to [b, s, C]; of packed operands, `starts` says
        where sequences begin.
    gathers : bool
        The result has entries of the first operand at other places.
    counts_rows : bool
        Its result says how many rows of packed values are in use.
    serial : bool
        What it writes depends on what it wrote before: a kernel of its own, never scheduled.
    """

    elementwise: bool = False
    takes_epilogue: bool = True
    per_token: bool = False
    row_statistics: bool = False
    rescales: bool = False
    lookup: bool = False
    sums: bool = False
    view: bool = False
    reads_views: tuple[str, ...] = ()
    offsets: bool = False
    matrix_product: bool = False
    merges: bool = False
    hides_padding: bool = False
    by_sequence: bool = False
    gathers: bool = False
    counts_rows: bool = False
    serial: bool = False


def flattened(prefix: str, kind: type | Mapping[str, type], choice: str = "") -> dict[str, Any]:
    """Metadata of a field for the constants of an approximation, a dataclass of ints.

    Parameters
    ----------
    prefix : str
        Of the attributes that its fields become.
    kind : type or mapping of str to type
        Its class, or several by the word that the attribute `choice` has for each.
    choice : str
        Name of that attribute.
    """
    return {"prefix": prefix, "kind": kind, "choice": choice}


@dataclass(frozen=True)
class Operator:
    """Base of the records.

    Class variables
    ---------------
    OP : str
        Name of the operator.
    OPERANDS : tuple of Operand
        In the order of a call; optional ones that it leaves out are skipped.
    RESULT : str
        Shape of the result, in the dimensions that operands name.
    TRAITS : Traits

    Parameters
    ----------
    name : str
        Canonical name of the value the operator produces (with a suffix where one canonical
        operator becomes several), unique in the module.
    """

    name: str

    OP: ClassVar[str] = ""
    OPERANDS: ClassVar[tuple[Operand, ...]] = ()
    RESULT: ClassVar[str] = ""
    TRAITS: ClassVar[Traits] = Traits()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "OP" in cls.__dict__:
            _check_record(cls)
            OPERATORS[cls.OP] = cls

    # -- meaning --------------------------------------------------------------------------------

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Compute the result from the operands; see `ibert_tvm.relay_passes.integer.domain`."""
        raise NotImplementedError

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """Storage type of the result: the attribute `dtype`, unless a record says otherwise."""
        return str(self.dtype)  # type: ignore[attr-defined]

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """Shape of the result, from what the operands' dimensions stand for."""
        shape: list[Dim] = []
        for token in self.RESULT.split():
            shape += dims[token] if token == "..." else [dims[token]]
        return tuple(shape)

    def dtypes_of(self, operand: Operand) -> tuple[str, ...]:
        """Storage types of an operand, where they depend on attributes."""
        return operand.dtypes

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Refuse dimensions that the attributes do not fit."""

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

    def needs_places(self, operands: Collection[str]) -> bool:
        """Whether it asks where tokens lie in their sequence, given these operands by name."""
        return False

    @property
    def needs_no_operand(self) -> bool:
        """Whether the result depends on places only, so that any kernel may compute it."""
        return False

    # -- types ----------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """The call in messages: "integer.linear 'encoder.0.query'"."""
        return f"{self.OP} {self.name!r}"

    def check_operands(self, names: Collection[str]) -> None:
        """Refuse operands, given by name, where one is missing or unknown.

        Raises
        ------
        LoweringError
        """
        known = {operand.name for operand in self.OPERANDS}
        needed = {operand.name for operand in self.OPERANDS if not operand.optional}
        if not needed <= set(names) <= known:
            raise LoweringError(
                f"{self.OP} got {'the operands ' + ', '.join(names) if names else 'no operands'}",
                self.where,
                f"it takes: {', '.join(_label(operand) for operand in self.OPERANDS)}",
                "build the call with ibert_tvm.relay_passes.integer",
            )

    def result_type(self, types: Mapping[str, TensorType]) -> TensorType:
        """Type of the result.

        Parameters
        ----------
        types : mapping of str to TensorType
            Of the operands by name; optional ones may be missing.

        Raises
        ------
        LoweringError
            If an operand is missing or unknown, or its shape or dtype is not what is taken.
        """
        self.check_operands(types)
        known = {operand.name: operand for operand in self.OPERANDS}
        dims: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for name, type_ in types.items():
            self._bind(known[name], type_, dims, origin)
        self.check_dims(dims)
        return TensorType(self.result_shape(dims), self.result_dtype(types))

    def _bind(
        self, operand: Operand, type_: TensorType, dims: dict[str, Any], origin: dict[str, str]
    ) -> None:
        """Check one operand's type, and what its dimensions stand for."""
        allowed = self.dtypes_of(operand)
        if type_.dtype not in allowed:
            raise LoweringError(
                f"operand {operand.name} is {type_.dtype}",
                self.where,
                f"allowed: {', '.join(allowed)}",
                "requantise or convert it first",
            )
        forms = [form.split() for form in operand.shape.split(" or ")]
        tokens = next((form for form in forms if len(form) == len(type_.shape)), forms[0])
        extents: list[Any] = list(type_.shape)
        if tokens[0] == "...":
            count = max(len(extents) - len(tokens) + 1, 0)
            extents = [tuple(extents[:count]), *extents[count:]]
        if len(extents) != len(tokens):
            raise LoweringError(
                f"operand {operand.name} has {len(type_.shape)} dimensions",
                self.where,
                f"{self.OP} needs {'at least ' if '...' in tokens else ''}"
                f"{len(tokens) - (tokens[0] == '...')}",
                "check which tensor was passed",
            )
        for token, extent in zip(tokens, extents, strict=True):
            one, _, dim = token.rpartition("|")
            if one and extent == int(one):
                continue
            if dim.isupper() and not isinstance(extent, int):
                raise LoweringError(
                    f"operand {operand.name} has the symbolic dimension {extent}",
                    self.where,
                    f"{dim} is a number in {self.OP}",
                    "check which tensor was passed",
                )
            if dims.setdefault(dim, extent) != extent:
                first = next(o for o in self.OPERANDS if o.name == origin[dim])
                subject = "leading dimensions" if dim == "..." else f"dimension {dim}"
                raise LoweringError(
                    f"{subject} of {first.name} and {operand.name} differ: "
                    f"{_shown(dims[dim])} and {_shown(extent)}",
                    self.where,
                    f"{self.OP} takes {_form(first)} and {_form(operand)}",
                    "check which tensor was passed",
                )
            origin.setdefault(dim, operand.name)

    # -- serialisation --------------------------------------------------------------------------

    def to_dict(self) -> dict[str, int | str]:
        """Flat dictionary of ints and strings."""
        flat: dict[str, int | str] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if "prefix" not in item.metadata:
                flat[item.name] = value
                continue
            kind, choice = item.metadata["kind"], item.metadata["choice"]
            if choice:
                flat[choice] = next(word for word, cls in kind.items() if cls is type(value))
            for part in fields(value):
                flat[f"{item.metadata['prefix']}_{part.name}"] = getattr(value, part.name)
        return flat

    @classmethod
    def from_dict(cls: type[_Self], flat: Mapping[str, Any]) -> _Self:
        """Read what `to_dict` wrote; of a mapping with more in it, what belongs to the record.

        Raises
        ------
        LoweringError
            If an attribute is missing, of another type, or not allowed.
        """
        values: dict[str, Any] = {}
        for item in fields(cls):
            if "prefix" not in item.metadata:
                values[item.name] = _attribute(cls, flat, item.name, str(item.type))
                continue
            prefix, kind = item.metadata["prefix"], item.metadata["kind"]
            choice = item.metadata["choice"]
            if choice:
                word = _attribute(cls, flat, choice, "str")
                choose(choice, word, kind, str(flat.get("name", cls.OP)))
                kind = kind[word]
            values[item.name] = kind(
                **{
                    part.name: _attribute(cls, flat, f"{prefix}_{part.name}", str(part.type))
                    for part in fields(kind)
                }
            )
        return cls(**values)


class Elementwise(Operator):
    """Base of operators whose result is a function of the operands' entries at the same place.

    Class variables
    ---------------
    STAGE : str
        Name of the block.
    """

    OPERANDS: ClassVar[tuple[Operand, ...]] = ()
    STAGE: ClassVar[str] = ""

    def entry(self, *operands: Entry) -> Entry:
        """One entry of the result, from those of the operands in their order."""
        raise NotImplementedError

    def stage_dtype(self, dtype: str) -> str:
        """Type in which a kernel keeps the stage, from that of the result; "" for the narrowest."""
        return dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Apply `entry` everywhere; constants are one, or one per channel."""
        x = operands[self.OPERANDS[0].name]
        given = [(operands[o.name], "|" in o.shape) for o in self.OPERANDS if o.name in operands]
        dtype = self.stage_dtype(self.result_dtype(_types(operands)))

        def entry(*index: Any) -> Entry:
            return self.entry(
                *(per_channel(t, index[-1]) if constant else t[index] for t, constant in given)
            )

        return domain.define(self.STAGE, x.shape, entry, dtype)


class Serial(Operator):
    """Base of operators that count: what one step writes depends on the one before.

    Such an operator goes over one number per token and is a kernel of its own, written as loops
    that nothing schedules. Results are numbers of rows and tokens, for which int32 is enough, since
    memory has to hold the values that they count.

    Class variables
    ---------------
    LEAST : int
        Smallest number in the result.
    """

    TRAITS: ClassVar[Traits] = Traits(takes_epilogue=False, serial=True)
    LEAST: ClassVar[int] = 0

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """int32."""
        return "int32"

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Compute the result with NumPy."""
        raise NotImplementedError

    def script(self, types: Mapping[str, TensorType]) -> str:
        """TVMScript of the kernel; nothing but numbers and dtypes may be put into it."""
        raise NotImplementedError


def per_channel(array: Tensor, channel: Any) -> Entry:
    """Constant of a channel, from an array with one entry per channel or one for all."""
    return array[0] if array.shape[0] == 1 else array[channel]


def _types(operands: Mapping[str, Tensor]) -> dict[str, TensorType]:
    return {name: TensorType(tensor.shape, tensor.dtype) for name, tensor in operands.items()}


def _check_record(cls: type[Operator]) -> None:
    """Refuse a record that lacks a part, or says something that cannot be.

    Raises
    ------
    TypeError
        A defect of the record, met when it is imported.
    """
    problems = []
    if not cls.OP.startswith("integer."):
        problems.append("OP is not integer.NAME")
    if OPERATORS.get(cls.OP, cls).__qualname__ != cls.__qualname__:
        problems.append(f"{cls.OP} is the name of {OPERATORS[cls.OP].__qualname__} too")
    if not cls.__dict__.get("__doc__"):
        problems.append("it has no docstring")
    if not cls.OPERANDS:
        problems.append("OPERANDS is missing")
    known = {token.rpartition("|")[2] for o in cls.OPERANDS for token in o.shape.split()}
    own_shape = cls.result_shape is not Operator.result_shape
    if not own_shape and (not cls.RESULT or set(cls.RESULT.split()) - known):
        problems.append("RESULT is missing, or names a dimension that no operand has")
    if issubclass(cls, Elementwise):
        if cls.entry is Elementwise.entry or not cls.STAGE:
            problems.append("entry or STAGE is missing")
    elif issubclass(cls, Serial):
        if cls.evaluate is Serial.evaluate or cls.script is Serial.script:
            problems.append("evaluate or script is missing")
    elif cls.body is Operator.body:
        problems.append("body is missing")
    if cls.result_dtype is Operator.result_dtype and not (
        hasattr(cls, "dtype") or "dtype" in cls.__annotations__
    ):
        problems.append("neither an attribute dtype nor result_dtype says the result's type")
    unread = set(cls.TRAITS.reads_views) - {operand.name for operand in cls.OPERANDS}
    if unread:
        problems.append(f"reads_views names {', '.join(sorted(unread))}, no operands")
    if problems:
        raise TypeError(f"the record {cls.__qualname__} is incomplete: {'; '.join(problems)}")


def _attribute(cls: type[Operator], flat: Mapping[str, Any], name: str, kind: str) -> Any:
    """One attribute, of the type that its field declares."""
    where = str(flat["name"]) if "name" in flat else cls.OP
    value = flat[name] if name in flat else None  # noqa: SIM401  (TVM's mapping has no get)
    wanted = str if kind == "str" else int
    if value is None or isinstance(value, bool) or not isinstance(value, wanted):
        raise LoweringError(
            f"attribute {name} is {'missing' if value is None else repr(value)}",
            where,
            f"{cls.OP} needs {'a string' if wanted is str else 'an integer'}",
            "quantise the model again",
        )
    if wanted is int and name.endswith(_COUNTS_OF_BITS) and not 0 <= int(value) <= _MOST_BITS:
        raise LoweringError(
            f"attribute {name} is {value}",
            where,
            f"it counts bits, 0 to {_MOST_BITS}",
            "quantise the model again",
        )
    return str(value) if wanted is str else int(value)


def _label(operand: Operand) -> str:
    return f"{operand.name} (optional)" if operand.optional else operand.name


def _shown(extent: Any) -> str:
    if isinstance(extent, tuple):
        return f"[{', '.join(map(_shown, extent))}]"
    return str(extent)


def _form(operand: Operand) -> str:
    """Name and shape of an operand for messages: "multiplier [1 or C]"."""
    forms = (", ".join(form.split()) for form in operand.shape.split(" or "))
    return f"{operand.name} {' or '.join(f'[{form}]' for form in forms)}".replace("|", " or ")


# -- checks of attributes -----------------------------------------------------------------------


def choose(what: str, value: str, allowed: Any, where: str) -> None:
    """Raise LoweringError where a word is none of the allowed ones."""
    if value not in allowed:
        raise LoweringError(
            f"unknown {what} {value!r}",
            where,
            "the integer dialect does not define it",
            f"use one of: {', '.join(allowed)}",
        )


def check_bounds(record: Any, allowed: tuple[str, ...] = STORAGE_DTYPES) -> None:
    """Raise LoweringError where the bounds of a result do not fit its type."""
    choose("dtype", record.dtype, allowed, record.name)
    low, high = dtype_bounds(record.dtype)
    if not low <= record.low <= record.high <= high:
        raise LoweringError(
            f"bounds [{record.low}, {record.high}] cannot be stored as {record.dtype}",
            record.name,
            f"{record.dtype} holds [{low}, {high}], and low must not exceed high",
            "choose a wider dtype or tighter bounds",
        )


def check_attribute(record: Any, name: str, low: int, high: int) -> None:
    """Raise LoweringError where an attribute is not in [low, high]."""
    value = getattr(record, name)
    if not low <= value <= high:
        raise LoweringError(
            f"{name} {value} is outside [{low}, {high}]",
            record.name,
            f"{record.OP} is defined there only",
            "derive it with ibert_tvm.relay_passes.spec, or quantise the model again",
        )


def check_short_shift(record: Any) -> None:
    """Raise LoweringError where 16-bit arithmetic has no such shift."""
    if not 0 <= record.shift <= 14:
        raise LoweringError(
            f"shift {record.shift} is outside [0, 14]",
            record.name,
            "it leaves at least one of the 15 bits of a Q15 product",
            "derive it with ibert_tvm.relay_passes.spec.short_requantise",
        )


def check_shift(record: Any) -> None:
    """Raise LoweringError where 64-bit arithmetic has no such shift."""
    if not 0 <= record.shift <= 62:
        raise LoweringError(
            f"shift {record.shift} is outside [0, 62]",
            record.name,
            "the shifted product is an int64",
            "derive multiplier and shift with ibert_tvm.relay_passes.spec.fixed_point",
        )


__all__ = [
    "OPERATORS",
    "SHORT_DTYPES",
    "STORAGE_DTYPES",
    "Elementwise",
    "Operand",
    "Operator",
    "Serial",
    "Traits",
    "check_attribute",
    "check_bounds",
    "check_shift",
    "check_short_shift",
    "choose",
    "flattened",
    "per_channel",
]

"""What all dialects share: an operator is one class, its record.

A record says what a call of the operator looks like: operands by name, attributes, and the type of
the result by named dimensions. Attributes are the annotated fields of the class, which is a frozen
dataclass by its base (an int, a string, a float where the dialect has floats, or the constants of
an approximation, flattened with a prefix); the rest are class variables. Dialects derive from
`Record` and add the meaning. A class that lacks a part is refused when it is defined, which is when
its package is imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, overload

from ..errors import CompilerError
from .types import Dim, TensorType

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as _dataclass_transform
else:

    def _dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda cls: cls


Problem: TypeAlias = tuple[str, str, str]
"""What is wrong with a call, why, and what to do."""
RECORDS: dict[str, type[Record]] = {}
"""The operators of all dialects by name, "integer.linear" and so on."""

_COUNTS_OF_BITS = ("shift", "bits", "split")
"""Ends of the names of attributes by which numbers are shifted."""
_MOST_BITS = 63
_KINDS = {"int": "an integer", "str": "a string", "float": "a number"}

_Self = TypeVar("_Self", bound="Record")


class Dims(Protocol):
    """What the dimensions of a call's operands stand for, by name.

    ``"..."`` is the leading dimensions; batch, sequence and rows (b, s, n) may be symbolic; all
    others are capitals, which are numbers.
    """

    @overload
    def __getitem__(  # type: ignore[overload-overlap]
        self, name: Literal["..."], /
    ) -> tuple[Dim, ...]: ...
    @overload
    def __getitem__(  # type: ignore[overload-overlap]
        self, name: Literal["b", "s", "n"], /
    ) -> Dim: ...
    @overload
    def __getitem__(self, name: str, /) -> int: ...

    @overload
    def get(self, name: str, /) -> int | None: ...
    @overload
    def get(self, name: str, default: int, /) -> int: ...

    def __contains__(self, name: object, /) -> bool: ...


@dataclass(frozen=True)
class Dialect:
    """A set of operators.

    Parameters
    ----------
    name
        What its operators' names begin with.
    error
        What is raised where a call breaks a rule.
    remedy
        What a user does about a call that cannot be.
    cast
        What a user does about an operand of another type.
    operators
        Filled as classes are defined.
    """

    name: str
    error: type[CompilerError]
    remedy: str
    cast: str
    operators: dict[str, type[Record]] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """Where the builders of calls are."""
        return f"ibert_tvm.relay_passes.{self.name}"

    def choose(self, what: str, value: str, allowed: Any, where: str) -> None:
        """Refuse a word that is none of the allowed ones."""
        if value not in allowed:
            raise self.error(
                f"unknown {what} {value!r}",
                where,
                f"the {self.name} dialect does not define it",
                f"use one of: {', '.join(allowed)}",
            )


@dataclass(frozen=True)
class Operand:
    """An operand of an operator.

    Parameters
    ----------
    name
        As the body takes it.
    dtypes
        Storage types that it may have.
    shape
        Dimensions, by names that stand for one extent in all operands: ``"... K"`` (any leading
        dimensions), ``"N K"``. ``"... 1"`` ends in a single entry, ``"1|C"`` is one entry, or one
        per C; ``" or "`` separates forms of different rank. Capitals are known numbers, what else
        a batch has may be symbolic.
    optional
        Whether a call may leave it out.
    by_token
        Whether it has one entry per token, [batch, seq_len], that moves with the token where
        padding is left out: ids, a mask.
    is_mask
        Whether it is 0 at padding.
    packed
        How kernels read it in the order of the target's dot-product instruction: "entries" of a
        weight, or "columns" of what is by row of a weight; empty where they read it as it is.
    is_input
        Whether it must be an input of the model itself.
    section
        Of the quantisation table, where the integers of a matrix of floats are: "weights" or
        "embeddings".
    counted
        Smallest number that may be in it, of an operand that holds numbers of rows or tokens:
        kernels read at these places unchecked, so in an untrusted program nothing but an operator
        that counts may have made it.
    rows_of
        The operand whose ids number its rows, of a table that is looked up.
    """

    name: str
    dtypes: tuple[str, ...]
    shape: str
    optional: bool = False
    by_token: bool = False
    is_mask: bool = False
    packed: str = ""
    is_input: bool = False
    section: str = ""
    counted: int | None = None
    rows_of: str = ""

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant of the model: it has no dimension of a batch in front."""
        return self.shape.split()[0] not in ("...", "b", "n")

    @property
    def by_pair(self) -> bool:
        """Whether it has entries for pairs of tokens of a sequence."""
        return self.shape.split().count("s") == 2

    @property
    def is_number_of_row(self) -> bool:
        """Whether it has one number for all channels of a row, whatever channels there are."""
        return not self.is_constant and self.shape.split()[-1] == "1"


def flattened(prefix: str, kind: type | Mapping[str, type], choice: str = "") -> dict[str, Any]:
    """Metadata of a field for the constants of an approximation, a dataclass of ints.

    Parameters
    ----------
    prefix
        Of the attributes that its fields become.
    kind
        Its class, or several by the word that the attribute `choice` has for each.
    choice
        Name of that attribute.
    """
    return {"prefix": prefix, "kind": kind, "choice": choice}


@_dataclass_transform(frozen_default=True, field_specifiers=(field,))
class _Frozen:
    """Base whose subclasses are frozen dataclasses without saying so."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        dataclass(frozen=True)(cls)


class Record(_Frozen):
    """Base of the records: frozen dataclasses, which their classes need not say.

    Class variables
    ---------------
    DIALECT
    OP
        Name of the operator; the dialect's, and the class's in lower case with underscores, where
        the class gives none.
    OPERANDS
        In the order of a call; optional ones that it leaves out are skipped.
    RESULT
        Shape of the result, in the dimensions that operands name.

    Parameters
    ----------
    name
        Canonical name of the value that the operator produces, unique in the module.
    """

    name: str

    DIALECT: ClassVar[Dialect]
    OP: ClassVar[str]
    OPERANDS: ClassVar[tuple[Operand, ...]] = ()
    RESULT: ClassVar[str] = ""

    def __init_subclass__(cls, abstract: bool = False, **keywords: Any) -> None:
        if not abstract:
            if "OP" not in cls.__dict__:
                words = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__)
                cls.OP = f"{cls.DIALECT.name}.{words.lower()}"
            if problems := cls._problems():
                what = f"the record {cls.__qualname__} is incomplete"
                raise TypeError(f"{what}: {'; '.join(problems)}")
        super().__init_subclass__(**keywords)
        if not abstract:
            RECORDS[cls.OP] = cls.DIALECT.operators[cls.OP] = cls

    @classmethod
    def _problems(cls) -> list[str]:
        """What the class lacks, or says that cannot be: defects, met when it is imported."""
        problems = []
        if not cls.OP.startswith(f"{cls.DIALECT.name}."):
            problems.append(f"OP is not {cls.DIALECT.name}.NAME")
        other = RECORDS.get(cls.OP, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            problems.append(f"{cls.OP} is the name of {other.__qualname__} too")
        if not cls.__dict__.get("__doc__"):
            problems.append("it has no docstring")
        if not cls.OPERANDS:
            problems.append("OPERANDS is missing")
        known = {token.rpartition("|")[2] for o in cls.OPERANDS for token in o.shape.split()}
        own_shape = cls.result_shape is not Record.result_shape
        if not own_shape and (not cls.RESULT or set(cls.RESULT.split()) - known):
            problems.append("RESULT is missing, or names a dimension that no operand has")
        return problems

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """Storage type of the result."""
        raise NotImplementedError

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """Shape of the result, from what the operands' dimensions stand for."""
        shape: list[Dim] = []
        for token in self.RESULT.split():
            shape.extend(dims["..."] if token == "..." else [dims[token]])
        return tuple(shape)

    def dtypes_of(self, operand: Operand) -> tuple[str, ...]:
        """Storage types of an operand, where they depend on attributes."""
        return operand.dtypes

    def check_dims(self, dims: Dims) -> None:
        """Refuse dimensions that the attributes do not fit."""

    @property
    def where(self) -> str:
        """The call in messages: "integer.linear 'encoder.0.query'"."""
        return f"{self.OP} {self.name!r}"

    def refused(self, what: str, why: str, todo: str) -> CompilerError:
        """Make the error of this call that tells of a problem."""
        return self.DIALECT.error(what, self.where, why, todo)

    def choose(self, what: str, value: str, allowed: Collection[str]) -> None:
        """Refuse a word that is none of the allowed ones."""
        self.DIALECT.choose(what, value, allowed, self.where)

    def check_operands(self, names: Collection[str]) -> None:
        """Refuse operands, given by name, where one is missing or unknown.

        Raises
        ------
        CompilerError
        """
        known = {operand.name for operand in self.OPERANDS}
        needed = {operand.name for operand in self.OPERANDS if not operand.optional}
        if not needed <= set(names) <= known:
            raise self.refused(
                f"{self.OP} got {'the operands ' + ', '.join(names) if names else 'no operands'}",
                f"it takes: {', '.join(_label(operand) for operand in self.OPERANDS)}",
                f"build the call with {self.DIALECT.package}",
            )

    def result_type(self, types: Mapping[str, TensorType]) -> TensorType:
        """Type of the result.

        Parameters
        ----------
        types
            Of the operands by name; optional ones may be missing.

        Raises
        ------
        CompilerError
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
            raise self.refused(
                f"operand {operand.name} is {type_.dtype}",
                f"allowed: {', '.join(allowed)}",
                self.DIALECT.cast,
            )
        forms = [form.split() for form in operand.shape.split(" or ")]
        tokens = next((form for form in forms if len(form) == len(type_.shape)), forms[0])
        extents: list[Any] = list(type_.shape)
        if tokens[0] == "...":
            count = max(len(extents) - len(tokens) + 1, 0)
            extents = [tuple(extents[:count]), *extents[count:]]
        if len(extents) != len(tokens):
            raise self.refused(
                f"operand {operand.name} has {len(type_.shape)} dimensions",
                f"{self.OP} needs {'at least ' if '...' in tokens else ''}"
                f"{len(tokens) - (tokens[0] == '...')}",
                "check which tensor was passed",
            )
        for token, extent in zip(tokens, extents, strict=True):
            one, _, dim = token.rpartition("|")
            if one and extent == int(one):
                continue
            if dim.isdigit() and extent != int(dim):
                raise self.refused(
                    f"operand {operand.name} has {_shown(extent)} entries where it has {dim}",
                    f"{self.OP} takes {' and '.join(map(_form, self.OPERANDS))}",
                    "check which tensor was passed",
                )
            if dim.isupper() and not isinstance(extent, int):
                raise self.refused(
                    f"operand {operand.name} has the symbolic dimension {extent}",
                    f"{dim} is a number in {self.OP}",
                    "check which tensor was passed",
                )
            if dims.setdefault(dim, extent) != extent:
                first = next(o for o in self.OPERANDS if o.name == origin[dim])
                subject = "leading dimensions" if dim == "..." else f"dimension {dim}"
                raise self.refused(
                    f"{subject} of {first.name} and {operand.name} differ: "
                    f"{_shown(dims[dim])} and {_shown(extent)}",
                    f"{self.OP} takes {_form(first)} and {_form(operand)}",
                    "check which tensor was passed",
                )
            origin.setdefault(dim, operand.name)

    # -- serialisation --------------------------------------------------------------------------

    def to_dict(self) -> dict[str, int | str | float]:
        """Flat dictionary of numbers and strings."""
        flat: dict[str, int | str | float] = {}
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
        CompilerError
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
                cls.DIALECT.choose(choice, word, kind, str(flat.get("name", cls.OP)))
                kind = kind[word]
            values[item.name] = kind(
                **{
                    part.name: _attribute(cls, flat, f"{prefix}_{part.name}", str(part.type))
                    for part in fields(kind)
                }
            )
        return cls(**values)


def _attribute(cls: type[Record], flat: Mapping[str, Any], name: str, kind: str) -> Any:
    """One attribute, of the type that its field declares."""
    where = str(flat["name"]) if "name" in flat else cls.OP
    value: Any = flat[name] if name in flat else None  # noqa: SIM401  (TVM's mapping has no get)
    wanted: Any = {"str": str, "float": (int, float)}.get(kind, int)
    fits = isinstance(value, wanted) and not isinstance(value, bool)
    if not fits or (kind == "float" and not math.isfinite(value)):
        raise cls.DIALECT.error(
            f"attribute {name} is {'missing' if value is None else repr(value)}",
            where,
            f"{cls.OP} needs {_KINDS.get(kind, _KINDS['int'])}",
            cls.DIALECT.remedy,
        )
    if wanted is int and name.endswith(_COUNTS_OF_BITS) and not 0 <= int(value) <= _MOST_BITS:
        raise cls.DIALECT.error(
            f"attribute {name} is {value}",
            where,
            f"it counts bits, 0 to {_MOST_BITS}",
            cls.DIALECT.remedy,
        )
    return {"str": str, "float": float}.get(kind, int)(value)


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

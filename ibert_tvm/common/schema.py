"""What a document may hold, and the check of it: one for all formats of files.

A schema is a leaf (what is allowed, and how it is called), a list of one schema, or an object whose
keys ``"NAME?"`` may be missing and whose key ``"*"`` stands for all others. Keys that a schema does
not name are not looked at. Like `strict_json`, this module imports `errors` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeAlias

from .errors import DocumentError
from .strict_json import shown

Leaf: TypeAlias = tuple[Callable[[Any], bool], str]
Schema: TypeAlias = "Leaf | list[Any] | Mapping[str, Any]"

LEAST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127
"""A scale is a normal number of float32."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= 2 * LARGEST_SCALE


STRING: Leaf = (lambda value: isinstance(value, str), "a string")
FLAG: Leaf = (lambda value: isinstance(value, bool), "true or false")
INTEGER: Leaf = (lambda value: type(value) is int, "an integer")
NUMBER: Leaf = (_is_number, "a number")
NUMBERS: Leaf = (
    lambda value: all(map(_is_number, value if isinstance(value, list) else [value])),
    "a number or a list of numbers",
)
SCALE: Leaf = (
    lambda value: type(value) in (int, float) and LEAST_SCALE <= value <= LARGEST_SCALE,
    "a number from 2^-126 to 2^127",
)
OBJECT: Leaf = (lambda value: isinstance(value, dict), "an object")


def integer(low: int, high: int) -> Leaf:
    """Leaf of the integers from `low` to `high`."""
    return (
        lambda value: type(value) is int and low <= value <= high,
        f"an integer from {low} to {high}",
    )


def one_of(*values: object) -> Leaf:
    """Leaf of a few values; ``true`` is not 1."""
    return (
        lambda value: any(type(value) is type(one) and value == one for one in values),
        " or ".join(map(shown, values)),
    )


def either(*leaves: Leaf) -> Leaf:
    """Leaf of what one of several leaves allows."""
    return lambda value: any(fits(value) for fits, _ in leaves), " or ".join(w for _, w in leaves)


_BY_TYPE: dict[str, Schema] = {
    "bool": FLAG,
    "float": NUMBER,
    "int": INTEGER,
    "str": STRING,
    "str | None": STRING,
    "tuple[str, ...]": [STRING],
    "Mapping[str, float]": {"*": NUMBER},
    "Mapping[str, str]": {"*": STRING},
}
"""What documents hold for fields of these types; None is left out of them."""


def schema_of(record: type, **parts: Schema) -> dict[str, Schema]:
    """Return the schema of a dataclass: of its fields by their types, or as `parts` says.

    Keys are the names of fields, or their metadata ``key``. Those with a default may be missing.
    """
    schema = {}
    for item in fields(record):
        key = item.metadata.get("key", item.name)
        needed = item.default is MISSING and item.default_factory is MISSING
        part = parts[key] if key in parts else _BY_TYPE[str(item.type)]
        schema[key if needed else f"{key}?"] = part
    return schema


def check(value: Any, schema: Schema, where: str = "") -> None:
    """Refuse what a schema does not allow.

    Parameters
    ----------
    value
        Part of a document.
    schema
        What it may be.
    where
        Its place, for the error.

    Raises
    ------
    DocumentError
        Naming the place.
    """
    if isinstance(schema, tuple):
        fits, wanted = schema[0](value), schema[1]
    elif isinstance(schema, list):
        fits, wanted = isinstance(value, list), "a list"
    else:
        fits, wanted = isinstance(value, dict), "an object"
    if not fits:
        raise DocumentError(f"it is {shown(value)}; {wanted} is needed", where)
    if isinstance(schema, list):
        for index, item in enumerate(value):
            check(item, schema[0], f"{where}[{index}]")
    elif isinstance(schema, Mapping):
        _check_keys(value, schema, where)


def _check_keys(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> None:
    keys = {key.rstrip("?"): (key, part) for key, part in schema.items()}
    _, others = keys.pop("*", ("", None))
    for name, (key, part) in keys.items():
        if name in value:
            check(value[name], part, f"{where}.{name}".lstrip("."))
        elif key == name:
            raise DocumentError(f"the key {name!r} is missing", where)
    for name in [] if others is None else [name for name in value if name not in keys]:
        check(value[name], others, f"{where}.{name}".lstrip("."))

"""The integer program as a document: what `model.json` of an artefact holds.

`docs/ibert-format.md` describes the format. Reading trusts nothing: every key, name, reference and
size is checked, every operator is made by its record, and the types that the record infers are
those that the document states. Nothing here imports TVM.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from ibert_tvm.common import strict_json
from ibert_tvm.common.errors import DocumentError
from ibert_tvm.common.strict_json import JsonObject, shown

from ..errors import CompilerError
from ..names import MAX_NAME, NAME, NAME_RULE
from . import operators  # noqa: F401  (defines the records)
from .operator import OPERATORS, Operator, Serial
from .program import Program, Step
from .types import DTYPES, Dim, SymbolicDim, TensorType, dtype_bounds

FORMAT = "ibert-program"
VERSION = 2
"""Raised when a document of the version before would mean something else or not be complete."""

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 5
MAX_INPUTS = 16
MAX_PARAMETERS = 2**14
MAX_STEPS = 2**12
MAX_OUTPUTS = 64
MAX_RANK = 4
MAX_ENTRIES = 2**31 - 1
"""Of a tensor, symbolic dimensions counted as one: kernels count entries in int32."""

_SYMBOLS = ("batch", "seq_len")
_DIM = re.compile(rf"({'|'.join(_SYMBOLS)})(?: \+ ([1-9][0-9]{{0,8}}))?")
_WORD = re.compile(rf"[A-Za-z0-9_,]{{0,{MAX_NAME}}}")
_AGAIN = "quantise the model again with `ibert quantize`"
_DAMAGED = (
    "the file is damaged or was changed; copy it again, or make it again with `ibert quantize`"
)
_TENSOR = ("name", "dtype", "shape")


def write_document(program: Program) -> str:
    """Write a program.

    Parameters
    ----------
    program
        Of the integer dialect.

    Returns
    -------
    str
        JSON with a line per input, parameter, step and output; equal programs give equal texts.

    Raises
    ------
    DocumentError
        If the program is outside of what the format holds, for example has a name that cannot be
        written: what is written can be read.
    """
    sections: dict[str, Iterable[object]] = {
        "inputs": (_named(name, type_) for name, type_ in program.inputs.items()),
        "parameters": (_named(name, type_) for name, type_ in program.parameters.items()),
        "steps": map(_step, program.steps),
        "outputs": program.outputs,
    }
    heads = [f' "format": {json.dumps(FORMAT)}', f' "version": {VERSION}']
    lists = [
        f' "{key}": [' + ",".join(f"\n  {json.dumps(item)}" for item in items) + "\n ]"
        for key, items in sections.items()
    ]
    text = "{\n" + ",\n".join([*heads, *lists]) + "\n}\n"
    if read_document(text) != program:
        raise DocumentError("a program is not what its document says", todo="please report it")
    return text


def _type(type_: TensorType) -> JsonObject:
    shape = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
    return {"dtype": type_.dtype, "shape": shape}


def _named(name: str, type_: TensorType) -> JsonObject:
    return {"name": name, **_type(type_)}


def _step(step: Step) -> JsonObject:
    attributes = step.operator.to_dict()
    order = [operand.name for operand in step.operator.OPERANDS]
    return {
        "name": attributes.pop("name"),
        "operator": step.operator.OP,
        "operands": {name: step.operands[name] for name in sorted(step.operands, key=order.index)},
        "attributes": attributes,
        "result": _type(step.type),
    }


def read_document(text: str) -> Program:
    """Read what `write_document` wrote, or refuse it.

    Parameters
    ----------
    text
        The document, of anyone.

    Returns
    -------
    Program
        Every name is unique, every operand is made before it is read, and every type is the one
        that the operator's record infers.

    Raises
    ------
    DocumentError
        Naming the place.
    """
    if len(text) > MAX_BYTES:
        raise DocumentError(
            f"it has {len(text)} characters", why=f"{MAX_BYTES} are allowed", todo=_DAMAGED
        )
    try:
        document = strict_json.parse(text, MAX_DEPTH)
    except DocumentError as error:
        raise DocumentError(error.what, why=error.why, todo=_DAMAGED) from None
    _check_version(document)
    _keys(document, ("format", "version", "inputs", "parameters", "steps", "outputs"), "document")
    return _Reader().program(document)


def _check_version(document: object) -> None:
    """Tell documents of other versions, and the graphs of TVM that were there before this format.

    Raises
    ------
    DocumentError
        If it is none of this version.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        if isinstance(document, dict) and {"root_index", "nodes"} <= set(document):
            raise DocumentError(
                "it is the object graph of TVM that earlier versions stored",
                why=f"this version of ibert_tvm reads {FORMAT} version {VERSION}",
                todo=_AGAIN,
            )
        raise DocumentError(
            f"it is no {FORMAT}", why=f'a document starts with "format": "{FORMAT}"', todo=_DAMAGED
        )
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise DocumentError(f"version is {shown(version)}", why="a number is needed", todo=_DAMAGED)
    if version != VERSION:
        raise DocumentError(
            f"it is {FORMAT} version {version}",
            why=f"this version of ibert_tvm reads version {VERSION}",
            todo="upgrade ibert_tvm, or " + _AGAIN if version > VERSION else _AGAIN,
        )


def _refuse(what: str, where: str, why: str) -> DocumentError:
    return DocumentError(what, where, why, _DAMAGED)


def _keys(value: object, keys: tuple[str, ...], where: str) -> None:
    """Refuse anything but an object of exactly these keys."""
    if not isinstance(value, dict):
        raise _refuse(shown(value), where, f"an object of {', '.join(keys)} is needed")
    for problem, names in (
        ("is missing", [key for key in keys if key not in value]),
        ("is unknown", [key for key in value if key not in keys]),
    ):
        if names:
            raise _refuse(f"the key {shown(names[0])} {problem}", where, f"keys: {', '.join(keys)}")


def _items(document: JsonObject, key: str, least: int, most: int) -> list[tuple[str, Any]]:
    """Items of a list, each with its place."""
    items = document[key]
    if not isinstance(items, list):
        raise _refuse(shown(items), key, "a list is needed")
    if not least <= len(items) <= most:
        raise _refuse(f"{len(items)} {key}", key, f"{least} to {most} are allowed")
    return [(f"{key}[{index}]", item) for index, item in enumerate(items)]


def _read_type(value: JsonObject, where: str) -> TensorType:
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _refuse(f"dtype is {shown(dtype)}", where, f"allowed: {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not 1 <= len(shape) <= MAX_RANK:
        raise _refuse(
            f"shape is {shown(shape)}", where, f"a list of 1 to {MAX_RANK} dimensions is needed"
        )
    dims = tuple(_read_dim(dim, where) for dim in shape)
    if math.prod(dim for dim in dims if isinstance(dim, int)) > MAX_ENTRIES:
        raise _refuse(
            f"shape is {shown(shape)}", where, f"a tensor has {MAX_ENTRIES} entries at most"
        )
    return TensorType(dims, dtype)


def _read_dim(value: object, where: str) -> Dim:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ENTRIES:
        return value
    match = _DIM.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _refuse(
            f"a dimension is {shown(value)}",
            where,
            f"a number from 1 to {MAX_ENTRIES} is needed, or {' or '.join(_SYMBOLS)}, to which "
            'a number may be added, as in "batch + 1"',
        )
    return SymbolicDim(match[1], int(match[2] or 0))


class _Reader:
    """Types of the values that were read so far, and the least of those that count, by name."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        self.counted: dict[str, int] = {}

    def program(self, document: JsonObject) -> Program:
        inputs = dict(map(self.tensor, _items(document, "inputs", 1, MAX_INPUTS)))
        items = _items(document, "parameters", 0, MAX_PARAMETERS)
        self.constants = dict(self.tensor(item, constant=True) for item in items)
        steps = tuple(map(self.step, _items(document, "steps", 1, MAX_STEPS)))
        made = {step.name for step in steps}
        outputs = []
        for where, name in _items(document, "outputs", 1, MAX_OUTPUTS):
            if not isinstance(name, str) or name not in made:
                raise _refuse(f"output {shown(name)}", where, "no step has this name")
            outputs.append(name)
        return Program(inputs, self.constants, steps, tuple(outputs))

    def tensor(self, item: tuple[str, Any], constant: bool = False) -> tuple[str, TensorType]:
        where, value = item
        _keys(value, _TENSOR, where)
        name = self.new_name(value["name"], where)
        where = f"{where} {name!r}"
        type_ = _read_type(value, where)
        if constant and not all(isinstance(dim, int) for dim in type_.shape):
            raise _refuse(f"it is {type_}", where, "the dimensions of a parameter are numbers")
        self.types[name] = type_
        return name, type_

    def new_name(self, name: object, where: str) -> str:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise _refuse(f"name is {shown(name)}", where, NAME_RULE)
        if name in self.types:
            raise _refuse(f"name is {name!r}", where, "an earlier value has this name")
        return name

    def step(self, item: tuple[str, Any]) -> Step:
        where, value = item
        _keys(value, ("name", "operator", "operands", "attributes", "result"), where)
        name = self.new_name(value["name"], where)
        where = f"{where} {name!r}"
        word = value["operator"]
        record = OPERATORS.get(word) if isinstance(word, str) else None
        if record is None:
            raise DocumentError(
                f"operator is {shown(word)}",
                where,
                "this version of ibert_tvm does not know it",
                "upgrade ibert_tvm, or quantise the model again with `ibert quantize`",
            )
        operands = self.operands(value["operands"], record, where)
        try:
            operator = record.from_dict({"name": name, **_attributes(value["attributes"], where)})
            type_ = operator.result_type({key: self.types[read] for key, read in operands.items()})
        except CompilerError as error:
            raise _refuse(error.what, where, error.why) from None
        unknown = [key for key in value["attributes"] if key not in operator.to_dict()]
        if unknown:
            raise _refuse(f"unknown attribute {shown(unknown[0])}", where, f"{record.OP} has none")
        _keys(value["result"], ("dtype", "shape"), where)
        stated = _read_type(value["result"], where)
        if stated != type_:
            raise _refuse(f"result is {stated}", where, f"{record.OP} of these operands is {type_}")
        self.types[name] = type_
        if isinstance(operator, Serial):
            self.counted[name] = operator.LEAST
        return Step(operator, operands, type_)

    def operands(self, value: object, record: type[Operator], where: str) -> dict[str, str]:
        if not isinstance(value, dict):
            raise _refuse(f"operands is {shown(value)}", where, "an object of names is needed")
        known = {operand.name: operand for operand in record.OPERANDS}
        for key, name in value.items():
            if key not in known:
                raise _refuse(
                    f"unknown operand {shown(key)}", where, f"{record.OP} has: {', '.join(known)}"
                )
            if not isinstance(name, str) or name not in self.types:
                raise _refuse(
                    f"operand {key} is {shown(name)}",
                    where,
                    "no input, parameter or earlier step has this name",
                )
            if known[key].is_constant and name not in self.constants:
                raise _refuse(
                    f"operand {key} is {shown(name)}", where, "a parameter is needed: a constant"
                )
            least = known[key].counted
            if least is not None and self.counted.get(name, least - 1) < least:
                raise _refuse(
                    f"operand {key} is {shown(name)}",
                    where,
                    f"numbers of rows from {least} on are needed, which an operator counts",
                )
        return dict(value)


def _attributes(value: object, where: str) -> dict[str, int | str]:
    """Integers of 64 bits and words; which there have to be, the record knows."""
    if not isinstance(value, dict):
        raise _refuse(f"attributes is {shown(value)}", where, "an object is needed")
    low, high = dtype_bounds("int64")
    for key, item in value.items():
        number = isinstance(item, int) and not isinstance(item, bool) and low <= item <= high
        if key == "name" or not (number or (isinstance(item, str) and _WORD.fullmatch(item))):
            raise _refuse(
                f"attribute {shown(key)} is {shown(item)}",
                where,
                "an integer of 64 bits or a word is needed",
            )
    return value

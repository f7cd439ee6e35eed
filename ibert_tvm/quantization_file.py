"""`quantization.json` of an artefact: scales, calibration and model information, checked.

What readers of the file rely on is checked when it is read, so that none of them meets a string
where a scale is meant. Keys that nothing reads are not looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ibert_tvm.errors import ArtefactError
from ibert_tvm.model_info import ModelInfo
from ibert_tvm.relay_passes.errors import DocumentError
from ibert_tvm.relay_passes.strict_json import parse, shown

SCHEMA_VERSION = 1
MAX_BYTES = 64 * 2**20
"""Of the file: a scale per channel is 20 bytes."""
_MAX_DEPTH = 16

# A leaf (what is allowed, and how it is called), a list of one schema, or an object: "NAME?" may be
# missing, "*" stands for all other keys.
_STRING = (lambda value: isinstance(value, str), "a string")
_INTEGER = (lambda value: type(value) is int, "an integer")
_FLAG = (lambda value: isinstance(value, bool), "true or false")
_SCALE = (lambda value: type(value) in (int, float) and value > 0, "a number above 0")
_SCALES = (
    lambda value: all(map(_is_number, value if isinstance(value, list) else [value])),
    "a number or a list of numbers",
)
_ZERO_POINTS = (
    lambda value: all(
        type(item) is int for item in (value if isinstance(value, list) else [value])
    ),
    "an integer or a list of integers",
)
_COLUMNS = (
    lambda value: (
        isinstance(value, list)
        and all(type(item) is int and 0 <= item < len(value) for item in value)
    ),
    "a list of channels, one for each column",
)
_INTERVAL = {"scale": _SCALE, "zero_point?": _INTEGER}
_BY_VALUE = {"*": _STRING}
_SOURCE_SCALES = {
    "file": {"*": _BY_VALUE, "matmul": _BY_VALUE, "stream": _BY_VALUE, "grids": _BY_VALUE},
    "widened": _FLAG,
    "calibrated": {"matmul?": [_STRING], "stream?": [_STRING]},
    "weights": {"*": {"rows": _INTEGER, "exact": _INTEGER, "why": _STRING}},
    "notes": [{"value": _STRING, "what": _STRING, "tensor": _STRING}],
    "centred_keys": [_STRING],
    "ignored": [{"use": _STRING, "tensor": _STRING, "grid": _STRING, "value": _STRING}],
}
_SCHEMA = {
    "preset": _STRING,
    "outputs": [{"name": _STRING, **_INTERVAL}],
    "inputs?": [
        {"name": _STRING, "dtype": _STRING, "low": _INTEGER, "high": _INTEGER, **_INTERVAL}
    ],
    "values?": {
        "*": [
            {
                "value": _STRING,
                "form": _STRING,
                "scale": _SCALES,
                "zero_point": _ZERO_POINTS,
                "columns?": _COLUMNS,
            }
        ]
    },
    "calibration?": {},
    "source_scales?": _SOURCE_SCALES,
}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def damaged(file: Path, why: str, where: str = "", todo: str = "") -> ArtefactError:
    """Error for a file of an artefact that cannot be used.

    Parameters
    ----------
    file : pathlib.Path
        The file.
    why : str
        What is wrong with it.
    where : str
        The place in it.
    todo : str
        What the user can do; by default, get the file again.

    Returns
    -------
    ArtefactError
    """
    return ArtefactError(
        f"cannot read {file}",
        where=where,
        why=why,
        todo=todo
        or "the file is damaged or of another version; copy the folder again, or make it again "
        "with `ibert quantize`",
    )


def read_text(file: Path, max_bytes: int) -> str:
    """Read a text of a stranger.

    Parameters
    ----------
    file : pathlib.Path
        UTF-8.
    max_bytes : int
        How much may be in it.

    Returns
    -------
    str

    Raises
    ------
    ArtefactError
        If it cannot be read, is longer, or is not UTF-8.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise damaged(file, f"it has more than {max_bytes} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise damaged(file, str(error.strerror or error)) from error
    except UnicodeDecodeError as error:
        raise damaged(file, f"it is not readable JSON: {error}") from error


def read_quantization(file: Path) -> dict[str, Any]:
    """Read and check the file.

    Parameters
    ----------
    file : pathlib.Path
        ``quantization.json``.

    Returns
    -------
    dict
        Its content, of the schema version that this module names.

    Raises
    ------
    ArtefactError
        If it cannot be read, is of another schema version, or something in it has a wrong type.
    """
    try:
        document = parse(read_text(file, MAX_BYTES), _MAX_DEPTH)
    except DocumentError as error:
        raise damaged(file, "; ".join(filter(None, (error.what, error.why)))) from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise damaged(file, "it has no schema_version")
    version = document["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ArtefactError(
            f"the quantised model {file.parent} has schema version {shown(version)}",
            why=f"this version of ibert_tvm reads schema version {SCHEMA_VERSION}",
            todo="use the version of ibert_tvm that wrote it, or quantise the model again",
        )
    try:
        info = ModelInfo.from_json(document.get("info"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(file, f"its model information is unusable: {error}") from error
    _check(document, _SCHEMA, "", file)
    if len(document["outputs"]) != len(info.outputs):
        raise damaged(
            file,
            f"it has scales of {len(document['outputs'])} outputs, and the model has "
            f"{len(info.outputs)}",
            "outputs",
        )
    return document


def _check(value: Any, schema: Any, where: str, file: Path) -> None:
    """Refuse what a schema does not allow.

    Raises
    ------
    ArtefactError
        Naming the place.
    """
    container = "" if isinstance(schema, tuple) else "a list"
    container = "an object" if isinstance(schema, dict) else container
    fits = isinstance(value, type(schema)) if container else schema[0](value)
    if not fits:
        wanted = container or schema[1]
        raise damaged(file, f"it is {shown(value)}; {wanted} is needed", where)
    if isinstance(schema, list):
        for index, item in enumerate(value):
            _check(item, schema[0], f"{where}[{index}]", file)
    elif isinstance(schema, dict):
        keys = {key.rstrip("?"): (key, part) for key, part in schema.items()}
        _, others = keys.pop("*", ("", None))
        for name, (key, part) in keys.items():
            if name in value:
                _check(value[name], part, f"{where}.{name}".lstrip("."), file)
            elif key == name:
                raise damaged(file, f"the key {name!r} is missing", where)
        for name in [] if others is None else set(value) - set(keys):
            _check(value[name], others, f"{where}.{name}".lstrip("."), file)

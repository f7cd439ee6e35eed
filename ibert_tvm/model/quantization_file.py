"""`quantization.json` of an artefact: scales, calibration and model information, checked.

What readers of the file rely on is checked when it is read, so that none of them meets a string
where a scale is meant. Keys that nothing reads are not looked at.
"""

from __future__ import annotations

from pathlib import Path

from ..common.errors import ArtefactError, DocumentError
from ..common.schema import FLAG, INTEGER, NUMBERS, SCALE, STRING, check
from ..common.strict_json import JsonDict, read_json, shown
from .model_info import ModelInfo

SCHEMA_VERSION = 1
MAX_BYTES = 64 * 2**20
"""Of the file: a scale per channel is 20 bytes."""
_MAX_DEPTH = 16

_COLUMNS = (
    lambda value: (
        isinstance(value, list)
        and all(type(item) is int and 0 <= item < len(value) for item in value)
    ),
    "a list of channels, one for each column",
)
_INTERVAL = {"scale": SCALE, "zero_point?": INTEGER}
_BY_VALUE = {"*": STRING}
_SOURCE_SCALES = {
    "file": {"*": _BY_VALUE, "matmul": _BY_VALUE, "stream": _BY_VALUE, "grids": _BY_VALUE},
    "widened": FLAG,
    "calibrated": {"matmul?": [STRING], "stream?": [STRING]},
    "weights": {"*": {"rows": INTEGER, "exact": INTEGER, "why": STRING}},
    "notes": [{"value": STRING, "what": STRING, "tensor": STRING}],
    "centred_keys": [STRING],
    "ignored": [{"use": STRING, "tensor": STRING, "grid": STRING, "value": STRING}],
}
_SCHEMA = {
    "preset": STRING,
    "outputs": [{"name": STRING, **_INTERVAL}],
    "inputs?": [{"name": STRING, "dtype": STRING, "low": INTEGER, "high": INTEGER, **_INTERVAL}],
    "values?": {
        "*": [
            {
                "value": STRING,
                "form": STRING,
                "scale": NUMBERS,
                "zero_point": NUMBERS,
                "columns?": _COLUMNS,
                "excess?": NUMBERS,
            }
        ]
    },
    "calibration?": {},
    "source_scales?": _SOURCE_SCALES,
    "vocabulary?": {"*": INTEGER},
    "word_table_bits?": INTEGER,
    "narrow_weights?": INTEGER,
}


def damaged(file: Path, why: str, where: str = "", todo: str = "") -> ArtefactError:
    """Error for a file of an artefact that cannot be used.

    Parameters
    ----------
    file : pathlib.Path
        The file.
    why
        What is wrong with it.
    where
        The place in it.
    todo
        What the user can do; by default, get the file again.
    """
    return ArtefactError(
        f"cannot read {file}",
        where=where,
        why=why,
        todo=todo
        or "the file is damaged or of another version; copy the folder again, or make it again "
        "with `ibert quantize`",
    )


def refused(file: Path, error: DocumentError) -> ArtefactError:
    """The same for what a reader of documents refused."""
    why = "; ".join(filter(None, (error.what, error.why)))
    return damaged(file, why, error.where, error.todo)


def read_quantization(file: Path) -> JsonDict:
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
        document = read_json(file, MAX_BYTES, _MAX_DEPTH)
    except DocumentError as error:
        raise refused(file, error) from error
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
        check(document, _SCHEMA)
    except DocumentError as error:
        raise refused(file, error) from error
    except ValueError as error:
        raise damaged(file, f"its model information is unusable: {error}") from error
    if len(document["outputs"]) != len(info.outputs):
        raise damaged(
            file,
            f"it has scales of {len(document['outputs'])} outputs, and the model has "
            f"{len(info.outputs)}",
            "outputs",
        )
    return document

"""A quantised model in memory, and as the folder `NAME.ibert/`.

The folder holds everything behind quantisation and nothing of the float model:

=====================  ==========================================================================
model.json             the integer program (`docs/ibert-format.md`)
params.safetensors     its parameters: integers
quantization.json      schema version, preset, scales, calibration summary, model information
tokenizer/             the source's tokenizer files, where it had any
manifest.json          size and SHA-256 of each of these, checked before they are read
=====================  ==========================================================================

Loading needs neither TVM nor torch, and checks everything before anything is evaluated or compiled.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..common.errors import ArtefactError, DocumentError
from ..common.extras import require
from ..common.files import OutputKind, write_folder
from ..common.integrity import MANIFEST, SIGNATURE, check_manifest, write_manifest
from ..common.strict_json import JsonDict, JsonObject, decode, read_bytes
from ..common.types import Array
from .model_info import ModelInfo
from .quantization_file import SCHEMA_VERSION, damaged, read_quantization, refused
from .tokenization import MAX_TOKENIZER_BYTES, TOKENIZER_FILES

if TYPE_CHECKING:
    import tvm

    from ibert_tvm.relay_passes.integer.program import Program, Step

_MODEL = "model.json"
_PARAMETERS = "params.safetensors"
_QUANTIZATION = "quantization.json"
_TOKENIZER = "tokenizer"
_FILES = (_MODEL, _PARAMETERS, _QUANTIZATION)
_REQUIRED = (*_FILES, MANIFEST)
# Of safetensors; others are shown as the file has them.
_DTYPES = {
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F32": "float32",
}


@dataclass(frozen=True)
class QuantizedModel:
    """A model in the integer dialect, with its integers and what is known about it.

    `program` needs no TVM; `module`, the same as a Relax module, is built when it is asked for.

    Attributes
    ----------
    program
        In the integer dialect, `batch` and `seq_len` symbolic.
    parameters
        The integer arrays, by the names of the program's parameters and in their order.
    info
        Architecture, sizes, heads and source of the model.
    quantization : dict
        JSON-able: `preset`, `scales` (by value name), `outputs`, `calibration`.
    tokenizer
        Tokenizer files of the source by name, empty if it had none.

    Raises
    ------
    ArtefactError
        If the parameters do not fit the program.
    """

    program: Program
    parameters: Mapping[str, Array]
    info: ModelInfo
    quantization: JsonObject
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stated = {name: (str(a.dtype), a.shape) for name, a in self.parameters.items()}
        _check_parameters(self.program, stated, where="QuantizedModel")
        ordered = {name: self.parameters[name] for name in self.program.parameters}
        object.__setattr__(self, "parameters", ordered)

    @cached_property
    def module(self) -> tvm.IRModule:
        """The program as a Relax module, see `ibert_tvm.relay_passes.integer.relax_ops`."""
        from ibert_tvm.relay_passes.integer.relax_ops import to_module

        return to_module(self.program)

    @property
    def preset(self) -> str:
        """Name of the numerics preset, `accurate` or `paper`."""
        return str(self.quantization.get("preset", ""))

    @property
    def num_bytes(self) -> int:
        """Bytes of all integer parameters together."""
        return sum(array.nbytes for array in self.parameters.values())

    @property
    def bytes_by_operator(self) -> dict[str, int]:
        """Bytes of the parameters by the operators that read them first, the largest first."""
        sizes: Counter[str] = Counter()
        left = dict(self.parameters)
        for step in self.program.steps:
            name = step.operator.OP.rpartition(".")[2]
            read = set(step.operands.values()) & left.keys()
            sizes[name] += sum(left.pop(parameter).nbytes for parameter in read)
        return {name: size for name, size in sizes.most_common() if size}

    @property
    def input_names(self) -> list[str]:
        """Names of the program's inputs, in order."""
        return list(self.program.inputs)

    def document(self, path: Path) -> JsonDict:
        """What `ibert inspect` says of it in the folder that it was read from."""
        return {
            "kind": "quantised model",
            "path": str(path),
            "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()),
            "parameters": [
                {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
                for name, array in sorted(self.parameters.items())
            ],
            "weight_bytes": self.num_bytes,
            "bytes_by_operator": self.bytes_by_operator,
            "schema_version": SCHEMA_VERSION,
            **self.quantization,
            "info": self.info.to_json(),
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the folder, replacing an artefact of the same name and nothing else.

        Parameters
        ----------
        path : path
            The folder, by convention with the suffix `.ibert`.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        OutputError
            If it cannot be written, or something that is not an artefact is there.
        DocumentError
            If the program has what the format does not hold, for example a name of another
            alphabet.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        from ibert_tvm.relay_passes.integer.document import write_document

        document = {
            "schema_version": SCHEMA_VERSION,
            **self.quantization,
            "info": self.info.to_json(),
        }
        text = json.dumps(document, indent=1, allow_nan=False)
        program = write_document(self.program)
        target = Path(path).expanduser()
        with write_folder(target, ARTEFACT) as folder:
            (folder / _MODEL).write_text(program, encoding="utf-8")
            # safetensors writes strides away silently: a transposed view would be stored wrong.
            arrays = {name: np.ascontiguousarray(a) for name, a in self.parameters.items()}
            try:
                save_file(arrays, folder / _PARAMETERS)
            except SafetensorError as error:
                raise OSError(str(error)) from error
            (folder / _QUANTIZATION).write_text(text, encoding="utf-8")
            if self.tokenizer:
                (folder / _TOKENIZER).mkdir()
                for name, content in self.tokenizer.items():
                    (folder / _TOKENIZER / Path(name).name).write_bytes(content)
            write_manifest(folder)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantizedModel:
        """Read and check a folder written by `save`. Needs neither TVM nor torch.

        Parameters
        ----------
        path : path
            The folder.

        Raises
        ------
        ArtefactError
            If a file is missing, damaged, of another schema version, or does not fit the others.
        """
        folder = Path(path).expanduser()
        document = read_document(folder)
        del document["schema_version"]
        info = ModelInfo.from_json(document.pop("info"))
        program = _load_program(folder / _MODEL)
        _check_names(program, info, document, folder / _QUANTIZATION)
        parameters = _load_parameters(folder / _PARAMETERS, program, str(folder))
        return cls(program, parameters, info, document, _load_tokenizer(folder / _TOKENIZER))


def rebuilt(
    model: QuantizedModel,
    steps: Sequence[Step],
    arrays: Mapping[str, Array],
    notes: JsonObject,
) -> QuantizedModel:
    """A model of other steps, and of those of the arrays that they read; its ranges are proved.

    Parameters
    ----------
    model
        What it is made from.
    steps
        Of its program.
    arrays
        Parameters, among others.
    notes
        What `quantization.json` says of it.
    """
    from ibert_tvm.relay_passes.integer.ranges import analyse_ranges

    program, kept = with_steps(model.program, steps, arrays)
    analyse_ranges(program, kept)
    how = {**model.quantization, **notes}
    return replace(model, program=program, parameters=kept, quantization=how)


def with_steps(
    program: Program, steps: Sequence[Step], arrays: Mapping[str, Array]
) -> tuple[Program, dict[str, Array]]:
    """A program of other steps, and those of the arrays that they read."""
    from ibert_tvm.relay_passes.integer.types import TensorType

    read = {name for step in steps for name in step.operands.values()}
    kept = {name: array for name, array in arrays.items() if name in read}
    types = {name: TensorType(array.shape, str(array.dtype)) for name, array in kept.items()}
    return replace(program, steps=tuple(steps), parameters=types), kept


def is_artefact(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a folder that `QuantizedModel.save` wrote, with nothing added to it.

    A folder with other files in it is not one, so that replacing never deletes a user's file.
    """
    folder = Path(path)
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {entry.name for entry in folder.iterdir()}
    return {_MODEL, _QUANTIZATION} <= names and names <= {*_REQUIRED, _TOKENIZER, SIGNATURE}


ARTEFACT = OutputKind("an .ibert artefact", is_artefact, folder=True)


def read_document(path: str | os.PathLike[str]) -> JsonDict:
    """Read `quantization.json` of an artefact, without TVM and without its parameters.

    Parameters
    ----------
    path : path
        The folder.

    Returns
    -------
    dict
        Its content, of the schema version that this module writes.

    Raises
    ------
    ArtefactError
        If the folder or one of its files is missing, or the document cannot be used; see
        `ibert_tvm.model.quantization_file.read_quantization`.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        raise ArtefactError(
            f"there is no quantised model at {folder}",
            why="the path does not exist",
            todo="check the path; `ibert quantize MODEL -o NAME.ibert` makes one",
        )
    if not folder.is_dir():
        raise ArtefactError(
            f"{folder} is not a quantised model",
            why="it is a file; a quantised model is a folder",
            todo="give the NAME.ibert folder that `ibert quantize` wrote",
        )
    missing = [name for name in _REQUIRED if not (folder / name).is_file()]
    if len(missing) == len(_REQUIRED):
        raise ArtefactError(
            f"{folder} is not a quantised model",
            why=f"none of {', '.join(_FILES)} is in it",
            todo="give the NAME.ibert folder that `ibert quantize` wrote; a Hugging Face folder "
            "must be quantised first",
        )
    if missing:
        raise ArtefactError(
            f"the quantised model {folder} is incomplete",
            why=f"it lacks {', '.join(missing)}",
            todo="copy the whole folder, or make it again with `ibert quantize`",
        )
    _check_manifest(folder)
    return read_quantization(folder / _QUANTIZATION)


def read_info(path: str | os.PathLike[str]) -> ModelInfo:
    """What an artefact says of its model; errors as for `read_document`."""
    return ModelInfo.from_json(read_document(path)["info"])


def _check_manifest(folder: Path) -> None:
    """Check every file that is read; in the tokenizer's folder there may be no other."""
    listed = {*check_manifest(folder, damaged)}
    needed = {*_FILES}
    tokenizer = folder / _TOKENIZER
    if tokenizer.is_dir():
        needed |= {f"{_TOKENIZER}/{file.name}" for file in tokenizer.iterdir()}
    for name in sorted(needed - listed):
        raise damaged(folder / name, f"{MANIFEST} does not list it")


def _load_program(file: Path) -> Program:
    from ibert_tvm.relay_passes.integer import document

    try:
        return document.read_document(decode(read_bytes(file, document.MAX_BYTES)))
    except DocumentError as error:
        raise refused(file, error) from error


def _load_parameters(file: Path, program: Program, where: str) -> dict[str, Array]:
    """Read the arrays of a program's parameters, if the file says that it holds no others."""
    require("safetensors", to="a NAME.ibert folder")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            headers = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            stated = {
                name: (_DTYPES.get(h.get_dtype(), h.get_dtype()), tuple(h.get_shape()))
                for name, h in headers.items()
            }
            _check_parameters(program, stated, where)
            return {name: tensors.get_tensor(name) for name in program.parameters}
    except SafetensorError as error:
        raise damaged(file, f"it is truncated or not a safetensors file: {error}") from error
    except OSError as error:
        raise damaged(file, str(error.strerror or error)) from error


def _load_tokenizer(folder: Path) -> dict[str, bytes]:
    """Read the tokenizer files; what they hold goes into every library that is compiled.

    So nothing is read that lies elsewhere, however it got a name here.
    """
    if folder.is_symlink():
        raise damaged(folder, "it is a link to another place")
    files = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.is_symlink() or not file.is_file():
            raise damaged(file, "it is no file of its own, but a link, a folder or a device")
        if file.name not in TOKENIZER_FILES:
            raise damaged(file, f"a tokenizer has these files: {', '.join(TOKENIZER_FILES)}")
        try:
            files[file.name] = read_bytes(file, MAX_TOKENIZER_BYTES)
        except DocumentError as error:
            raise refused(file, error) from error
    return files


def _check_parameters(
    program: Program, stated: Mapping[str, tuple[str, tuple[int, ...]]], where: str
) -> None:
    """Check the dtypes and shapes of arrays by name against the program's parameters."""
    todo = "model.json and params.safetensors do not belong together; quantise the model again"
    expected = program.parameters
    missing = [name for name in expected if name not in stated]
    unknown = [name for name in stated if name not in expected]
    for what, names in (("lacks", missing), ("has unknown", unknown)):
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            raise ArtefactError(
                f"the quantised model {what} {len(names)} parameter{'s' * (len(names) > 1)}",
                where=where,
                why=f"{shown}; the integer program expects {len(expected)} parameters",
                todo=todo,
            )
    for name, type_ in expected.items():
        dtype, shape = stated[name]
        if (shape, dtype) != (type_.shape, type_.dtype):
            raise ArtefactError(
                f"parameter {name!r} does not fit the integer program",
                where=where,
                why=f"it is {dtype}{list(shape)}, expected {type_.dtype}{list(type_.shape)}",
                todo=todo,
            )


def _check_names(program: Program, info: ModelInfo, document: JsonObject, file: Path) -> None:
    """Check that what is said about inputs and outputs is said about those of the program."""
    inputs, outputs = list(program.inputs), len(program.outputs)
    if list(info.inputs) != inputs or len(info.outputs) != outputs:
        raise damaged(
            file,
            f"it describes the inputs {', '.join(info.inputs)} and {len(info.outputs)} outputs; "
            f"the integer program has {', '.join(inputs)} and {outputs}",
        )
    for index, entry in enumerate(document.get("inputs", ())):
        type_ = program.inputs.get(entry["name"])
        if type_ is None or type_.dtype != entry["dtype"]:
            raise damaged(
                file,
                f"it is {entry['name']!r} of {entry['dtype']}; the integer program has no such "
                "input",
                f"inputs[{index}]",
            )

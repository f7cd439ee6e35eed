"""A quantised model in memory, and as the folder `NAME.ibert/`.

The folder holds everything behind quantisation and nothing of the float model:

=====================  ==========================================================================
model.json             the integer Relax module (`tvm.ir.save_json`)
params.safetensors     its parameters: integers
quantization.json      schema version, preset, scales, calibration summary, model information
tokenizer/             the source's tokenizer files, where it had any
=====================  ==========================================================================

Loading needs TVM and NumPy, but not torch, and checks everything before anything is compiled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.errors import ArtefactError
from ibert_tvm.files import write_folder

if TYPE_CHECKING:
    import tvm

    from ibert_tvm.model_info import ModelInfo

__all__ = ["SCHEMA_VERSION", "QuantizedModel", "is_artefact", "read_document"]

SCHEMA_VERSION = 1

_MODEL = "model.json"
_PARAMETERS = "params.safetensors"
_QUANTIZATION = "quantization.json"
_TOKENIZER = "tokenizer"
_REQUIRED = (_MODEL, _PARAMETERS, _QUANTIZATION)
_FUNCTION = "main"


@dataclass(frozen=True)
class QuantizedModel:
    """A model in the integer dialect, with its integers and what is known about it.

    Attributes
    ----------
    module : tvm.IRModule
        One function `main` in the integer dialect, `batch` and `seq_len` symbolic; its attribute
        `num_input` counts the leading parameters that are inputs.
    parameters : dict of str to numpy.ndarray
        The integer arrays, by the names of the function's other parameters and in their order.
    info : ModelInfo
        Architecture, sizes, heads and source of the model.
    quantization : dict
        JSON-able: `preset`, `scales` (by value name), `outputs`, `calibration`.
    tokenizer : dict of str to bytes
        Tokenizer files of the source by name, empty if it had none.

    Raises
    ------
    ArtefactError
        If the parameters do not fit the function.
    """

    module: tvm.IRModule
    parameters: Mapping[str, NDArray[Any]]
    info: ModelInfo
    quantization: Mapping[str, Any]
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = _check_parameters(self.module, self.parameters, where="QuantizedModel")
        # safetensors gives them back in an order of its own.
        object.__setattr__(self, "parameters", {name: self.parameters[name] for name in names})

    @property
    def preset(self) -> str:
        """Name of the numerics preset, `accurate` or `paper`."""
        return str(self.quantization.get("preset", ""))

    @property
    def num_bytes(self) -> int:
        """Bytes of all integer parameters together."""
        return sum(array.nbytes for array in self.parameters.values())

    @property
    def input_names(self) -> list[str]:
        """Names of the function's inputs, in order."""
        function = self.module[_FUNCTION]
        return [p.name for p in function.params[: _num_input(function)]]

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
        """
        import tvm
        from safetensors.numpy import save_file

        document = {
            "schema_version": SCHEMA_VERSION,
            **self.quantization,
            "info": self.info.to_json(),
        }
        text = json.dumps(document, indent=1, allow_nan=False)
        target = Path(path).expanduser()
        with write_folder(target, replaceable=is_artefact(target)) as folder:
            (folder / _MODEL).write_text(tvm.ir.save_json(self.module), encoding="utf-8")
            # safetensors writes strides away silently: a transposed view would be stored wrong.
            arrays = {name: np.ascontiguousarray(a) for name, a in self.parameters.items()}
            save_file(arrays, folder / _PARAMETERS)
            (folder / _QUANTIZATION).write_text(text, encoding="utf-8")
            if self.tokenizer:
                (folder / _TOKENIZER).mkdir()
                for name, content in self.tokenizer.items():
                    (folder / _TOKENIZER / Path(name).name).write_bytes(content)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantizedModel:
        """Read and check a folder written by `save`. Does not need torch.

        Parameters
        ----------
        path : path
            The folder.

        Returns
        -------
        QuantizedModel

        Raises
        ------
        ArtefactError
            If a file is missing, damaged, of another schema version, or does not fit the others.
        """
        from ibert_tvm.model_info import ModelInfo

        folder = Path(path).expanduser()
        document = read_document(folder)
        info_document = document.pop("info", None)
        del document["schema_version"]
        try:
            info = ModelInfo.from_json(info_document)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(
                folder / _QUANTIZATION, f"its model information is unusable: {error}"
            ) from error
        module = _load_module(folder / _MODEL)
        parameters = _load_parameters(folder / _PARAMETERS)
        _check_parameters(module, parameters, where=str(folder))  # to say which folder it is
        tokenizer_folder = folder / _TOKENIZER
        tokenizer = (
            {f.name: f.read_bytes() for f in sorted(tokenizer_folder.iterdir()) if f.is_file()}
            if tokenizer_folder.is_dir()
            else {}
        )
        return cls(module, parameters, info, document, tokenizer)


def is_artefact(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a folder that `QuantizedModel.save` wrote, with nothing added to it.

    A folder with other files in it is not one, so that replacing never deletes a user's file.
    """
    folder = Path(path)
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {entry.name for entry in folder.iterdir()}
    return {_MODEL, _QUANTIZATION} <= names and names <= {*_REQUIRED, _TOKENIZER}


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
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
        If the folder or one of its files is missing, or the document cannot be used.
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
            why=f"none of {', '.join(_REQUIRED)} is in it",
            todo="give the NAME.ibert folder that `ibert quantize` wrote; a Hugging Face folder "
            "must be quantised first",
        )
    if missing:
        raise ArtefactError(
            f"the quantised model {folder} is incomplete",
            why=f"it lacks {', '.join(missing)}",
            todo="copy the whole folder, or make it again with `ibert quantize`",
        )
    file = folder / _QUANTIZATION
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(file, f"it is not readable JSON: {error}") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise _damaged(file, "it has no schema_version")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        raise ArtefactError(
            f"the quantised model {folder} has schema version {version!r}",
            why=f"this version of ibert_tvm reads schema version {SCHEMA_VERSION}",
            todo="use the version of ibert_tvm that wrote it, or quantise the model again",
        )
    return document


def _damaged(file: Path, why: str) -> ArtefactError:
    return ArtefactError(
        f"cannot read {file}",
        why=why,
        todo="the file is damaged or of another version; copy the folder again, or make it again "
        "with `ibert quantize`",
    )


def _load_module(file: Path) -> tvm.IRModule:
    import tvm

    # Also registers the operators that the module names.
    from ibert_tvm.relay_passes.integer.relax_ops import read_program

    try:
        text = file.read_text(encoding="utf-8")
        json.loads(text)  # TVM's own parser reports damage by a C++ stack trace
        module = tvm.ir.load_json(text)
    except OSError as error:
        raise _damaged(file, str(error.strerror or error)) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(file, f"it is not readable JSON: {error}") from error
    except Exception as error:  # tvm.error types share no base class below Exception
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise _damaged(file, f"TVM {tvm.__version__} cannot load it: {reason}") from error
    if not isinstance(module, tvm.IRModule) or _FUNCTION not in [
        g.name_hint for g in module.get_global_vars()
    ]:
        raise _damaged(file, f"it holds no function {_FUNCTION!r}")
    try:
        read_program(module, _FUNCTION)
    except Exception as error:  # a lowering error, or what reading a missing attribute raises
        reason = str(error).splitlines()[0]
        raise _damaged(file, f"it is no program of this integer dialect: {reason}") from error
    return module


def _load_parameters(file: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise _damaged(file, f"it is truncated or not a safetensors file: {error}") from error
    except OSError as error:
        raise _damaged(file, str(error.strerror or error)) from error


def _num_input(function: Any) -> int:
    attributes = function.attrs
    if attributes is None or "num_input" not in attributes:
        return 0
    return int(attributes["num_input"])


def _check_parameters(
    module: tvm.IRModule, parameters: Mapping[str, NDArray[Any]], where: str
) -> list[str]:
    """Check `parameters` against the function's; return the names in the function's order."""
    function = module[_FUNCTION]
    todo = "model.json and params.safetensors do not belong together; quantise the model again"
    expected = {p.name: p.ty for p in function.params[_num_input(function) :]}
    missing = [name for name in expected if name not in parameters]
    unknown = [name for name in parameters if name not in expected]
    for what, names in (("lacks", missing), ("has unknown", unknown)):
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            raise ArtefactError(
                f"the quantised model {what} {len(names)} parameter{'s' * (len(names) > 1)}",
                where=where,
                why=f"{shown}; the integer program expects {len(expected)} parameters",
                todo=todo,
            )
    for name, ty in expected.items():
        array = parameters[name]
        shape = tuple(int(extent) for extent in ty.shape.values)
        dtype = str(ty.dtype)
        if array.shape != shape or str(array.dtype) != dtype:
            raise ArtefactError(
                f"parameter {name!r} does not fit the integer program",
                where=where,
                why=f"it is {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}",
                todo=todo,
            )
        if array.dtype.kind not in "iu":
            raise ArtefactError(
                f"parameter {name!r} is not integer",
                where=where,
                why=f"its dtype is {array.dtype}; a quantised model holds integers only",
                todo="this is a defect of the quantisation that made it; please report it",
            )
    return list(expected)

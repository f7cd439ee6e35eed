"""Documents and weight files of a model folder: found and checked before they are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..common import strict_json
from ..common.errors import DocumentError
from ..common.schema import STRING, Schema, check
from .errors import ModelSourceError

_INDEX = "model.safetensors.index.json"
_LEGACY = "pytorch_model.bin"
_ARTEFACT = "quantization.json"

CARD = "README.md"
"""What the hub calls a model's card: text behind some lines of YAML."""
_STATED_LICENSE = re.compile(r"""^(license|license_name):[ \t]*["']?([\w.+-]+)""", re.MULTILINE)

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 32
"""Of a JSON document of a model folder."""
_MAX_PLACE = 255


def read_json(file: Path, folder: Path, schema: Schema | None = None) -> Any:
    """Read a JSON document of a model folder.

    Parameters
    ----------
    file : pathlib.Path
        The document.
    folder : pathlib.Path
        The model.
    schema
        What it holds; by default an object.

    Raises
    ------
    ModelSourceError
        If it is not there, or cannot be read.
    """
    if not file.is_file():
        raise not_a_model(folder, file)
    try:
        document = strict_json.read_json(file, MAX_BYTES, MAX_DEPTH)
        check(document, {} if schema is None else schema)
    except DocumentError as error:
        why = "; ".join(filter(None, (error.where, error.what, error.why)))
        raise ModelSourceError(
            f"{file.name} cannot be read",
            where=str(file),
            why=why,
            todo="copy the model folder again",
        ) from error
    return document


def stated_license(folder: Path) -> str | None:
    """Licence that the card of a model folder states; None without a card that can be read."""
    try:
        card = strict_json.read_bytes(folder / CARD, MAX_BYTES).decode("utf-8", "replace")
    except DocumentError:
        return None
    begins, _, rest = card.partition("---\n")
    stated: dict[str, str] = dict(_STATED_LICENSE.findall(rest.partition("\n---")[0]))
    return None if begins else stated.get("license_name", stated.get("license"))


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Find the weight files and open each, so that a damaged one is reported by name."""
    if (folder / _INDEX).is_file():
        index = read_json(folder / _INDEX, folder, {"weight_map": {"*": STRING}})
        names = sorted(set(index["weight_map"].values()))
        files = [inside(folder, name, _INDEX) for name in names]
    elif (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    elif (folder / _LEGACY).is_file():
        return (folder / _LEGACY,)
    else:
        files = []
    graphs = sorted(file.name for file in folder.glob("*.onnx"))
    if not files and graphs:
        raise ModelSourceError(
            f"{folder} has no weights of its own, but ONNX models",
            where=str(folder),
            why=f"it holds {', '.join(graphs)}",
            todo=f"give the ONNX file itself, for example {folder / graphs[0]}",
        )
    if not files:
        raise ModelSourceError(
            f"{folder} has no weights",
            where=str(folder),
            why=f"none of model.safetensors, {_INDEX} and {_LEGACY} is there",
            todo="copy the weight files too (with Git LFS: git lfs pull)",
        )
    for file in files:
        _check_safetensors(file)
    return tuple(files)


def not_a_model(path: Path, missing: Path | None = None) -> ModelSourceError:
    """Return the refusal of a path at which there is no model, or a part of one is `missing`."""
    if not path.exists():
        return ModelSourceError(
            f"there is no {path}",
            where=str(path),
            why="a model is a local folder; names on the Hugging Face hub are not downloaded",
            todo="check the path, or download the model first and give its folder",
        )
    if not path.is_dir():
        return ModelSourceError(
            f"{path.name} is not a folder",
            where=str(path),
            why="a model is a Hugging Face folder with config.json and weights",
            todo="give the folder that contains the file",
        )
    if (path / _ARTEFACT).exists():
        return ModelSourceError(
            f"{path} is quantised already",
            where=str(path / _ARTEFACT),
            why="it is an artefact of this package, and only sources are imported",
            todo="read it with ibert_tvm.QuantizedModel.load, or give the model that it came from",
        )
    file = path / "config.json" if missing is None else missing
    return ModelSourceError(
        f"{path} is not a model folder",
        where=str(file),
        why=f"it has no {file.name}",
        todo="give a Hugging Face folder: config.json, model.safetensors, tokenizer files",
    )


def is_model_folder(model: object) -> bool:
    """Tell whether an object is the path of a model folder, and not of an artefact of ours."""
    return (
        isinstance(model, Path)
        and any((model / name).is_file() for name in ("config.json", "modules.json"))
        and not (model / _ARTEFACT).exists()
    )


def is_hub_entry(model: object) -> bool:
    """Tell whether an object is the path of an entry of the Hugging Face hub's cache."""
    return (
        isinstance(model, Path)
        and (model / "snapshots").is_dir()
        and not any((model / name).exists() for name in ("config.json", _ARTEFACT))
    )


def hub_snapshot(folder: Path, revision: str | None = None) -> Path:
    """Return the model folder in an entry of the Hugging Face hub's cache; `folder` if it is none.

    Such an entry, ``models--NAME``, holds one folder per commit in ``snapshots`` and the commit of
    its branches in ``refs``. A `revision` is a branch, a tag or a commit.

    Raises
    ------
    ModelSourceError
        If there is no snapshot of the revision; where none is given of the branch ``main``, and not
        exactly one of anything else.
    """
    wanted = revision or "main"
    snapshots, branch = folder / "snapshots", folder / "refs" / wanted
    if not is_hub_entry(folder):
        return folder
    held = sorted(entry.name for entry in snapshots.iterdir() if entry.is_dir())
    commit = wanted
    if branch.is_file():
        commit = branch.read_text(encoding="utf-8", errors="replace").strip()
    alone = held[0] if len(held) == 1 and revision is None else None
    chosen = commit if commit in held else alone
    if chosen is None:
        raise ModelSourceError(
            f"{folder.name} names no model folder",
            where=str(folder),
            why=f"it is an entry of the hub's cache with {len(held)} snapshots, none of them "
            f"{wanted}",
            todo=f"give one of its folders, {snapshots}/COMMIT",
        )
    return snapshots / chosen


def inside(folder: Path, name: str, document: str) -> Path:
    """Return the place that a document of the folder names, which may not lie outside of it."""
    place = folder / name
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts or "\0" in name or len(name) > _MAX_PLACE:
        raise ModelSourceError(
            f"{document} names a file outside of the folder",
            where=str(folder / document),
            why=f"it says {name!r}",
            todo="copy the model folder again, from where it was published",
        )
    return place


def _check_safetensors(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise ModelSourceError(
            f"the weight file {file.name} is missing",
            where=str(file),
            why=f"{_INDEX} lists it",
            todo="copy the model folder again",
        )
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelSourceError(
            f"the weight file {file.name} is damaged",
            where=str(file),
            why=f"{error} ({file.stat().st_size} bytes)",
            todo="copy the file again: it is truncated, or a Git LFS pointer (git lfs pull)",
        ) from error

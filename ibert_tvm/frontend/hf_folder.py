"""Reading a Hugging Face model folder: configuration, weight files, pooling. Needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import files_sha256
from ..model_info import HEADS
from ..tokenization import tokenizer_files
from .errors import ModelSourceError

TESTED_ARCHITECTURES = (
    "bert",
    "camembert",
    "deit",
    "distilbert",
    "electra",
    "roberta",
    "vit",
    "xlm-roberta",
)
"""Values of ``model_type`` that the tests import and compare with transformers."""

CLASS_SUFFIXES = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
    "ForImageClassification": "image_classification",
    "ForImageClassificationWithTeacher": "image_classification",
}
"""Ends of transformers' class names and the heads that they compute."""

_INDEX = "model.safetensors.index.json"
_LEGACY = "pytorch_model.bin"


def head_of_class(name: str) -> str:
    """Return the head that a transformers class computes; ``none`` for bare and pretraining ones.

    Parameters
    ----------
    name : str
        Class name, for example ``BertForSequenceClassification``.

    Returns
    -------
    str
        One of `ibert_tvm.model_info.HEADS`.
    """
    return next((head for suffix, head in CLASS_SUFFIXES.items() if name.endswith(suffix)), "none")


@dataclass(frozen=True)
class HfFolder:
    """A model folder whose files were found and checked.

    Attributes
    ----------
    path : Path
        The folder as given.
    model : Path
        Where configuration and weights are: `path`, or the Transformer folder of a
        sentence-transformers model.
    config : dict
        ``config.json``.
    weights : tuple of Path
        Weight files in name order.
    pooling : str
        ``mean`` or ``cls`` for a sentence-transformers model, else empty.
    notes : tuple of str
        What the folder asks for that the compiled model leaves to the caller.
    """

    path: Path
    model: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]
    pooling: str
    notes: tuple[str, ...]

    @property
    def model_type(self) -> str:
        """The architecture's name, ``model_type`` of the configuration."""
        return str(self.config["model_type"])

    @property
    def default_head(self) -> str:
        """The head that the folder's files ask for."""
        if self.pooling:
            return "sentence_embedding"
        classes = self.config.get("architectures") or [""]
        return head_of_class(str(classes[0]))

    def provenance(self, head: str) -> dict[str, Any]:
        """Return what `ibert_tvm.frontend.finish.described` notes of a model with this head."""
        return {
            "source": str(self.path),
            "description": f"{self.model_type} from {self.path.name}, head {head}",
            "sha256": files_sha256(self.weights),
            "tokenizer": tokenizer_files(self.model) or tokenizer_files(self.path),
            "notes": self.notes if head == "sentence_embedding" else (),
        }

    @classmethod
    def read(cls, path: str | Path) -> HfFolder:
        """Read and check a folder.

        Parameters
        ----------
        path : path
            The folder.

        Returns
        -------
        HfFolder
            What was found.

        Raises
        ------
        ModelSourceError
            If the path does not exist, is no model folder, or has damaged files.
        """
        folder = Path(path).expanduser()
        if not folder.exists():
            raise ModelSourceError(
                f"there is no {folder}",
                where=str(folder),
                why="a model is a local folder; names on the Hugging Face hub are not downloaded",
                todo="check the path, or download the model first and give its folder",
            )
        if not folder.is_dir():
            raise ModelSourceError(
                f"{folder.name} is not a folder",
                where=str(folder),
                why="a model is a Hugging Face folder with config.json and weights",
                todo="give the folder that contains the file",
            )
        model, pooling, notes = _sentence_transformer(folder)
        config = _read_json(model / "config.json", folder)
        if not isinstance(config, dict) or not config.get("model_type"):
            raise ModelSourceError(
                "config.json names no model_type",
                where=str(model / "config.json"),
                why="it decides which transformers class the weights belong to",
                todo=f"add it; tested values: {', '.join(TESTED_ARCHITECTURES)}",
            )
        return cls(folder, model, config, _weight_files(model), pooling, notes)


def check_head(head: str | None, default: str) -> str:
    """Return `head`, or `default` if it is None.

    Raises
    ------
    ModelSourceError
        If there is no such head.
    """
    if head is None:
        return default
    if head not in HEADS:
        raise ModelSourceError(
            f"there is no head {head!r}",
            where="head",
            why=f"known heads: {', '.join(HEADS)}",
            todo="use one of them, or leave it out to follow the model's configuration",
        )
    return head


def given_tokenizer(path: str | Path) -> dict[str, bytes]:
    """Read the tokenizer files of a folder that was named for them.

    Parameters
    ----------
    path : path
        The folder.

    Returns
    -------
    dict of str to bytes
        File contents by name.

    Raises
    ------
    ModelSourceError
        If there are none.
    """
    folder = Path(path).expanduser()
    files = tokenizer_files(folder)
    if not files:
        raise ModelSourceError(
            f"there is no tokenizer in {folder}",
            where=str(folder),
            why="it has neither tokenizer.json, nor vocab.txt, nor vocab.json with merges.txt"
            if folder.is_dir()
            else "it is not a folder",
            todo="give the folder that holds the model's tokenizer files",
        )
    return files


def _read_json(file: Path, folder: Path) -> Any:
    if not file.is_file():
        raise ModelSourceError(
            f"{folder} is not a model folder",
            where=str(file),
            why=f"it has no {file.name}",
            todo="give a Hugging Face folder: config.json, model.safetensors, tokenizer files",
        )
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelSourceError(
            f"{file.name} cannot be read",
            where=str(file),
            why=str(error),
            todo="copy the model folder again",
        ) from error


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """Find the weight files and open each, so that a damaged one is reported by name."""
    if (folder / _INDEX).is_file():
        index = _read_json(folder / _INDEX, folder)
        names = sorted({str(name) for name in index.get("weight_map", {}).values()})
        files = [_inside(folder, name, _INDEX) for name in names]
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


def _inside(folder: Path, name: str, document: str) -> Path:
    """Return the place that a document of the folder names, which may not lie outside of it."""
    place = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
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


def _sentence_transformer(folder: Path) -> tuple[Path, str, tuple[str, ...]]:
    """Return (transformer folder, pooling, notes) of what may be a sentence-transformers model."""
    if not (folder / "modules.json").is_file():
        return folder, "", ()
    modules = _read_json(folder / "modules.json", folder)
    model, pooling = folder, ""
    notes: list[str] = []
    for item in modules:
        kind = str(item.get("type", "")).rpartition(".")[2]
        place = _inside(folder, str(item.get("path", "")), "modules.json")
        if kind == "Transformer":
            model = place
        elif kind == "Pooling":
            pooling = _pooling(place)
        elif kind == "Normalize":
            notes.append(
                "the source normalises its embeddings to length 1 afterwards; the compiled model "
                "does not"
            )
        else:
            notes.append(f"the source's module {kind} is not part of the compiled model")
    return model, pooling, tuple(notes)


def _pooling(folder: Path) -> str:
    config = _read_json(folder / "config.json", folder)
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else []
    modes += [
        key.removeprefix("pooling_mode_").removesuffix("s").removesuffix("_token")
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    if len(modes) != 1 or modes[0] not in ("mean", "cls"):
        raise ModelSourceError(
            f"the sentence embedding pools by {', '.join(modes) or 'nothing'}",
            where=str(folder / "config.json"),
            why="pooling by the mean over tokens (mean) and by the first token (cls) are supported",
            todo="import with head='none' and pool outside of the compiled model",
        )
    return str(modes[0])

"""Hugging Face folders, those of sentence-transformers among them, and where the hub keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ...common.files import files_below
from ...model.trained_scales import FILE, read_scales
from ..errors import ModelSourceError
from ..folder_files import CARD, hub_snapshot, is_hub_entry, is_model_folder
from ..hf_folder import HfFolder, check_head, read_config
from ..model import CanonicalModel
from ..request import Request
from ..tvm_import import import_tvm
from .record import ModelSource, register_source

_FILES = (".json", ".txt", ".safetensors", ".bin", ".model")
"""Ends of names; and `CARD`."""


def _load(
    path: Path, request: Request, importer: Callable[[HfFolder, str | None, bool], CanonicalModel]
) -> CanonicalModel:
    """Import the model of a folder, with the scales that it may have been trained with."""
    folder = HfFolder.read(path)
    scales = read_scales(path / FILE) if (path / FILE).exists() else None
    if scales is not None and request.head in (None, check_head(scales.head, "none")):
        return replace(importer(folder, scales.head, request.verify), trained=scales)
    return importer(folder, request.head, request.verify)


def _load_folder(path: Path, request: Request) -> CanonicalModel:
    def importer(folder: HfFolder, head: str | None, verify: bool) -> CanonicalModel:
        begun = folder.tokenizer  # compared while TVM is imported
        import_tvm()
        from ..encoder_folder import import_folder

        try:
            return import_folder(folder, head, verify)
        finally:
            begun.end()

    return _load(path, request, importer)


def _load_checkpoint(path: Path, request: Request) -> CanonicalModel:
    from ..ibert_checkpoint.load import load_ibert

    return _load(path, request, load_ibert)


def _is_checkpoint(model: object) -> bool:
    if not isinstance(model, Path) or not is_model_folder(model):
        return False
    try:
        return bool(read_config(model).config.get("model_type") == "ibert")
    except ModelSourceError:  # loading it as any folder says why
        return False


def _files(path: Path) -> Iterator[Path]:
    return (file for file in files_below(path) if file.suffix in _FILES or file.name == CARD)


register_source(
    ModelSource(
        "hub_entry", "an entry of the hub's cache", recognises=is_hub_entry, stands_for=hub_snapshot
    )
)
register_source(
    ModelSource(
        "folder",
        "a Hugging Face folder",
        recognises=is_model_folder,
        load=_load_folder,
        files=_files,
    )
)
register_source(
    ModelSource(
        "checkpoint",
        "an I-BERT checkpoint",
        recognises=_is_checkpoint,
        load=_load_checkpoint,
        to_verify=("torch", "transformers"),
        files=_files,
        precedence=1,
    )
)

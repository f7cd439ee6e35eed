"""ONNX files, float or quantised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..model import CanonicalModel
from ..request import Request
from .record import ModelSource, ends_in, register_source


def _load(path: Path, request: Request) -> CanonicalModel:
    from ..onnx.loading import load_onnx

    return load_onnx(path, request)


def _files(path: Path) -> list[Path]:
    from ..onnx.loading import files_of

    return files_of(path)


register_source(
    ModelSource(
        "onnx",
        "an ONNX file",
        recognises=ends_in(".onnx"),
        load=_load,
        packages=("onnx",),
        to_verify=("onnxruntime",),
        inputs=(Mapping,),
        files=_files,
    )
)

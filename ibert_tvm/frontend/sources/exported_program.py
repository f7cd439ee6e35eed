"""Programs of torch.export: as a file, and in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..model import CanonicalModel
from ..request import Request
from .record import ModelSource, ends_in, register_source

if TYPE_CHECKING:
    import torch


def _is_program(model: object) -> bool:
    # No object is one before torch was imported.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.export.ExportedProgram)


def _load_file(path: Path, request: Request) -> CanonicalModel:
    from ..torch_load import load_exported_file

    return load_exported_file(path, request.inputs, request.verify, request.trust)


def _load(program: torch.export.ExportedProgram, request: Request) -> CanonicalModel:
    from ..torch_load import load_exported

    return load_exported(program, request.inputs, request.verify)


register_source(
    ModelSource(
        "exported_file",
        "an exported torch program",
        recognises=ends_in(".pt2"),
        load=_load_file,
        packages=("torch",),
        heads=False,
        inputs=(Sequence, Mapping),
        files=lambda path: [path],
    )
)
register_source(
    ModelSource(
        "exported_program",
        "an exported program",
        recognises=_is_program,
        load=_load,
        packages=("torch",),
        heads=False,
        inputs=(Sequence, Mapping),
    )
)

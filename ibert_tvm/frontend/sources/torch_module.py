"""Torch modules in memory: transformers models, I-BERT among them, and any others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...model.heads import head_of_class
from ..errors import more_than_encoder
from ..model import CanonicalModel
from ..request import Request
from .record import ModelSource, register_source

if TYPE_CHECKING:
    import torch


def _is_module(model: object) -> bool:
    # No object is one before torch was imported.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _is_compiled(model: object) -> bool:
    """Tell what `torch.compile` wraps: it takes any arguments, and says nothing of the model."""
    return _is_module(model) and _is_module(getattr(model, "_orig_mod", None))


def _is_transformers(model: object) -> bool:
    return _is_module(model) and hasattr(model, "config") and hasattr(model, "base_model")


def _is_checkpoint(model: Any) -> bool:
    return _is_transformers(model) and bool(model.config.model_type == "ibert")


def _load(module: torch.nn.Module, request: Request) -> CanonicalModel:
    from ..torch_load import load_module

    return load_module(module, request.inputs, request.image_size, request.verify)


def _load_transformers(module: torch.nn.Module, request: Request) -> CanonicalModel:
    from ..transformers_import import import_model

    return import_model(module, request.head, request.verify)


def _load_checkpoint(module: torch.nn.Module, request: Request) -> CanonicalModel:
    from ..ibert_checkpoint.load import load_ibert_module

    name = type(module).__name__
    head = request.head or head_of_class(name)
    if request.head is None and head == "none" and name != "IBertModel":
        raise more_than_encoder(name, "module")
    return load_ibert_module(module, head, request.verify)


register_source(
    ModelSource(
        "module",
        "a torch module",
        recognises=_is_module,
        load=_load,
        packages=("torch",),
        heads=False,
        inputs=(Sequence, Mapping),
    )
)
register_source(
    ModelSource(
        "transformers_model",
        "a transformers model",
        recognises=_is_transformers,
        load=_load_transformers,
        packages=("torch", "transformers"),
        precedence=1,
    )
)
register_source(
    ModelSource(
        "checkpoint_in_memory",
        "a transformers I-BERT model",
        recognises=_is_checkpoint,
        load=_load_checkpoint,
        packages=("torch", "transformers"),
        precedence=2,
    )
)
register_source(
    ModelSource(
        "compiled_module",
        "a compiled torch module",
        recognises=_is_compiled,
        stands_for=lambda module: module._orig_mod,
        precedence=3,
    )
)

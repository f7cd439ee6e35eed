"""Importing models: `load` turns a folder or a torch module into a canonical model.

Importing this package imports neither TVM, torch nor transformers; loading does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ibert_tvm.frontend.errors import MissingExtraError, ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.loader import load
from ibert_tvm.frontend.report import ImportReport

if TYPE_CHECKING:
    from ibert_tvm.frontend.model import CanonicalModel

__all__ = [
    "CanonicalModel",
    "ImportReport",
    "MissingExtraError",
    "ModelSourceError",
    "UnsupportedModelError",
    "load",
]


def __getattr__(name: str) -> Any:
    if name == "CanonicalModel":
        from ibert_tvm.frontend.model import CanonicalModel

        return CanonicalModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

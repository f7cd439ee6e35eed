"""Importing models: `load` turns a folder or a torch module into a canonical model.

Importing this package imports neither TVM, torch nor transformers; loading does.
"""

from __future__ import annotations

from ibert_tvm.frontend.errors import MissingExtraError, ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.loader import load
from ibert_tvm.frontend.model import CanonicalModel
from ibert_tvm.frontend.report import ImportReport

__all__ = [
    "CanonicalModel",
    "ImportReport",
    "MissingExtraError",
    "ModelSourceError",
    "UnsupportedModelError",
    "load",
]

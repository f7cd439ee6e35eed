"""Importing models: `load` turns a folder or a torch module into a canonical model.

Importing this package imports neither TVM, torch nor transformers; loading does.
"""

from ..common.extras import MissingExtraError
from .errors import ModelSourceError, UnsupportedModelError
from .loader import load
from .model import CanonicalModel
from .report import ImportReport

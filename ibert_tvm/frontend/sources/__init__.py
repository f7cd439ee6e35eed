"""Kinds of models to import, a record each. A new kind is a new file here and its package."""

from ...common.registry import import_modules
from .record import (
    SOURCES,
    ModelSource,
    ends_in,
    is_source,
    register_source,
    resolved,
    source_of,
    unregister_source,
)

import_modules(__path__, __name__)

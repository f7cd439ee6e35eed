"""The heads of models, a record in a file each. A new head is a new file here."""

from ...common.registry import import_modules
from .record import (
    HEADS,
    KINDS,
    Finish,
    Head,
    Kind,
    LastLayer,
    Layer,
    OnnxOutput,
    PooledTokens,
    Returned,
    WholePipeline,
    head_of_class,
    heads_with,
    kinds_of,
    register_head,
    unregister_head,
)

import_modules(__path__, __name__)

"""The integer dialect: Relax operators whose meaning is the integer specification.

Builders (``integer.linear(x, w, b, name=...)``) are re-exported here; `ops` documents arguments
and types, `attrs` the attributes, `evaluate` runs a module with NumPy and `ranges` proves widths.
"""

from .build import (
    add,
    add_positions,
    attention,
    embedding,
    gelu,
    gelu_paper,
    layer_norm,
    linear,
    mean_pool,
    patches,
    position_ids,
    prepend_tokens,
    released_layer_norm,
    relu,
    requantise,
    requantise_even,
    select_token,
    tanh,
)
from .ops import SPECS, attributes, is_integer_op, operator_name

__all__ = [
    "SPECS",
    "add",
    "add_positions",
    "attention",
    "attributes",
    "embedding",
    "gelu",
    "gelu_paper",
    "is_integer_op",
    "layer_norm",
    "linear",
    "mean_pool",
    "operator_name",
    "patches",
    "position_ids",
    "prepend_tokens",
    "released_layer_norm",
    "relu",
    "requantise",
    "requantise_even",
    "select_token",
    "tanh",
]

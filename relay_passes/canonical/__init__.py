"""The canonical dialect: the one float form in which every imported model arrives.

Each operator is a record, one class in `ibert_tvm.relay_passes.canonical.operators`.
"""

from ..dialect.calls import operands_of, types_of
from ..dialect.heads import UNBOUNDED
from . import build
from .check import (
    canonical_calls,
    check_canonical,
    is_canonical,
    main_function,
    matrix_of,
    num_inputs,
    output_fields,
    value_name,
)
from .errors import CanonicalError
from .evaluate import FloatModel, FloatResult, FloatStep
from .operator import OPERATORS, CanonicalOperator

"""The canonical dialect: the one float form in which every imported model arrives.

`docs/architecture.md` has the table of operators. Importing this package registers them with TVM.
"""

from . import build, legalize
from .check import canonical_calls, check_canonical, main_function, num_inputs
from .errors import CanonicalError
from .float_execution import FloatExecutable, FloatResult, float_executable
from .ops import SPECS, OpSpec, is_canonical, value_name

__all__ = [
    "SPECS",
    "CanonicalError",
    "FloatExecutable",
    "FloatResult",
    "OpSpec",
    "build",
    "canonical_calls",
    "check_canonical",
    "float_executable",
    "is_canonical",
    "legalize",
    "main_function",
    "num_inputs",
    "value_name",
]

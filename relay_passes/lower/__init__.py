"""Lowering: a canonical float module and a quantisation table become an integer module.

One file per canonical operator holds its rule, in `rules`, or in `released` for the preset whose
arithmetic differs in every requantisation; `driver` applies them in order. `forms` describes
the integer forms of a value, `value` changes one into another, `requirements` says which scales a
module needs before it can be lowered.
"""

from . import released, rules
from .driver import LoweredModel, lower_to_integer
from .required_scales import Requirement, requirements

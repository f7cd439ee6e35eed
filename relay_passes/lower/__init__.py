"""Lowering: a canonical float module and a quantisation table become an integer module.

One file per canonical operator holds its rule; `driver` applies them in order. `forms` describes
the integer forms of a value, `value` changes one into another, `requirements` says which scales a
module needs before it can be lowered.
"""

from .driver import LoweredModel, lower_to_integer
from .required_scales import Requirement, requirements

__all__ = ["LoweredModel", "Requirement", "lower_to_integer", "requirements"]

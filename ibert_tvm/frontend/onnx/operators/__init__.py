"""Translations of ONNX operators; a new one is a function in a file here."""

from ....common.registry import import_modules
from ..translator import OPERATORS

import_modules(__path__, __name__)

"""Lowering rules of the preset ``released``: the arithmetic of the released I-BERT code.

They replace the rules of the operators whose released form differs. What is shared by them:
requantisation by a 31-bit mantissa with an exponent per channel, halves to even (`value`); a value
that a matrix product reads in 8 bits enters additions in those 8 bits too.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

"""The lowering rules, one file for each canonical operator; importing this package imports all.

Rules of the preset ``released`` are in a folder of their own, which `rules_of` joins.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

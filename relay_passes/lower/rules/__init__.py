"""The lowering rules, a file for each family of operators; importing this package imports all.

Rules of the preset ``released`` are in `ibert_tvm.relay_passes.lower.released`.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

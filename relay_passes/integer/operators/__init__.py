"""The integer operators, a file for each family; importing this package imports all of them."""

from __future__ import annotations

from ibert_tvm.common.registry import import_modules

import_modules(__path__, __name__)

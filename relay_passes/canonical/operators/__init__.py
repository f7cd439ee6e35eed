"""The canonical operators, a file for each family; importing this package imports all of them."""

from ibert_tvm.common.registry import import_modules

import_modules(__path__, __name__)

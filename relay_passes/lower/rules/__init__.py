"""The lowering rules, a file for each family of operators; importing this package imports all.

Rules of the preset ``released`` are in `ibert_tvm.relay_passes.lower.released`.
"""

from ibert_tvm.common.registry import import_modules

import_modules(__path__, __name__)

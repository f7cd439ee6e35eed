"""What the dialects have in common: records of operators, types, and calls in Relax."""

from ibert_tvm.common.extras import require

require("tvm", to="the dialect of integer operators")

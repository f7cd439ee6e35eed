"""Post-training quantisation: run real inputs through the float model and choose every scale.

`quantize` is the entry point. What it does, in order: `batches` makes checked inputs, `observe`
runs the canonical float model over them with NumPy, `table` turns the statistics into a
`ibert_tvm.relay_passes.quantization_table.QuantizationTable` (`observers` choose clippings,
`smoothing` and `weights` the integer weights), and `ibert_tvm.relay_passes.lower` derives the
integer program from it. Names of levels and observers are there without TVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fidelity import FIDELITIES, options_of
from .options import OBSERVERS, CalibrationOptions, Forms, Observation, Search

if TYPE_CHECKING:
    from .post_training import calibrate, quantize

__all__ = [
    "FIDELITIES",
    "OBSERVERS",
    "CalibrationOptions",
    "Forms",
    "Observation",
    "Search",
    "calibrate",
    "options_of",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name not in ("calibrate", "quantize"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import post_training

    return getattr(post_training, name)

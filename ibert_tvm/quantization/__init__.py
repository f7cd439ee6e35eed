"""Post-training quantisation: run real inputs through the float model and choose every scale.

`quantize` is the entry point. What it does, in order: `batches` makes checked inputs, `observe`
runs the canonical float model compiled by TVM over them, `table` turns the statistics into a
`ibert_tvm.relay_passes.quantization_table.QuantizationTable` (`observers` choose clippings,
`smoothing` and `weights` the integer weights), and `ibert_tvm.relay_passes.lower` derives the
integer program from it.
"""

from __future__ import annotations

from .fidelity import FIDELITIES, options_of
from .options import OBSERVERS, CalibrationOptions, Forms, Observation, Search
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

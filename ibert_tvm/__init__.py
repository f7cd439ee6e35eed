"""An integer-only BERT compiler on Apache TVM.

    import ibert_tvm as ibert

    model = ibert.load("path/to/hf-folder")                     # canonical float model
    quantized = ibert.quantize(model, calibration=["a text"])   # QuantizedModel; .save(folder)
    compiled = ibert.compile(quantized, target="host", shapes=[(1, 128)])
    compiled.export("model.so")
    outputs = ibert.run("model.so", input_ids=ids, attention_mask=mask)
    vectors = ibert.Encoder("model.so").encode(["a text"])      # float32 [texts, channels]

The attributes are loaded on first use: importing this package imports neither TVM nor torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common.errors import IbertError
    from .compiler import compile
    from .encoder import Encoder
    from .frontend import load
    from .model.artefact import QuantizedModel
    from .quantization import quantize
    from .runtime import Library, load_library, run
    from .version import __version__

# Read by TVM when its thread pool starts: a worker without work gives up its processor 300,000
# times before it sleeps, or sees that it is to end. On a quiet machine that is a moment; where tens
# of processes want the processors each takes minutes to end. Libraries have a pool of their own.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

__all__ = [
    "Encoder",
    "IbertError",
    "Library",
    "QuantizedModel",
    "__version__",
    "compile",
    "load",
    "load_library",
    "quantize",
    "run",
]

_HOME = {
    "Encoder": "ibert_tvm.encoder",
    "IbertError": "ibert_tvm.common.errors",
    "Library": "ibert_tvm.runtime",
    "QuantizedModel": "ibert_tvm.model.artefact",
    "__version__": "ibert_tvm.version",
    "compile": "ibert_tvm.compiler",
    "load": "ibert_tvm.frontend",
    "load_library": "ibert_tvm.runtime",
    "quantize": "ibert_tvm.quantization",
    "run": "ibert_tvm.runtime",
}

# Where `ibert_tvm.errors.ModelError` and the like are found since the errors moved.
_ALIASES = {"errors": "ibert_tvm.common.errors"}


def __getattr__(name: str) -> Any:
    value: Any
    if name in _ALIASES:
        value = importlib.import_module(_ALIASES[name])
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

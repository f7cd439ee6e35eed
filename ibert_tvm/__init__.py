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
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common.errors import IbertError
    from .common.version import __version__
    from .compiler import compile
    from .encoder import Encoder
    from .frontend import load
    from .model.artefact import QuantizedModel
    from .quantization import quantize
    from .runtime import Library, load_library, run

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
    "__version__": "ibert_tvm.common.version",
    "compile": "ibert_tvm.compiler",
    "load": "ibert_tvm.frontend",
    "load_library": "ibert_tvm.runtime",
    "quantize": "ibert_tvm.quantization",
    "run": "ibert_tvm.runtime",
}

_MOVED = {
    "common": ("errors", "files", "schema", "strict_json", "version"),
    "evaluation": ("evaluate", "metrics"),
    "model": ("artefact", "model_info", "tokenization", "trained_scales"),
    "verification": ("signature",),
}
"""Modules that were `ibert_tvm.NAME` in version 0.2, and are still found there."""


class _Moved(ModuleType):
    """A module by its former name; the module itself is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what looks through all modules shall not import this one
            raise AttributeError(name)
        return getattr(importlib.import_module(str(self.__doc__)), name)


for _place, _names in _MOVED.items():
    for _name in _names:
        sys.modules[f"{__name__}.{_name}"] = _Moved(_name, f"{__name__}.{_place}.{_name}")


def __getattr__(name: str) -> Any:
    value: Any
    if f"{__name__}.{name}" in sys.modules:
        value = sys.modules[f"{__name__}.{name}"]
    elif name in _HOME:
        try:
            value = getattr(importlib.import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            from .common.extras import as_missing_extra

            raise as_missing_extra(error, f"ibert_tvm.{name}") from error
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""An integer-only BERT compiler on Apache TVM.

    import ibert_tvm as ibert

    model = ibert.load("path/to/hf-folder")                     # canonical float model
    quantized = ibert.quantize(model, calibration=["a text"])   # QuantizedModel; .save(folder)
    compiled = ibert.compile(quantized, target="host", shapes=[(1, 128)])
    compiled.export("model.so")
    outputs = ibert.run("model.so", input_ids=ids, attention_mask=mask)

The attributes are loaded on first use: importing this package imports neither TVM nor torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ibert_tvm.artefact import QuantizedModel
    from ibert_tvm.compile import compile
    from ibert_tvm.errors import IbertError
    from ibert_tvm.frontend import load
    from ibert_tvm.quantize import quantize
    from ibert_tvm.runtime import Library, load_library, run

    __version__: str

__all__ = [
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
    "IbertError": "ibert_tvm.errors",
    "Library": "ibert_tvm.runtime",
    "QuantizedModel": "ibert_tvm.artefact",
    "compile": "ibert_tvm.compile",
    "load": "ibert_tvm.frontend",
    "load_library": "ibert_tvm.runtime",
    "quantize": "ibert_tvm.quantize",
    "run": "ibert_tvm.runtime",
}


class _Package(ModuleType):
    """The class of this package: `ibert_tvm.compile` and `ibert_tvm.quantize` stay functions.

    The import system binds every submodule as an attribute of its package, which would put the
    modules `compile` and `quantize` in the place of the functions that carry the same names, but
    only from the moment that somebody imports them. The modules stay reachable by
    `from ibert_tvm.compile import ...`.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOME and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


def _version() -> str:
    """Version of the installed distribution, or of the checkout when it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ibert-tvm")
    except PackageNotFoundError:
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package

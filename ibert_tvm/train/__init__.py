"""Training with the integers that will run (needs the extra "torch").

    from ibert_tvm.train import prepare

    model = prepare("path/to/hf-folder", calibration=texts)   # a torch module
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    model.save("trained")   # for `from_pretrained`, and for `ibert quantize` without calibration

The forward pass gives exactly the integers of the compiled library, gradients are straight-through.
The attributes are loaded on first use: importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .module import IntegerModel
    from .preparation import prepare

_PLACES = {"IntegerModel": "module", "prepare": "preparation"}
__all__ = ["IntegerModel", "prepare"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = importlib.import_module(f"{__name__}.{_PLACES[name]}")
    value = globals()[name] = getattr(place, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

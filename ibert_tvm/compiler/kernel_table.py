"""The kernels of a compiled function, for the metadata that `ibert bench` reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.strict_json import JsonDict

if TYPE_CHECKING:
    import tvm


def kernel_table(module: tvm.IRModule) -> dict[str, list[JsonDict]]:
    """List the kernels that each function of a lowered module calls, in order.

    Parameters
    ----------
    module
        Relax functions that call kernels marked with ``ibert.kernel``.

    Returns
    -------
    dict of str to list of dict
        By function: ``name`` of the kernel in the library, ``kind`` (``linear``, ``attention``,
        ``layer_norm`` ...), ``layer`` (the canonical name of the one that the call serves),
        ``macs`` (the multiply-accumulates of its matrix products), ``bytes`` (what its arguments
        and results take, each once: a table that is looked up counts whole).
    """
    from tvm import relax

    return {
        var.name_hint: _calls(module, function)
        for var, function in module.functions_items()
        if isinstance(function, relax.Function)
    }


def _calls(module: tvm.IRModule, function: Any) -> list[JsonDict]:
    from ibert_tvm.relay_passes.passes.share_kernels import LAYERS, called_kernels

    kernels = called_kernels(function)
    layers = [str(layer) for layer in function.attrs[LAYERS]] if kernels else []
    return [
        {
            "name": var.name_hint,
            "kind": str(module[var].attrs["ibert.kernel"]),
            "layer": layer,
            "macs": int(module[var].attrs.get("ibert.macs", 0)),
            "bytes": sum(_size(param) for param in module[var].params),
        }
        for var, layer in zip(kernels, layers, strict=True)
    ]


def _size(parameter: Any) -> int:
    """Bytes of a buffer of static shape; 0 for a parameter that is a number."""
    shape = getattr(parameter, "shape", None)
    if shape is None:
        return 0
    return math.prod(int(extent) for extent in shape) * np.dtype(str(parameter.dtype)).itemsize

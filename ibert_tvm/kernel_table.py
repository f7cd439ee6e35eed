"""The kernels of a compiled function, for the metadata that `ibert bench` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

__all__ = ["kernel_table"]


def kernel_table(module: tvm.IRModule) -> dict[str, list[dict[str, Any]]]:
    """List the kernels that each function of a lowered module calls, in order.

    Parameters
    ----------
    module
        Relax functions that call kernels marked with ``ibert.kernel``.

    Returns
    -------
    dict of str to list of dict
        By function: ``name`` of the kernel in the library, ``kind`` (``linear``, ``attention``,
        ``layer_norm`` ...), ``layer`` (the canonical name of its anchor), ``macs`` (the
        multiply-accumulates of its matrix products).
    """
    from tvm import relax

    return {
        var.name_hint: _calls(module, function)
        for var, function in module.functions_items()
        if isinstance(function, relax.Function)
    }


def _calls(module: tvm.IRModule, function: Any) -> list[dict[str, Any]]:
    from tvm import relax, tirx

    rows = []
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            callees = [value.op, *value.args[:1]] if isinstance(value, relax.Call) else []
            for callee in callees:
                kernel = module[callee] if isinstance(callee, relax.GlobalVar) else None
                if isinstance(kernel, tirx.PrimFunc) and "ibert.kernel" in kernel.attrs:
                    rows.append(
                        {
                            "name": callee.name_hint,
                            "kind": str(kernel.attrs["ibert.kernel"]),
                            "layer": str(kernel.attrs["ibert.layer"]),
                            "macs": int(kernel.attrs.get("ibert.macs", 0)),
                        }
                    )
    return rows

"""One kernel for all layers that compute the same: code, too, takes room in a cache."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .program import IntegerProgram, bindings, relax_functions

LAYERS = "ibert.layers"
"""Attribute of a Relax function: the layer of every kernel call, in the order of the calls."""
_LAYER = "ibert.layer"


def called_kernels(function: relax.Function) -> list[ir.GlobalVar]:
    """Kernels that a function calls, in order, one entry per call."""
    calls = [binding.value for binding in bindings(function)]
    return [
        callee
        for call in calls
        if isinstance(call, relax.Call)
        for callee in call.args[:1]
        if isinstance(callee, ir.GlobalVar)
    ]


class ShareKernels:
    """Merge kernels that differ in nothing but the layer that they are named after.

    Expects the output of `EmitKernels`. The layers of a model have the same shapes, and their
    weights and multipliers are arguments, so many of their kernels are equal. Afterwards each is
    there once, named after the first layer that calls it, and Relax functions say in the attribute
    ``ibert.layers`` which layer each call serves. Changes no value and no range.
    """

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        module = program.module
        callers = relax_functions(module)
        first: dict[tvm_ffi.StructuralKey, ir.GlobalVar] = {}
        merged: dict[ir.GlobalVar, ir.GlobalVar] = {}
        functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        for name in sorted(callers):
            called = called_kernels(callers[name])
            for kernel in called:
                key = tvm_ffi.StructuralKey(nameless(module[kernel]))
                merged[kernel] = first.setdefault(key, kernel)
                functions[merged[kernel]] = module[merged[kernel]]
            layers = [str(module[kernel].attrs[_LAYER]) for kernel in called]
            shared = tvm_ffi.structural_map(
                callers[name], (ir.GlobalVar, lambda var: merged.get(var, var))
            )
            functions[module.get_global_var(name)] = shared.with_attr(LAYERS, layers)
        return program.with_module(
            tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
        )


def nameless(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without what names it."""
    return kernel.without_attr(_LAYER).without_attr("global_symbol")

"""Device memory between the grids of one kernel, made a matter of the memory plan.

A kernel of several grids passes values through device memory that it allocates itself. TVM would
take it from a pool at every call, which gives it to others afterwards, and a captured graph would
go on using the address. As further results of the kernel, which nobody reads, such buffers are
planned with all other values.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..nodes import changed

_CALL_TIR = "relax.call_tir"


@tvm.transform.module_pass(opt_level=0, name="LiftWorkspaces")
class LiftWorkspaces:
    """Make the global buffers that kernels allocate results of their calls.

    Expects scheduled kernels and ``call_tir``, before storage is planned::

        mean = T.sblock_alloc_buffer((16,), "int32")                     # in a kernel

    becomes a parameter behind the kernel's results, and every call of the kernel gets one result
    more, which nothing uses. Kernels that allocate none, and functions that call none of the
    others, stay as they are.
    """

    def transform_module(
        self, module: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Return the module in which no kernel allocates device memory."""
        lifted: dict[tvm.ir.GlobalVar, tuple[tirx.PrimFunc, list[tirx.Buffer]]] = {}
        for var, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc):
                changed, buffers = _with_parameters(function)
                if buffers:
                    lifted[var] = (changed, buffers)
        if not lifted:
            return module
        # A kernel's variable carries its type, so those that change get new ones.
        others = {v: f for v, f in module.functions_items() if v not in lifted}
        builder = relax.BlockBuilder(tvm.IRModule(others, module.attrs))
        longer: dict[str, _Longer] = {}
        for var, (changed, buffers) in lifted.items():
            kinds = [relax.TensorType(list(b.shape), str(b.dtype)) for b in buffers]
            longer[var.name_hint] = _Longer(builder.add_func(changed, var.name_hint), kinds)
        for var, function in others.items():
            if isinstance(function, relax.Function):
                builder.update_func(var, _Rewriter(builder.get(), longer).visit_expr(function))
        return builder.get()


@dataclass(frozen=True)
class _Longer:
    """A kernel with more results than before, and the types of those."""

    kernel: tvm.ir.GlobalVar
    kinds: list[relax.TensorType]


def _with_parameters(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[tirx.Buffer]]:
    """The kernel with its allocations of device memory as further parameters; and these."""
    buffers: list[tirx.Buffer] = []

    def statement(allocation: tirx.AllocBuffer) -> tirx.Stmt:
        if not _in_device_memory(allocation.buffer):
            return allocation
        buffers.append(allocation.buffer)
        return tirx.Evaluate(0)

    def block(block: s_tir.SBlock) -> s_tir.SBlock:
        own = [buffer for buffer in block.alloc_buffers if _in_device_memory(buffer)]
        if not own:
            return block
        buffers.extend(own)
        kept = [buffer for buffer in block.alloc_buffers if not _in_device_memory(buffer)]
        return changed(block, alloc_buffers=kept)

    rules = [(tirx.AllocBuffer, statement), (s_tir.SBlock, block)]
    body = tvm_ffi.structural_map(function.body, rules)
    params = [*function.params, *buffers]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs), buffers


def _in_device_memory(buffer: tirx.Buffer) -> bool:
    return buffer.scope() in ("", "global")


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, module: tvm.IRModule, longer: dict[str, _Longer]) -> None:
        super().__init__(module)
        self.longer = longer

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not (isinstance(call.op, tvm.ir.Op) and call.op.name == _CALL_TIR):
            return call
        longer = self.longer.get(call.args[0].name_hint)
        if longer is None:
            return call
        own = call.ty_args[0]
        single = not isinstance(own, relax.TupleType)
        fields = [own] if single else list(own.fields)
        changed = relax.op.call_tir(longer.kernel, call.args[1], [*fields, *longer.kinds])
        if not single:
            return changed  # its first results are where they were
        return relax.TupleGetItem(self.builder_.emit(changed), 0)

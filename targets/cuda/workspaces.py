"""Device memory between the grids of one kernel, made a matter of the memory plan.

A kernel of several grids passes values through device memory that it allocates itself. TVM would
take it from a pool at every call, which gives it to others afterwards, and a captured graph would
go on using the address. As further results of the kernel, which nobody reads, such buffers are
planned with all other values.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

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
        workspaces = {
            var: buffers
            for var, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc) and (buffers := _workspaces(function))
        }
        if not workspaces:
            return module
        # A kernel's variable carries its type, so those that change get new ones.
        others = {v: f for v, f in module.functions_items() if v not in workspaces}
        builder = relax.BlockBuilder(tvm.IRModule(others, module.attrs))
        longer: dict[str, _Longer] = {}
        for var, buffers in workspaces.items():
            kinds = [relax.TensorType(list(b.shape), str(b.dtype)) for b in buffers]
            kernel = builder.add_func(_with_parameters(module[var], buffers), var.name_hint)
            longer[var.name_hint] = _Longer(kernel, kinds)
        for var, function in others.items():
            if isinstance(function, relax.Function):
                builder.update_func(var, _Rewriter(builder.get(), longer).visit_expr(function))
        return builder.get()


@dataclass(frozen=True)
class _Longer:
    """A kernel with more results than before, and the types of those."""

    kernel: tvm.ir.GlobalVar
    kinds: list[relax.TensorType]


def _workspaces(function: tirx.PrimFunc) -> list[tirx.Buffer]:
    """Buffers in device memory that a kernel allocates for itself."""
    root = function.body
    if not isinstance(root, s_tir.SBlockRealize):
        return []
    return [buffer for buffer in root.block.alloc_buffers if buffer.scope() in ("", "global")]


def _with_parameters(function: tirx.PrimFunc, buffers: list[tirx.Buffer]) -> tirx.PrimFunc:
    """The kernel with some of its allocations as further parameters."""
    realize, block = function.body, function.body.block
    kept = [b for b in block.alloc_buffers if not any(b.same_as(other) for other in buffers)]
    inner = s_tir.SBlock(
        *(block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init),
        alloc_buffers=kept,
        match_buffers=block.match_buffers,
        annotations=block.annotations,
    )
    body = s_tir.SBlockRealize(realize.iter_values, realize.predicate, inner)
    params = [*function.params, *buffers]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


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

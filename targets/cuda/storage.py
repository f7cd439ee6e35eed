"""Memory for what kernels compute that stays where it is.

TVM's memory plan (``StaticPlanBlockMemory``) gives every value a place in one of a few storages,
which a function would allocate anew in each run. A CUDA graph holds addresses, so storages must
neither move nor serve anything else: here they are taken once, by the first run, and the virtual
machine keeps them.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

ALLOCATE = "ibert_storages"
"""Name of the private function that takes the storages."""

_KEPT_ALLOCATION = "vm.builtin.cuda_graph.get_cached_alloc"
_ALLOC_STORAGE = "relax.memory.alloc_storage"
_ALLOC_RESULT = "relax.builtin.alloc_tensor"


@tvm.transform.module_pass(opt_level=0, name="KeepStorages")
class KeepStorages:
    """Have all functions of a library share storages that the virtual machine keeps.

    Expects the result of ``StaticPlanBlockMemory``: storages are bound in the bodies of functions,
    with constant sizes. Afterwards no function allocates::

        storage = R.memory.alloc_storage(R.shape([4096]), 0, "global", "uint8")
        result = R.builtin.alloc_tensor(R.shape([8, 64]), "int32", 0, "global")

    become an item of the tuple that the function `ALLOCATE` made when it was first needed, and a
    tensor in another item. The largest storages of each function are one, so are the second
    largest, and so on: functions do not run at the same time. What a function returns is
    overwritten by the next run, so the caller copies it.
    """

    def transform_module(
        self, module: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Return the module with shared storages, or as it is where there are none."""
        places: dict[str, dict[relax.Var, int]] = {}
        sizes: list[int] = []
        for var, function in module.functions_items():
            if not isinstance(function, relax.Function) or var.name_hint == ALLOCATE:
                continue
            storages = _storages(function)
            # The sort is stable: the same module always gives the same storages.
            ordered = sorted(storages, key=lambda storage: -storages[storage])
            places[var.name_hint] = {storage: place for place, storage in enumerate(ordered)}
            for place, storage in enumerate(ordered):
                if place == len(sizes):
                    sizes.append(0)
                sizes[place] = max(sizes[place], storages[storage])
        if not sizes:
            return module
        builder = relax.BlockBuilder(module)
        allocate = builder.add_func(_allocation(sizes), ALLOCATE)
        kind = relax.TupleType([relax.ObjectType() for _ in sizes])
        for var, function in module.functions_items():
            if places.get(var.name_hint):
                rewriter = _Rewriter(builder, places[var.name_hint], allocate, kind)
                builder.update_func(var, rewriter.rewrite(function))
        return builder.get()


def storage_bytes(module: tvm.IRModule) -> int:
    """Bytes of all storages that functions of a module share, after `KeepStorages`."""
    for var, function in module.functions_items():
        if var.name_hint == ALLOCATE:
            return sum(_storages(function).values())
    return 0


def _storages(function: relax.Function) -> dict[relax.Var, int]:
    """What a function allocates, storages and results, with sizes in bytes."""
    found = {}
    for binding in (each for block in function.body.blocks for each in block.bindings):
        operator = _operator(binding.value)
        if operator == _ALLOC_STORAGE:
            (size,) = binding.value.args[0].values
            found[binding.var] = int(size)
        elif operator == _ALLOC_RESULT:
            kind = binding.var.ty
            count = math.prod(int(extent) for extent in kind.shape.values)
            found[binding.var] = count * tvm.DataType(str(kind.dtype)).itemsize
    return found


def _operator(value: relax.Expr) -> str:
    """Name of the operator that a value is a call of; empty for other values."""
    operator = getattr(value, "op", None)
    return operator.name if isinstance(operator, tvm.ir.Op) else ""


def _allocation(sizes: list[int]) -> relax.Function:
    """Private function that gives a tuple of storages."""
    builder = relax.BlockBuilder()
    with builder.function("allocate", [], {"relax.force_pure": True}):
        storages = [
            builder.emit(relax.op.memory.alloc_storage(relax.ShapeExpr([n]), 0, "global", "uint8"))
            for n in sizes
        ]
        builder.emit_func_output(relax.Tuple(storages))
    return builder.get()["allocate"].without_attr("global_symbol")


@mutator
class _Rewriter(PyExprMutator):
    def __init__(
        self,
        builder: relax.BlockBuilder,
        places: dict[relax.Var, int],
        allocate: tvm.ir.GlobalVar,
        kind: relax.TupleType,
    ) -> None:
        super().__init__()
        self.builder, self.places, self.allocate, self.kind = builder, places, allocate, kind
        self.kept: relax.Var | None = None

    def rewrite(self, function: relax.Function) -> relax.Function:
        return self.visit_expr(function)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        place = self.places.get(binding.var)
        if place is None:
            super().visit_var_binding_(binding)
            return
        if self.kept is None:
            self.kept = self.builder_.emit(
                relax.op.call_builtin_with_ctx(
                    _KEPT_ALLOCATION, [self.allocate, relax.prim_value(0)], ty_args=self.kind
                ),
                "storages",
            )
        storage = self.builder_.emit(relax.TupleGetItem(self.kept, place), "storage")
        if _operator(binding.value) == _ALLOC_RESULT:
            shape, dtype = binding.value.args[:2]
            tensor = relax.op.memory.alloc_tensor(storage, 0, shape, dtype)
            storage = self.builder_.emit(tensor, "result")
        self.set_var_remap(binding.var, storage)

"""Take ids and masks as 32-bit integers."""

from __future__ import annotations

import tvm
from tvm import relax

from .program import IntegerProgram, bindings, num_inputs, substitute, variables

_WIDE, _NARROW = "int64", "int32"


class NarrowInputs:
    """Make int32 of the inputs that are int64.

    Expects a program over ``integer.*`` operators. Models come with inputs of 64 bits, because
    torch has ids of that type; ids, masks and token types fit 32 bits, which is what a C program
    has them in, and half the memory. Operators take either type. No other value or range changes.

    ``main(input_ids: int64[b, s], ...)`` becomes ``main(input_ids: int32[b, s], ...)``.
    """

    name = "narrow_inputs"

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        main = program.module["main"]
        inputs = list(main.params[: num_inputs(main)])
        new: dict[relax.Var, relax.Expr] = {
            var: relax.Var(var.name, relax.TensorType(var.ty.shape, _NARROW))
            for var in inputs
            if str(var.ty.dtype) == _WIDE
        }
        if not new:
            return program
        made_by = {binding.var: binding.value for binding in bindings(main)}
        returned = main.body.body
        result = made_by.get(returned, returned)
        many = isinstance(result, relax.Tuple)
        params = [new.get(var, var) for var in main.params]
        builder = relax.BlockBuilder()
        with builder.function("main", params, attrs=dict(main.attrs.items())):
            with builder.dataflow():
                for binding in bindings(main):
                    if not (many and binding.var.same_as(returned)):
                        new[binding.var] = builder.emit(substitute(binding.value, new))
                leaving = variables(result) if many else [returned]
                results = [builder.emit_output(substitute(var, new)) for var in leaving]
            builder.emit_func_output(results if many else results[0])
        return program.with_module(
            relax.transform.Normalize()(tvm.IRModule({"main": builder.get()["main"]}))
        )

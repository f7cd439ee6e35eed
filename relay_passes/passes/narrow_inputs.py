"""Take ids and masks as 32-bit integers."""

from __future__ import annotations

from tvm import relax

from .program import IntegerProgram, Rewriter, num_inputs

_WIDE, _NARROW = "int64", "int32"


class NarrowInputs:
    """Make int32 of the inputs that are int64.

    Expects a program over ``integer.*`` operators. Models come with inputs of 64 bits, because
    torch has ids of that type; ids, masks and token types fit 32 bits, which is what a C program
    has them in, and half the memory. Operators take either type. No other value or range changes.

    ``main(input_ids: int64[b, s], ...)`` becomes ``main(input_ids: int32[b, s], ...)``.
    """

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
        rewriter = Rewriter(program, params=[new.get(var, var) for var in main.params])
        rewriter.new.update(new)
        return program.with_module(rewriter.run())

"""Bind batch and sequence length: one function per shape that the library shall serve."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from .program import IntegerProgram


def function_name(batch: int, seq_len: int) -> str:
    """Name of the function that serves one shape, e.g. ``main_b1_s128``."""
    return f"main_b{batch}_s{seq_len}"


class SpecialiseShapes:
    """Replace ``main`` by one function per (batch, sequence length).

    Expects ``main`` with the symbolic dimensions ``batch`` and ``seq_len``. Afterwards every shape
    in the module is static, no variable is another name of a value, and nothing that no output
    needs is left; all functions take the same parameters, so that one copy of the weights serves
    all.

    Parameters
    ----------
    shapes
        (batch, sequence length) pairs.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        self.shapes = tuple(dict.fromkeys(shapes))

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        main = program.module["main"]
        functions = {}
        for batch, seq_len in self.shapes:
            # A model of images has one sequence length, which is static already.
            extents = {"batch": batch, "seq_len": seq_len}
            symbolic = {var.name for var in relax.analysis.defined_symbolic_vars(main)}
            bound = main.bind_symbolic_vars(
                {name: extent for name, extent in extents.items() if name in symbolic}
            )
            name = function_name(batch, seq_len)
            functions[tvm.ir.GlobalVar(name)] = bound.with_attr("global_symbol", name).with_attr(
                "ibert.shape", [batch, seq_len]
            )
        tidy = tvm.transform.Sequential(
            [
                relax.transform.Normalize(),
                relax.transform.CanonicalizeBindings(),
                relax.transform.DeadCodeElimination([name.name_hint for name in functions]),
            ]
        )
        return program.with_module(tidy(tvm.IRModule(functions)))

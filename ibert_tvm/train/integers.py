"""Run an integer program on torch tensors: every integer is that of the NumPy reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from ibert_tvm.relay_passes.errors import CompilerError, LoweringError
from ibert_tvm.relay_passes.integer.evaluate import run_whole
from ibert_tvm.relay_passes.integer.operator import Operator, Serial
from ibert_tvm.relay_passes.integer.program import Program

from .numbers import TensorNumbers
from .tensors import tensor_of


class IntegerProgram:
    """A program with its constants on a device.

    Parameters
    ----------
    program
        Of the integer dialect, as lowering makes it.
    parameters
        Its constants.
    device
        Where it runs.
    """

    def __init__(
        self, program: Program, parameters: Mapping[str, NDArray[np.integer]], device: torch.device
    ) -> None:
        self.program = program
        self.device = device
        self._constants = {
            name: torch.from_numpy(parameters[name]).to(device) for name in program.parameters
        }

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute every value.

        Parameters
        ----------
        inputs
            Integers [batch, seq_len], and what else the program takes.

        Returns
        -------
        dict of str to torch.Tensor
            int64, by name of the step.

        Raises
        ------
        RangeError
            If an id is no row of its table.
        LoweringError
            If the program was prepared for the compiler.
        """
        values = dict(self._constants)
        values |= {name: inputs[name].to(self.device) for name in self.program.inputs}
        types = {**self.program.inputs, **self.program.parameters}
        for step in self.program.steps:
            dtypes = {name: types[value].dtype for name, value in step.operands.items()}
            operands = {name: values[value] for name, value in step.operands.items()}
            try:
                # Within torch's mixed precision products would not be exact.
                with torch.autocast(self.device.type, enabled=False):
                    values[step.name] = _run(step.operator, operands, dtypes, self.device)
            except CompilerError as error:
                raise error.at(step.operator.where) from None
            types[step.name] = step.type
        return {step.name: values[step.name] for step in self.program.steps}


def _run(
    operator: Operator,
    operands: Mapping[str, torch.Tensor],
    dtypes: Mapping[str, str],
    device: torch.device,
) -> torch.Tensor:
    if isinstance(operator, Serial):
        raise LoweringError(
            f"{operator.OP} cannot be evaluated with torch",
            operator.where,
            "it belongs to programs whose padding was left out, which only the compiler makes",
            "give the program as lowering made it",
        )
    numbers = TensorNumbers(device)
    arrays = {name: numbers.array(x, tuple(x.shape)) for name, x in operands.items()}
    result: torch.Tensor = tensor_of(run_whole(operator, arrays, dtypes, numbers), device)
    return result

"""Run an integer program on torch tensors: every integer is that of the NumPy reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from ibert_tvm.relay_passes.errors import CompilerError, LoweringError, RangeError
from ibert_tvm.relay_passes.integer.arrays import Array, Entry
from ibert_tvm.relay_passes.integer.evaluate import run_whole
from ibert_tvm.relay_passes.integer.operator import Operator, Serial
from ibert_tvm.relay_passes.integer.program import Program

from .tensors import TensorArray, tensor_of

# Integers on torch tensors, on any device: what the domain of arrays is made of in training.
#
# The bodies of integer operators run on `ibert_tvm.relay_passes.integer.arrays` here as they do
# with NumPy. Arrays are `TensorArray`, int64; only exact products and bounds are torch's own.

_EXACT = 2**24
"""float32 has every integer up to here."""


def exact_product(a: torch.Tensor, b: torch.Tensor, largest_a: int, largest_b: int) -> torch.Tensor:
    """``a @ b`` of integers, exactly, by float matrix products.

    In float32 where no partial sum can reach 2^24, cut along the inner axis if it must be; in
    float64 below 2^53. Every product and partial sum is then an integer that the type has. Where
    torch was told that float32 products may be less precise (TF32, bfloat16), all are float64.

    Parameters
    ----------
    a, b
        int64 [..., M, K] and [..., K, N].
    largest_a, largest_b
        Bounds of their magnitudes.

    Returns
    -------
    torch.Tensor
        int64 [..., M, N].

    Raises
    ------
    RangeError
        If a sum might not fit 53 bits.
    """
    inner, term = a.shape[-1], max(largest_a * largest_b, 1)
    if inner * term >= 2**53:
        raise RangeError(
            "a matrix product may not fit 53 bits",
            why=f"its elements are bounded by {inner * term}",
            todo="use narrower operands",
        )
    run = (_EXACT - 1) // term
    # Many short products would take longer than one of twice the width.
    if run * 4 < inner or torch.get_float32_matmul_precision() != "highest":
        return (a.double() @ b.double()).to(torch.int64)
    left, right = a.float(), b.float()
    if inner <= run:
        return (left @ right).to(torch.int64)
    cuts = range(0, inner, -(-inner // -(-inner // run)))
    parts = [left[..., k : k + cuts.step] @ right[..., k : k + cuts.step, :] for k in cuts]
    return torch.stack([part.to(torch.int64) for part in parts]).sum(0)


class TensorNumbers:
    """Arrays are `TensorArray`.

    Parameters
    ----------
    device
        Of all tensors.
    """

    kind = np.int64

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def array(self, value: Entry, shape: tuple[int, ...]) -> Array:
        """Return the value as an array of a shape."""
        tensor = tensor_of(value, self.device)
        if not isinstance(tensor, torch.Tensor):
            tensor = torch.tensor(tensor, device=self.device)
        return cast(Array, TensorArray(tensor.to(torch.int64).expand(shape)))

    def product(self, a: Array, b: Array, largest_a: int, largest_b: int) -> Array:
        """Return the exact matrix product of two arrays within these magnitudes."""
        left, right = tensor_of(a, self.device), tensor_of(b, self.device)
        return cast(Array, TensorArray(exact_product(left, right, largest_a, largest_b)))

    def bounds(self, array: Array) -> tuple[int, int]:
        """Return the least and the greatest element."""
        low, high = torch.aminmax(tensor_of(array, self.device))
        return int(low), int(high)


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

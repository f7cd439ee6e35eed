"""CMSIS-NN's linear layers, compiled and counted as ours are.

Nothing of CMSIS-NN is part of this project: the caller names a checkout of
https://github.com/ARM-software/CMSIS-NN.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np

from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.qemu_board import run_kernel

from .counting import Counting
from .errors import CountingError

__all__ = ["KERNELS", "count_linear"]

_MATRIX = "(x, weight, bias, y, factors, shifts, {m}, {n}, {k}, 0, 0, -128, 127, {strides})"
# What `arm_fully_connected_s4` is: a vector at a time, with one scale for all channels.
_VECTOR = "(x + i * {k}, weight, bias, y + i * {n}, 0, 0, *factors, *shifts, {k}, {n}, -128, 127)"
KERNELS = {
    "mat_mult_nt_t_s8": (8, 1, _MATRIX.replace("{strides}", "{n}, {k}")),
    "mat_mult_nt_t_s4": (4, 1, _MATRIX.replace("{strides}", "{k}")),
    "vec_mat_mult_t_s4": (4, 0, _VECTOR),
}
"""Bits of the weights, whether a call takes all rows (1) or one (0), and arguments, of kernels."""
# Not freestanding: it reads words by `memcpy`, which the compiler must know.
_FLAGS = ("-Ofast", "-ffunction-sections")
_SYMBOL = "peer_linear"
_CALLER = """
#include "arm_nnsupportfunctions.h"

int32_t {symbol}(const int8_t *x, const int8_t *weight, const int32_t *bias, const int32_t *factors,
                 const int32_t *shifts, int8_t *y) {{
  int32_t status = 0;
  for (int i = 0; i < {calls}; ++i) status |= {call};
  return status;
}}
"""


def count_linear(
    checkout: Path, name: str, shape: tuple[int, int, int], target: TargetDescription
) -> int:
    """Instructions of a kernel: product, bias and requantisation.

    Parameters
    ----------
    checkout
        Folder with ``Include`` and ``Source``.
    name
        One of `KERNELS`; activations have 8 bits.
    shape
        Rows, depth and columns.
    target
        A Cortex-M.

    Raises
    ------
    CountingError
        If the folder has no such kernel, or the kernel's result is wrong.
    """
    rows, depth, columns = shape
    bits, whole, arguments = KERNELS[name]
    source = checkout / "Source" / "NNSupportFunctions" / f"arm_nn_{name}.c"
    where = f"{source} on {target.name}"
    if not source.is_file():
        raise CountingError(
            what="this folder has no kernel of CMSIS-NN",
            where=where,
            why="the file does not exist",
            todo="give a checkout of https://github.com/ARM-software/CMSIS-NN",
        )
    random = np.random.default_rng(0)
    x = random.integers(-128, 128, (rows, depth), dtype=np.int8)
    least = -(1 << (bits - 1))
    weight = random.integers(least, -least, (columns, depth), dtype=np.int8)
    bias = random.integers(-1000, 1000, columns, dtype=np.int32)
    packed = weight if bits == 8 else (weight[:, ::2] & 15) | (weight[:, 1::2] << 4)
    # Every channel has the same scale, a power of two, which takes no fewer instructions.
    shift = bits + 2
    factors, shifts = (np.full(columns, value, np.int32) for value in (1 << 30, -shift))
    y = np.full((rows, columns), 0x5A, np.int8)
    counter: list[Counting] = []

    def plugin(elf: Path) -> str:
        counter.append(Counting(elf, target, within=_SYMBOL).__enter__())
        return counter[0].argument

    call = f"arm_nn_{name}{arguments.format(m=rows, k=depth, n=columns)}"
    command = [*find_linker(target), *_FLAGS, *target.microkernel_flags]
    with tempfile.TemporaryDirectory(prefix="cmsis-nn.") as scratch:
        caller = Path(scratch) / "caller.c"
        text = _CALLER.format(symbol=_SYMBOL, calls=1 if whole else rows, call=call)
        caller.write_text(text, encoding="utf-8")
        objects = [Path(scratch) / f"{path.stem}.o" for path in (caller, source)]
        for path, made in zip((caller, source), objects, strict=True):
            options = [f"-I{checkout / 'Include'}", "-c", str(path), "-o", str(made)]
            subprocess.run([*command, *options], check=True)
        try:
            run = run_kernel(
                target, objects, _SYMBOL, [x, packed, bias, factors, shifts, y], plugin=plugin
            )
            counts = counter[0].counts()
        finally:
            for each in counter:
                each.__exit__(None, None, None)
    half = (x.astype(np.int64) @ weight.T + bias + 1) >> 1
    rounded = (half + (1 << (shift - 1)) - (half < 0)) >> shift
    wrong = int(np.count_nonzero(run.arrays[-1] != np.clip(rounded, -128, 127)))
    if run.status or wrong:
        raise CountingError(
            what="a kernel of CMSIS-NN is wrong",
            where=where,
            why=f"status {run.status}, {wrong} of {y.size} entries differ",
            todo="see whether the checkout is whole, and which arguments its version takes",
        )
    return counts.instructions

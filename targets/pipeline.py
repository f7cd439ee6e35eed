"""TVM's lowering of kernels for a processor, with our passes where they belong."""

from __future__ import annotations

import tvm
from tvm import tirx

from .description import TargetDescription
from .q15 import select_q15_instructions
from .stack_buffers import keep_small_buffers_on_stack


def kernel_passes(description: TargetDescription) -> list[tvm.transform.Pass]:
    """Passes of ours, to run after loops are vectorised and buffers flattened.

    Parameters
    ----------
    description
        The target.
    """
    return [keep_small_buffers_on_stack, select_q15_instructions(description)]


def cpu_pipeline(description: TargetDescription) -> str:
    """Register the TIR pipeline of a target with TVM.

    Ours run after loops are vectorised and buffers flattened, before TVM's last steps lower
    intrinsics and make the host functions.

    Parameters
    ----------
    description
        The target.

    Returns
    -------
    str
        Name to give as ``tir_pipeline``.
    """
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("default")

    def finalize() -> tvm.transform.Pass:
        return tvm.transform.Sequential([*kernel_passes(description), finalize_host()])

    name = f"ibert.cpu.{description.name}"
    tirx.register_tir_pipeline(name, lambda: (lower, finalize, finalize_device))
    return name

"""TVM's lowering of kernels for a GPU, with our passes where they belong."""

from __future__ import annotations

import tvm
from tvm import tirx

from ..description import TargetDescription
from .division import LowerDivision


def gpu_pipeline(description: TargetDescription) -> str:
    """Register the TIR pipeline of a GPU with TVM.

    Ours runs on device code, before TVM's last step lowers intrinsics.

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
        return tvm.transform.Sequential([LowerDivision(), finalize_device()])

    name = f"ibert.cuda.{description.name}"
    tirx.register_tir_pipeline(name, lambda: (lower, finalize_host, finalize))
    return name

"""TVM's lowering of kernels for a GPU, with our passes where they belong."""

from __future__ import annotations

import tvm
from tvm import tirx

from ..description import TargetDescription
from .division import lower_division
from .launches import Launch, observe_launches


def gpu_pipeline(description: TargetDescription, launches: dict[str, Launch]) -> str:
    """Register the TIR pipeline of a GPU with TVM.

    Ours run on device code, before TVM's last step lowers intrinsics.

    Parameters
    ----------
    description
        The target.
    launches
        Receives how each device kernel is launched.

    Returns
    -------
    str
        Name to give as ``tir_pipeline``.
    """
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("default")

    def finalize() -> tvm.transform.Pass:
        passes = [observe_launches(launches), lower_division, finalize_device()]
        return tvm.transform.Sequential(passes)

    name = f"ibert.cuda.{description.name}"
    tirx.register_tir_pipeline(name, lambda: (lower, finalize_host, finalize))
    return name

"""Pytest plugin: machine code for "the GPU of this machine" comes from g++ instead of nvcc.

With the stand-in's libraries in ``LD_LIBRARY_PATH`` the driver is found as a real one would be, so
that a machine without a GPU can see what ``-m gpu`` does on one (test_gpu_marker.py).
"""

from __future__ import annotations

from tests.cuda.kernel_image import kernel_image
from tests.cuda.real_gpu import RealGpu


def _image(gpu: RealGpu, source: str) -> bytes:
    return kernel_image(source, gpu.capability)


RealGpu.image = _image  # type: ignore[method-assign]

"""Graphs of CUDA's with fewer blocks than were captured.

Kernels that TVM launches are the driver's, so that only the driver's functions tell what they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from ..common.errors import DeviceError

_KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_INTEGERS = ("x", "y", "z", "threads_x", "threads_y", "threads_z", "shared_bytes")
_pointer = ctypes.c_void_p


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of version 2 (cuda.h); `x`, `y`, `z` are blocks of the grid."""

    _fields_ = (
        ("function", _pointer),
        *((name, ctypes.c_uint) for name in _INTEGERS),
        ("arguments", _pointer),
        ("extra", _pointer),
        ("kernel", _pointer),
        ("context", _pointer),
    )
    function: int | None
    kernel: int | None
    x: int


class GraphEditor:
    """The driver's functions for nodes of graphs.

    Parameters
    ----------
    driver
        ``libcuda``.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver

    def set_blocks(self, graph: int, executable: int, blocks: Callable[[str, int], int]) -> None:
        """Have kernels of a graph launched with other numbers of blocks.

        Parameters
        ----------
        graph
            As it was captured; it stays as it is.
        executable
            Made of it.
        blocks
            ``blocks(kernel, captured)``: blocks along x of a kernel of that name.

        Raises
        ------
        DeviceError
            If the driver reports an error.
        """
        count, kind = ctypes.c_size_t(0), ctypes.c_int(0)
        self._call("cuGraphGetNodes", _pointer(graph), None, ctypes.byref(count))
        nodes = (_pointer * count.value)()
        self._call("cuGraphGetNodes", _pointer(graph), nodes, ctypes.byref(count))
        for node in map(_pointer, nodes):
            self._call("cuGraphNodeGetType", node, ctypes.byref(kind))
            if kind.value != _KERNEL:
                continue
            launch, name = _KernelNode(), ctypes.c_char_p()
            self._call("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(launch))
            # A kernel of a library that the driver loads lazily is no function of a module.
            if launch.function:
                self._call("cuFuncGetName", ctypes.byref(name), _pointer(launch.function))
            else:
                self._call("cuKernelGetName", ctypes.byref(name), _pointer(launch.kernel))
            wanted = blocks((name.value or b"").decode(), launch.x)
            if wanted != launch.x:
                launch.x = wanted
                changed = (_pointer(executable), node, ctypes.byref(launch))
                self._call("cuGraphExecKernelNodeSetParams_v2", *changed)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise DeviceError(
                "the GPU reports an error",
                where=name,
                why=f"error {status} of the driver",
                todo="run it again in a new process; nvidia-smi shows the state of the GPU",
            )

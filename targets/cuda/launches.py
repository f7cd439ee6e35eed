"""How kernels are launched: blocks, threads, and shared memory that a launch asks for.

It is constant, because every function of a library has one shape, and is read off the device
functions before code is made of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import tvm
from tvm import tirx

from ..nodes import nodes_of
from ..pipeline import static_bytes

_DYNAMIC = "shared.dyn"
_EXTENT = "thread_extent"


@dataclass(frozen=True)
class Launch:
    """One device kernel's launch.

    Attributes
    ----------
    blocks, threads
        Of the grid, and of a block, along x, y and z.
    dynamic_shared_bytes
        Shared memory per block besides what the kernel declares itself.
    """

    blocks: tuple[int, int, int] = (1, 1, 1)
    threads: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared_bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON-serialisable dictionary."""
        return asdict(self)


def observe_launches(found: dict[str, Launch]) -> tvm.transform.Pass:
    """Write down how the kernels of a module are launched; it is left as it is.

    Parameters
    ----------
    found
        Receives the launches by name of the device kernel.

    Returns
    -------
    tvm.transform.Pass
        Expects device functions, split from their hosts.
    """

    @tvm.transform.module_pass(opt_level=0, name="ibert.ObserveLaunches")
    def observe(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        for var, function in module.functions_items():
            found[var.name_hint] = _launch(function)
        return module

    return observe


def _launch(function: tirx.PrimFunc) -> Launch:
    extents = {
        str(statement.node.thread_tag): int(statement.value)
        for statement in nodes_of(function.body, tirx.AttrStmt)
        if statement.attr_key == _EXTENT
    }
    buffers = [statement.buffer for statement in nodes_of(function.body, tirx.AllocBuffer)]
    shared = sum(static_bytes(one) or 0 for one in buffers if one.scope() == _DYNAMIC)

    def along(kind: str) -> tuple[int, int, int]:
        x, y, z = (extents.get(f"{kind}.{axis}", 1) for axis in "xyz")
        return x, y, z

    return Launch(along("blockIdx"), along("threadIdx"), shared)

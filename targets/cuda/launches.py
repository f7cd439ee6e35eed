"""How kernels are launched: blocks, threads, and shared memory that a launch asks for.

It is constant, because every function of a library has one shape, and is read off the device
functions before code is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import tvm
from tvm import relax, tirx

from ..nodes import calls_of, nodes_of
from ..pipeline import static_bytes
from .buckets import token_buckets

_CALL = "relax.call_tir"
_DYNAMIC = "shared.dyn"
# `ibert_tvm.schedules.row_guard.BLOCKS`, `ibert_tvm.relay_passes.passes.pack_tokens.PACKED`
_BLOCKS, _PACKED = "ibert.blocks_of_rows", "ibert.packed"
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
    rows
        As of `ibert_tvm.targets.cuda.buckets`; None where every block has something to do.
    """

    blocks: tuple[int, int, int] = (1, 1, 1)
    threads: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared_bytes: int = 0
    rows: tuple[int, int, int] | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON-serialisable dictionary."""
        document = asdict(self)
        if self.rows is None:
            del document["rows"]
        return document


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


def add_rows(launches: dict[str, Launch], module: tvm.IRModule) -> None:
    """Note of each launch which of its blocks have something to do.

    Parameters
    ----------
    launches
        By name of the device kernel.
    module
        Scheduled kernels.
    """
    for var, function in module.functions_items():
        rows = (function.attrs or {}).get(_BLOCKS)
        name = f"{var.name_hint}_kernel"
        if rows is not None and name in launches:
            units, shared, blocks = map(int, rows)
            launches[name] = replace(launches[name], rows=(units, shared, blocks))


def token_records(
    module: tvm.IRModule, launches: Mapping[str, Launch]
) -> dict[str, dict[str, object]]:
    """What a library says of the tokens of packed functions, by name of the function.

    Parameters
    ----------
    module
        Scheduled kernels, and the functions that call them.
    launches
        With rows, by name of the device kernel.

    Returns
    -------
    dict
        ``mask`` (number of the input), ``kept`` (positions that are computed whatever it says),
        ``buckets`` (see `ibert_tvm.targets.cuda.buckets.token_buckets`).
    """
    records: dict[str, dict[str, object]] = {}
    for var, function in module.functions_items():
        if not isinstance(function, relax.Function) or _PACKED not in (function.attrs or {}):
            continue
        place, *kept = map(int, function.attrs[_PACKED])
        called = {f"{call.args[0].name_hint}_kernel" for call in calls_of(function, _CALL)}
        rows = [launch.rows for name, launch in launches.items() if name in called and launch.rows]
        tokens = math.prod(int(size) for size in function.params[place].ty.shape.values)
        buckets = list(token_buckets(tokens, rows))
        records[var.name_hint] = {"mask": place, "kept": kept, "buckets": buckets}
    return records


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

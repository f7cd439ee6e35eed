"""What commands say about libraries for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..common.strict_json import JsonObject
from .tables import Table

if TYPE_CHECKING:
    pass


def kernel_table(cuda: JsonObject) -> Table:
    """Make a table of device kernels; numbers of several architectures stand side by side.

    Parameters
    ----------
    cuda : mapping
        As for `device_statements`.

    Returns
    -------
    Table
    """
    rows: dict[str, list[JsonObject]] = {}
    for kernel in cuda["kernels"]:
        rows.setdefault(kernel["name"], []).append(kernel)
    headers = (
        *("kind", "layer", "blocks", "threads", "shared bytes", "registers", "instructions"),
        *("tensor core", "local memory"),
    )
    return Table(headers, [_row(name, kernels, cuda) for name, kernels in rows.items()])


def _row(name: str, kernels: Sequence[JsonObject], cuda: JsonObject) -> tuple[str, ...]:
    launch = cuda.get("launches", {}).get(name)
    dynamic = launch["dynamic_shared_bytes"] if launch else 0
    return (
        kernels[0]["kind"] or name,
        kernels[0]["layer"],
        _extents(launch["blocks"]) if launch else "",
        _extents(launch["threads"]) if launch else "",
        _side_by_side(kernel["shared_bytes"] + dynamic for kernel in kernels),
        *(
            _side_by_side(kernel[key] for kernel in kernels)
            for key in ("registers", "instructions", "matrix", "local")
        ),
    )


def _extents(sizes: Sequence[int]) -> str:
    """Sizes along x, y and z, without what is 1 at the end."""
    used = list(sizes)
    while len(used) > 1 and used[-1] == 1:
        used.pop()
    return " x ".join(map(str, used))


def _side_by_side(values: Any) -> str:
    """Values of the architectures; one where all are equal."""
    texts = [str(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)

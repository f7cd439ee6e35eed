"""Memory of a process that loads one implementation and runs it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from .models import Cell, ModelSpec
from .process import WorkerError, ask

__all__ = ["measure_all_memory"]

LOG = logging.getLogger("benchmarks")


def measure_all_memory(
    spec: ModelSpec, cell: Cell, peers: list[str], cache: Path, threads: int = 1
) -> list[dict[str, Any]]:
    """Measure every peer, one process after the other.

    Returns
    -------
    list of dict
        Per peer: ``stages`` (``start``, ``loaded``, ``ran``; each with ``peak``, ``resident``,
        ``anonymous``, ``file_mapped``, ``shared`` in MiB) and the largest ``mappings``; or
        ``failed`` with the reason.
    """
    rows = []
    for peer in peers:
        row: dict[str, Any] = {
            "model": spec.name,
            "cell": str(cell),
            "threads": threads,
            "peer": peer,
        }
        try:
            row.update(ask("memory", spec, peer, cell, threads, cache))
        except WorkerError as error:
            row["failed"] = str(error)
            LOG.warning("memory of %s, %s: %s", spec.name, peer, error)
        else:
            ran = row["stages"]["ran"]
            LOG.info(
                "%-10s %6s  memory     %-26s %7.0f MiB peak, %.0f anonymous, %.0f file-mapped",
                *(spec.name, cell, peer, ran["peak"], ran["anonymous"], ran["file_mapped"]),
            )
        rows.append(row)
    return rows

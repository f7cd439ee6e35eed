"""The latency grid: the paper's sixteen cells, from results of `benchmarks.cpu` and `.cuda`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["CELLS", "PAPER", "speedups"]

# INT8 on a T4 with TensorRT, as times as fast as FP32: RoBERTa-Base and -Large, batch 1, 2,
# 4 and 8 at each length.
PAPER = {
    ("bert-base", 128): (2.42, 3.36, 3.39, 3.31),
    ("bert-base", 256): (3.11, 2.96, 2.94, 3.15),
    ("bert-large", 128): (3.20, 4.00, 3.98, 3.81),
    ("bert-large", 256): (3.19, 3.51, 3.37, 3.40),
}
_BATCHES = (1, 2, 4, 8)
CELLS = tuple((model, f"{batch}x{length}") for model, length in PAPER for batch in _BATCHES)
_OWN = ("ibert", "ibert-int8")


def speedups(file: Path, float_peers: str) -> dict[tuple[str, str], float]:
    """Read how many times as fast the integers are as the fastest float runtime, by cell.

    Parameters
    ----------
    file : pathlib.Path
        JSON of `benchmarks.cpu` or `benchmarks.cuda`.
    float_peers : str
        End or beginning of the names of the float peers that count.

    Returns
    -------
    dict of (str, str) to float
        Only cells that were measured; with the most threads that were.
    """
    if not file.exists():
        return {}
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    rows = [row for row in rows if "median_ms" in row and "wrong" not in row]
    most = max((row.get("threads", 1) for row in rows), default=1)
    found = {}
    for cell in CELLS:
        here = [
            row
            for row in rows
            if (row["model"], row["cell"]) == cell and row.get("threads", 1) == most
        ]
        own = [row["median_ms"] for row in here if row["peer"] in _OWN]
        others = [row["median_ms"] for row in here if float_peers in row["peer"]]
        if own and others:
            found[cell] = min(others) / own[0]
    return found

"""What the project promises about speed on a GPU, each with the number that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.goals import Goal, geometric_mean

from .cells import PAPER_MODELS, PAPER_SHAPES
from .limits import mma_limit
from .peers import BASELINE

__all__ = ["KINDS", "Group", "check_goals", "groups_of", "ratio"]

# Kinds of peers by their names' beginnings: the faster of all that match counts.
KINDS = {
    "PyTorch FP32": "pytorch-fp32",
    "PyTorch FP16": "pytorch-fp16",
    "PyTorch INT8": "pytorch-int8",
    "own FP32": "ibert-fp32",
}
PAPER_CELLS = tuple((model, str(cell)) for model in PAPER_MODELS for cell in PAPER_SHAPES)
_LEAST_FP32, _LEAST_FP16, _LEAST_OF_LIMIT = 4.0, 1.3, 0.6
# The cell in which matrix kernels are large enough for a fraction of the limit to mean something.
_KERNEL_CELL = ("bert-base", "8x256")

Group = dict[str, dict[str, Any]]


def groups_of(result: Mapping[str, Any]) -> dict[tuple[str, str], Group]:
    """Measured rows that are not wrong by (model, cell), then by peer."""
    groups: dict[tuple[str, str], Group] = {}
    for row in result["rows"]:
        if "median_ms" in row and "wrong" not in row:
            groups.setdefault((row["model"], row["cell"]), {})[row["peer"]] = row
    return groups


def ratio(group: Group, kind: str, field: str = "median_ms") -> float | None:
    """How many times as long the fastest peer of a kind takes as this project.

    Parameters
    ----------
    group : dict
        Rows of a cell by peer.
    kind : str
        Of `KINDS`.
    field : str
        ``"median_ms"`` or ``"min_ms"`` of calls; ``"device_median_ms"``: the peers' time without
        copies, against this project's with them.

    Returns
    -------
    float or None
    """
    peers = [row for name, row in group.items() if name.startswith(KINDS[kind])]
    times = [row[field] for row in peers if field in row]
    if not times or BASELINE not in group:
        return None
    own = group[BASELINE][field.removeprefix("device_")]
    return float(min(times) / own)


def check_goals(result: Mapping[str, Any]) -> list[Goal]:
    """Check every promise against a measurement."""
    groups = groups_of(result)

    def values(kind: str, field: str = "median_ms") -> dict[str, float]:
        found = {}
        for key in PAPER_CELLS:
            value = ratio(groups.get(key, {}), kind, field)
            if value is not None:
                found[" ".join(key)] = value
        return found

    return [
        _every_cell(values("PyTorch FP32"), values("PyTorch FP32", "min_ms")),
        _mean(values("PyTorch FP16"), values("PyTorch FP16", "min_ms")),
        _kernels(result, groups),
    ]


def _counted(found: Mapping[str, float]) -> str:
    return f"{len(found)} of {len(PAPER_CELLS)}"


def _every_cell(medians: Mapping[str, float], minima: Mapping[str, float]) -> Goal:
    name, bound = "times as fast as PyTorch FP32, every cell", f">= {_LEAST_FP32:.1f}"
    if not medians:
        return Goal(name, bound, "", None, _counted(medians))
    worst = min(medians, key=lambda cell: medians[cell])
    text = f"{medians[worst]:.2f} ({worst}); of minima {min(minima.values()):.2f}"
    missed = sum(value < _LEAST_FP32 for value in medians.values())
    if missed:
        text += f"; missed in {missed}"
    return Goal(name, bound, text, not missed, _counted(medians))


def _mean(medians: Mapping[str, float], minima: Mapping[str, float]) -> Goal:
    name = "times as fast as PyTorch FP16, geometric mean"
    bound = f">= {_LEAST_FP16:.1f}"
    if not medians:
        return Goal(name, bound, "", None, _counted(medians))
    mean = geometric_mean(list(medians.values()))
    text = f"{mean:.2f}; of minima {geometric_mean(list(minima.values())):.2f}"
    return Goal(name, bound, text, mean >= _LEAST_FP16, _counted(medians))


def _kernels(result: Mapping[str, Any], groups: Mapping[tuple[str, str], Group]) -> Goal:
    """Linear layers against the microbenchmark of the same instruction."""
    name = f"of the mma limit, every linear kernel of {' '.join(_KERNEL_CELL)}"
    bound = f">= {_LEAST_OF_LIMIT:.0%}"
    limit = mma_limit(result["limits"])
    kernels = groups.get(_KERNEL_CELL, {}).get(BASELINE, {}).get("kernels", [])
    reached = {
        row["role"]: 2 * row["macs"] / row["median_ms"] * 1e-9 / limit
        for row in kernels
        if limit and row["kind"] == "linear" and row["median_ms"] > 0
    }
    if not reached:
        return Goal(name, bound, "", None, "0 of 1")
    worst = min(reached, key=lambda role: reached[role])
    text = f"{reached[worst]:.0%} ({worst})"
    return Goal(name, bound, text, reached[worst] >= _LEAST_OF_LIMIT, "1 of 1")

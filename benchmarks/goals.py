"""What the project promises about speed and memory, each with the number that was measured.

Ratios are of medians, of the peer's faster variant to this project; the same of minima stands
beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .machine import int8_ceiling
from .models import MODELS, Cell

__all__ = ["BASELINE", "KINDS", "Goal", "check_goals", "geometric_mean", "groups_of", "ratio"]

BASELINE = "ibert"
# Cells of the promises; others may be measured too.
PROMISED = {
    "bert-base": ("1x128", "2x128", "4x128", "8x128", "1x256", "2x256", "4x256", "8x256"),
    "minilm": ("1x32", "8x32", "1x128", "8x128"),
}
# Kinds of peers by their names' beginnings: the faster of all that match counts.
KINDS = {
    "OpenVINO INT8": ("openvino-int8",),
    "ONNX Runtime INT8": ("onnxruntime-int8",),
    "best FP32": ("openvino-fp32", "onnxruntime-fp32", "pytorch-fp32"),
    "another commit": ("ibert@",),
    "own VNNI": ("ibert-vnni",),
}
# What a latency may exceed proportionality by before it counts as growing faster: noise.
_TOLERANCE = 1.03

Group = dict[str, dict[str, Any]]
Groups = dict[tuple[str, str, int], Group]


@dataclass(frozen=True)
class Goal:
    """One promise.

    Attributes
    ----------
    name : str
        What is promised.
    bound : str
        The number that decides, for example ``">= 1.10"``.
    measured : str
        What was measured, with the cell where it is worst; empty if nothing was.
    met : bool or None
        None if nothing was measured.
    cells : str
        How many of the cells that it speaks of were measured, ``"24 of 24"``.
    """

    name: str
    bound: str
    measured: str
    met: bool | None
    cells: str


def groups_of(result: dict[str, Any]) -> Groups:
    """Measured rows by (model, cell, threads), then by peer."""
    groups: Groups = {}
    for row in result["rows"]:
        if "median_ms" in row:
            key = (row["model"], row["cell"], row["threads"])
            groups.setdefault(key, {})[row["peer"]] = row
    return groups


def ratio(group: Group, kind: str, field: str = "median_ms") -> float | None:
    """How many times as long the fastest peer of a kind takes as this project."""
    times = [row[field] for peer, row in group.items() if peer.startswith(KINDS[kind])]
    if not times or BASELINE not in group:
        return None
    return float(min(times) / group[BASELINE][field])


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _label(key: tuple[str, str, int]) -> str:
    model, cell, threads = key
    return f"{model} {cell}, {threads} thread{'s' * (threads != 1)}"


def _promised(*models: str) -> list[tuple[str, str, int]]:
    return [(m, cell, threads) for m in models for cell in PROMISED[m] for threads in (1, 2)]


def _count(found: int, all_of: int) -> str:
    return f"{found} of {all_of}"


def _lowest(
    name: str,
    bound: float,
    keys: Sequence[tuple[str, str, int]],
    value: Callable[[tuple[str, str, int], str], float | None],
    form: str = ".2f",
) -> Goal:
    """A promise that every cell keeps `bound`; `value` takes a cell and a field."""
    by_median = {key: v for key in keys if (v := value(key, "median_ms")) is not None}
    sign = f">= {bound:{form}}"
    if not by_median:
        return Goal(name, sign, "", None, _count(0, len(keys)))
    worst = min(by_median, key=lambda key: by_median[key])
    by_minimum = [v for key in keys if (v := value(key, "min_ms")) is not None]
    missed = sum(v < bound for v in by_median.values())
    text = f"{by_median[worst]:{form}} ({_label(worst)}); of minima {min(by_minimum):{form}}"
    if missed:
        text += f"; missed in {missed}"
    return Goal(name, sign, text, not missed, _count(len(by_median), len(keys)))


def _mean(groups: Groups, name: str, kind: str, bound: float) -> Goal:
    keys = [key for key in _promised(*PROMISED) if key in groups]
    values = [v for key in keys if (v := ratio(groups[key], kind)) is not None]
    total = len(_promised(*PROMISED))
    if not values:
        return Goal(name, f">= {bound:.2f}", "", None, _count(0, total))
    minima = [v for key in keys if (v := ratio(groups[key], kind, "min_ms")) is not None]
    mean = geometric_mean(values)
    text = f"{mean:.2f}; of minima {geometric_mean(minima):.2f}"
    return Goal(name, f">= {bound:.2f}", text, mean >= bound, _count(len(values), total))


def _ceiling_goal(result: dict[str, Any], groups: Groups, model: str, bound: float) -> Goal:
    key = (model, "1x128", 1)

    def fraction(cell: tuple[str, str, int], field: str) -> float | None:
        ceiling = int8_ceiling(result["limits"].get(str(cell[2]), {}))
        if ceiling is None or BASELINE not in groups.get(cell, {}):
            return None
        milliseconds = groups[cell][BASELINE][field]
        return MODELS[model].macs(Cell.parse(cell[1])) / milliseconds * 1e-6 / ceiling

    name = f"of the 8-bit ceiling, {model} 1x128, one thread"
    return _lowest(name, bound, [key], fraction, ".0%")


def _growth(groups: Groups, name: str, pairs: Sequence[tuple[str, str, str]]) -> Goal:
    """Latency grows at most as the work from the first cell of each pair to the second."""
    growths: dict[str, float] = {}
    total = 0
    for model, small, large in pairs:
        for threads in (1, 2):
            total += 1
            first = groups.get((model, small, threads), {}).get(BASELINE)
            second = groups.get((model, large, threads), {}).get(BASELINE)
            if first is None or second is None:
                continue
            spec = MODELS[model]
            work = spec.macs(Cell.parse(large)) / spec.macs(Cell.parse(small))
            label = f"{model} {small} to {large}, {threads} thread{'s' * (threads != 1)}"
            growths[label] = second["median_ms"] / first["median_ms"] / work
    bound = f"<= {_TOLERANCE:.2f}"
    if not growths:
        return Goal(name, bound, "", None, _count(0, total))
    worst = max(growths, key=lambda label: growths[label])
    text = f"{growths[worst]:.2f} ({worst})"
    return Goal(name, bound, text, growths[worst] <= _TOLERANCE, _count(len(growths), total))


def _memory_goal(result: dict[str, Any]) -> Goal:
    peaks = {
        row["peer"]: row["stages"]["ran"]["peak"]
        for row in result["memory"]
        if row["model"] == "bert-base" and "stages" in row
    }
    name = "peak resident memory of a BERT-Base process, MiB"
    others = {peer: v for peer, v in peaks.items() if peer.startswith("onnxruntime-int8")}
    if BASELINE not in peaks or not others:
        return Goal(name, "< ONNX Runtime INT8", "", None, "0 of 1")
    peer = min(others, key=lambda p: others[p])
    text = f"{peaks[BASELINE]:.0f}; {peer} {others[peer]:.0f}"
    return Goal(name, "< ONNX Runtime INT8", text, peaks[BASELINE] < others[peer], "1 of 1")


def check_goals(result: dict[str, Any]) -> list[Goal]:
    """Check every promise against a result.

    Parameters
    ----------
    result : dict
        The document of a run.

    Returns
    -------
    list of Goal
    """
    groups = groups_of(result)

    def against(kind: str) -> Callable[[tuple[str, str, int], str], float | None]:
        return lambda key, field: ratio(groups.get(key, {}), kind, field)

    batches = [
        (model, f"1x{length}", cell)
        for model, cells in PROMISED.items()
        for cell in cells
        for length in [cell.partition("x")[2]]
        if not cell.startswith("1x")
    ]
    lengths = [("bert-base", f"{b}x128", f"{b}x256") for b in (1, 2, 4, 8)]
    lengths += [("minilm", f"{b}x32", f"{b}x128") for b in (1, 8)]
    return [
        _lowest(
            "times as fast as OpenVINO INT8, every cell",
            1.10,
            _promised(*PROMISED),
            against("OpenVINO INT8"),
        ),
        _mean(groups, "times as fast as OpenVINO INT8, geometric mean", "OpenVINO INT8", 1.20),
        _lowest(
            "times as fast as ONNX Runtime INT8, every cell",
            1.80,
            _promised(*PROMISED),
            against("ONNX Runtime INT8"),
        ),
        _lowest(
            "times as fast as the best FP32, BERT-Base, every cell",
            4.00,
            _promised("bert-base"),
            against("best FP32"),
        ),
        _lowest(
            "times as fast as the best FP32, BERT-Large 1x128",
            4.00,
            [("bert-large", "1x128", threads) for threads in (1, 2)],
            against("best FP32"),
        ),
        _ceiling_goal(result, groups, "bert-base", 0.85),
        _ceiling_goal(result, groups, "minilm", 0.75),
        _growth(groups, "latency per work, from batch 1 to more", batches),
        _growth(groups, "latency per work, from short to long", lengths),
        _memory_goal(result),
    ]

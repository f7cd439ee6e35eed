"""The chart: how many times as long each peer takes, one row per cell, one panel per threads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .goals import BASELINE, groups_of

__all__ = ["draw_chart"]

# The faster variant of a runtime is shown; label, beginning of the peers' names, marker.
_SERIES = (
    ("OpenVINO INT8", "openvino-int8", "o"),
    ("ONNX Runtime INT8", "onnxruntime-int8", "s"),
    ("OpenVINO FP32", "openvino-fp32", "^"),
    ("ONNX Runtime FP32", "onnxruntime-fp32", "v"),
    ("PyTorch FP32", "pytorch-fp32", "D"),
)
_TICKS = (0.5, 0.7, 1, 1.2, 1.5, 2, 3, 4, 5, 7, 10)


def draw_chart(result: dict[str, Any], path: Path) -> bool:
    """Draw latencies relative to this project's as a PNG.

    Parameters
    ----------
    result : dict
        The document of a run.
    path : Path
        The file to write.

    Returns
    -------
    bool
        False without matplotlib, or without anything to compare.
    """
    groups = {key: group for key, group in groups_of(result).items() if BASELINE in group}
    threads = sorted({key[2] for key in groups})
    if find_spec("matplotlib") is None or not any(len(group) > 1 for group in groups.values()):
        return False
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells = list(dict.fromkeys(key[:2] for key in groups))
    figure, panels = plt.subplots(
        1,
        len(threads),
        figsize=(1 + 4.5 * len(threads), 1.6 + 0.34 * len(cells)),
        sharey=True,
        squeeze=False,
    )
    for axes, count in zip(panels[0], threads, strict=True):
        for index, (label, prefix, marker) in enumerate(_SERIES):
            places, values = [], []
            for place, cell in enumerate(cells):
                group = groups.get((*cell, count), {})
                times = [r["median_ms"] for peer, r in group.items() if peer.startswith(prefix)]
                if times:
                    places.append(place)
                    values.append(min(times) / group[BASELINE]["median_ms"])
            if not values:
                continue
            axes.plot(values, places, marker, label=label, color=f"C{index}", markersize=6)
            for value, place in zip(values, places, strict=True):
                axes.annotate(
                    f"{value:.2f}",
                    (value, place),
                    xytext=(0, 5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=6,
                    color=f"C{index}",
                )
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xticks(_TICKS, [str(tick) for tick in _TICKS])
        axes.set_xlim(low, high)  # ticks outside of the data would widen it
        axes.minorticks_off()
        axes.grid(axis="both", color="0.9")
        axes.set_axisbelow(True)
        axes.set_title(f"{count} thread{'s' * (count != 1)}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    first = panels[0][0]
    first.set_yticks(range(len(cells)), [f"{model} {cell}" for model, cell in cells], fontsize=8)
    first.invert_yaxis()
    figure.supxlabel(
        f"latency relative to {BASELINE} (right of 1: {BASELINE} is faster)", fontsize=9
    )
    handles, labels = first.get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return True

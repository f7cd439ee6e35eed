"""The charts of the tables, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .functions import EXPONENTIALS, GELUS, gelu

__all__ = ["draw_differences", "draw_errors"]

_METADATA = {"svg": {"Date": None}, "png": {"Software": None}}  # the same bytes from the same data


def _save(figure, output: Path) -> list[Path]:
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = output.name
    paths = []
    for kind, metadata in _METADATA.items():
        path = output.with_name(f"{output.name}.{kind}")
        figure.savefig(path, dpi=130, bbox_inches="tight", metadata=metadata)
        paths.append(path)
    plt.close(figure)
    return paths


def draw_errors(table: str, output: Path) -> list[Path]:
    """Draw how far the approximations of `gelu` or `exp` are off, over their interval.

    Parameters
    ----------
    table : {"gelu", "exp"}
        Which.
    output : pathlib.Path
        Path without suffix.

    Returns
    -------
    list of pathlib.Path
        What was written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves, exact = (GELUS, gelu) if table == "gelu" else (EXPONENTIALS, np.exp)
    x = np.linspace(*((-4, 4) if table == "gelu" else (-np.log(2) + 1e-9, 0)), 2001)
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for place, (name, curve) in enumerate(curves.items()):
        axes.plot(x, curve(x) - exact(x), label=name, color=f"C{place}", linewidth=1.2)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xlabel("x")
    axes.set_ylabel("approximation less exact")
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7)
    return _save(figure, output)


def draw_differences(
    rows: Mapping[str, tuple[float, tuple[float, float]]], title: str, output: Path
) -> list[Path]:
    """Draw differences in points with their intervals, one row each.

    Parameters
    ----------
    rows : mapping of str to (float, (float, float))
        Difference and ends of its interval, by name.
    title : str
        What the differences are.
    output : pathlib.Path
        Path without suffix.

    Returns
    -------
    list of pathlib.Path
        What was written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 1 + 0.32 * len(rows)))
    places = range(len(rows))
    centres = np.array([value for value, _ in rows.values()])
    ends = np.array([interval for _, interval in rows.values()]).T
    axes.errorbar(
        centres, places, xerr=np.abs(ends - centres), fmt="o", color="C0", capsize=3, linewidth=1
    )
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(places, list(rows), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(title, fontsize=9)
    axes.grid(axis="x", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, output)

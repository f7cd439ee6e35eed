"""Where the marks of charts go. What charts say in numbers, the tables beside them say too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..common.strict_json import JsonObject


@dataclass(frozen=True)
class Tick:
    """A line of a chart's grid: where it is, and what it is called."""

    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """Something measured: where it is, and which of the measured things."""

    x: float
    y: float
    index: int
    radius: float = 3.0


@dataclass(frozen=True)
class Line:
    """A straight line, and its name."""

    x1: float
    y1: float
    x2: float
    y2: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Marks within a frame, in the units of the drawing."""

    left: float
    top: float
    right: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[tuple[Mark, ...], ...]
    lines: tuple[Line, ...] = ()

    def path(self, series: int) -> str:
        """The marks of a series, joined, as the points of a polyline."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.series[series])


_LEFT, _TOP, _RIGHT, _BOTTOM = 52.0, 14.0, 468.0, 240.0
_LARGEST_RADIUS, _LEAST_RADIUS = 15.0, 6.0
# Cosines are drawn by how far from 1 they are, from 0.9 to 0.99999.
_LEAST_ERROR, _LARGEST_ERROR = -5.0, 0.0
# 1 - 0.99 is a little more than 0.01.
_ROUNDING = 1e-9


def roofline(parts: Sequence[JsonObject], ceiling: float | None) -> Chart | None:
    """Draw multiply-accumulates per second over those per byte, both in powers.

    Parameters
    ----------
    parts : sequence of dict
        Parts of a run, as `ibert bench --per-layer --json` lists them.
    ceiling
        The most that the machine can do, 10^9 multiply-accumulates per second.

    Returns
    -------
    Chart or None
        None where nothing is known of either.
    """
    known = [(i, p) for i, p in enumerate(parts) if p.get("gmacs") and p.get("macs_per_byte")]
    if not known:
        return None
    density = [math.log2(part["macs_per_byte"]) for _, part in known]
    speed = [math.log10(part["gmacs"]) for _, part in known]
    limits = [] if ceiling is None else [math.log10(ceiling)]
    x_low, x_high = math.floor(min(density)), math.ceil(max(density) + 1e-9)
    y_low, y_high = math.floor(min(speed)), max([*speed, *limits]) + 0.2

    def x(value: float) -> float:
        return _LEFT + (value - x_low) / (x_high - x_low) * (_RIGHT - _LEFT)

    def y(value: float) -> float:
        return _BOTTOM - (value - y_low) / (y_high - y_low) * (_BOTTOM - _TOP)

    step = max(1, (x_high - x_low) // 6)
    lines = [Line(_LEFT, y(limit), _RIGHT, y(limit), "ceiling") for limit in limits]
    for power in range(-1, 5):  # bytes per second: 0.1 GB/s to 10 TB/s
        low = max(x_low, (y_low - power) / math.log10(2))
        high = min(x_high, (y_high - power) / math.log10(2))
        if low < high:
            ends = [(x(v), y(v * math.log10(2) + power)) for v in (low, high)]
            lines.append(Line(*ends[0], *ends[1], f"{10.0**power:g} GB/s"))
    marks = tuple(
        Mark(
            x(d), y(s), i, max(_LEAST_RADIUS, _LARGEST_RADIUS * math.sqrt(min(part["share"], 1.0)))
        )
        for (i, part), d, s in zip(known, density, speed, strict=True)
    )
    return Chart(
        _LEFT,
        _TOP,
        _RIGHT,
        _BOTTOM,
        tuple(Tick(x(v), f"{2.0**v:g}") for v in range(x_low, x_high + 1, step)),
        tuple(Tick(y(v), f"{10.0**v:g}") for v in range(y_low, math.floor(y_high) + 1)),
        (marks,),
        tuple(lines),
    )


def cosines(series: Sequence[Sequence[JsonObject]]) -> Chart | None:
    """Draw the cosine of every value, from the first to the last of the program.

    Parameters
    ----------
    series : sequence of sequence of dict
        Layers of one or more artefacts, as `ibert eval --json` lists them.

    Returns
    -------
    Chart or None
        None without layers.
    """
    if not any(series):
        return None
    errors = [[_error(layer["cosine"]) for layer in layers] for layers in series]
    low = math.floor(min(min(values) for values in errors if values) + _ROUNDING)
    high = max(low + 1, math.ceil(max(max(values) for values in errors if values) - _ROUNDING))

    def y(error: float) -> float:
        return _TOP + (error - low) / (high - low) * (_BOTTOM - _TOP)

    drawn = []
    for values in errors:
        step = (_RIGHT - _LEFT) / max(1, len(values) - 1)
        drawn.append(tuple(Mark(_LEFT + i * step, y(v), i) for i, v in enumerate(values)))
    ticks = (Tick(y(power), f"{1 - 10.0**power:.{-power}f}") for power in range(low, high + 1))
    return Chart(_LEFT, _TOP, _RIGHT, _BOTTOM, (), tuple(ticks), tuple(drawn))


_EDGES = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 2.0)


def spread(errors: Sequence[float]) -> list[tuple[str, int]]:
    """Count texts by their cosine, the closest first; ranges behind the furthest are left out.

    Parameters
    ----------
    errors
        1 - cosine of each text, as `ibert eval --json` lists them.
    """
    rows = []
    for low, high in zip((-1.0, *_EDGES), _EDGES, strict=False):
        title = f"below {1 - low:g}" if high > 1 else f"{1 - high:g} or more"
        rows.append((title, sum(low < error <= high for error in errors)))
    while rows and not rows[-1][1]:
        rows.pop()
    return rows


def furthest(chart: Chart, count: int = 3) -> list[Mark]:
    """The lowest marks of the first series, to be named: the highest of them first."""
    return sorted(chart.series[0], key=lambda mark: mark.y)[-count:]


def _error(cosine: float) -> float:
    """Distance from 1 as a power of ten, within what is drawn."""
    distance = max(1 - cosine, 10**_LEAST_ERROR)
    return min(max(math.log10(distance), _LEAST_ERROR), _LARGEST_ERROR)

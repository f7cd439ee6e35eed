"""What fills the arena of a function where it is fullest, for people who have to make it fit."""

from __future__ import annotations

from collections.abc import Mapping

from .graph import PlacedGraph
from .model import ArenaPeak, BareKernel


def arena_peak(placed: PlacedGraph, kernels: Mapping[str, BareKernel]) -> ArenaPeak:
    """Find the call that needs most of the arena.

    Parameters
    ----------
    placed
        A function whose values have places.
    kernels
        By name in the module.
    """
    graph = placed.graph
    lifetimes = graph.lifetimes()
    peaks = []
    for step, call in enumerate(graph.calls):
        kernel = kernels[call.kernel]
        parts = [
            (graph.calls[first].layer, graph.values[value].nbytes)
            for value, (first, last) in lifetimes.items()
            if placed.places[value].kind == "arena" and first <= step <= last
        ]
        if kernel.workspace_bytes:
            parts.append((f"workspace of {call.layer}", kernel.workspace_bytes))
        parts.sort(key=lambda part: -part[1])
        peaks.append(ArenaPeak(call.layer, sum(size for _, size in parts), tuple(parts)))
    return max(peaks, key=lambda peak: peak.nbytes, default=ArenaPeak("", 0, ()))

"""Where the time of a call goes: by kernel, by kind, by role, by layer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..common.strict_json import JsonDict
from ..model.roles import block_of, role_of

if TYPE_CHECKING:
    from ..runtime import Library
    from ..runtime.engine import ObservableEngine
    from ..runtime.metadata import KernelRecord
    from .ceiling import Ceiling
    from .inputs import Batch

OUTSIDE = "outside of kernels"
"""Name of what is no kernel: input checks, copies, the virtual machine."""

_RUNTIME = "vm."
_LEAST_RUNS = 5


@dataclass(frozen=True)
class Part:
    """Some kernel calls of one run, together.

    Attributes
    ----------
    name
        The kernel's, or that of what they have in common.
    kind, layer
        Of a single kernel; empty for several of different ones.
    calls
        Kernel calls per run.
    milliseconds
        Time per run.
    share
        Of the whole run, 0 to 1.
    macs
        Multiply-accumulates per run.
    num_bytes
        Per run, what kernels read and write, each argument and result once; 0 where that is not
        known.
    """

    name: str
    kind: str
    layer: str
    calls: int
    milliseconds: float
    share: float
    macs: int
    num_bytes: int = 0

    @property
    def gmacs(self) -> float | None:
        """10^9 multiply-accumulates per second; None for parts without matrix products."""
        return self.macs / self.milliseconds * 1e-6 if self.macs and self.milliseconds else None

    @property
    def gbytes(self) -> float | None:
        """10^9 bytes per second; None where they are not known."""
        known = self.num_bytes and self.milliseconds
        return self.num_bytes / self.milliseconds * 1e-6 if known else None

    @property
    def macs_per_byte(self) -> float | None:
        """Multiply-accumulates per byte read or written; None without either."""
        return self.macs / self.num_bytes if self.macs and self.num_bytes else None

    def to_json(self, known: bool, ceiling: Ceiling) -> JsonDict:
        """All that is said of it, without rates where the work is not `known` for padding."""
        gmacs = self.gmacs if known else None
        return {
            "name": self.name,
            "kind": self.kind,
            "layer": self.layer,
            "calls": self.calls,
            "ms": self.milliseconds,
            "share": self.share,
            "macs": self.macs,
            "gmacs": gmacs,
            "bytes": self.num_bytes or None,
            "gbytes_per_second": self.gbytes if known else None,
            "macs_per_byte": self.macs_per_byte if known else None,
            "of_ceiling": ceiling.fraction(gmacs),
        }


@dataclass(frozen=True)
class Profile:
    """Every kernel call of a run in order, then what is left.

    Attributes
    ----------
    parts
        One per call; the last is `OUTSIDE`. Their shares sum to 1.
    """

    parts: tuple[Part, ...]

    def by(self, key: Callable[[Part], str]) -> list[Part]:
        """Sum the parts of equal key, in order of first appearance."""
        groups: dict[str, list[Part]] = {}
        for part in self.parts:
            groups.setdefault(key(part), []).append(part)
        return [_sum(name, parts) for name, parts in groups.items()]

    def by_kind(self) -> list[Part]:
        """By kind of kernel, the longest first."""
        return sorted(self.by(lambda part: part.kind or OUTSIDE), key=lambda part: -part.share)

    def by_role(self) -> list[Part]:
        """By place, repeated layers together (``encoder.layer.*.output.dense``)."""
        return self.by(lambda part: role_of(part.layer) or part.name)

    def by_block(self) -> list[Part]:
        """By repeated layer (``encoder.layer.3``); else by first word (``embeddings``)."""
        return self.by(lambda part: block_of(part.layer) or part.name)

    def to_json(self, known: bool, ceiling: Ceiling) -> dict[str, list[JsonDict]]:
        """All calls, and their sums; as for `Part.to_json`."""
        groups = {
            "kernels": self.parts,
            "by_kind": self.by_kind(),
            "by_role": self.by_role(),
            "by_layer": self.by_block(),
        }
        return {
            name: [part.to_json(known, ceiling) for part in parts] for name, parts in groups.items()
        }


def _sum(name: str, parts: Sequence[Part]) -> Part:
    def common(values: set[str]) -> str:
        return values.pop() if len(values) == 1 else ""

    return Part(
        name,
        common({part.kind for part in parts}),
        common({part.layer for part in parts}),
        sum(part.calls for part in parts),
        sum(part.milliseconds for part in parts),
        sum(part.share for part in parts),
        sum(part.macs for part in parts),
        sum(part.num_bytes for part in parts) if all(p.num_bytes for p in parts if p.calls) else 0,
    )


def measure_layers(
    library: Library, batch: Batch, records: Sequence[KernelRecord], seconds: float
) -> Profile:
    """Time every kernel call of runs on one batch.

    Observed and unobserved runs take turns, and of both the faster half counts, so that what else
    the machine does spoils neither. What an unobserved run exceeds the kernels by is `OUTSIDE`:
    observing lengthens the time between kernels, not the kernels.

    Parameters
    ----------
    library
        The library, warmed up, on this machine.
    batch
        Inputs of one call.
    records
        What the metadata says about the kernel calls, in order; a call that does not fit them
        keeps its name.
    seconds
        How long to measure.
    """
    engine = cast("ObservableEngine", library.engine)
    observed: list[list[tuple[str, int]]] = []
    plain: list[int] = []
    end = time.perf_counter() + seconds
    while len(observed) < _LEAST_RUNS or time.perf_counter() < end:
        calls: list[tuple[str, int]] = []

        def observe(name: str, nanoseconds: int, calls: list[tuple[str, int]] = calls) -> None:
            if not name.startswith(_RUNTIME):
                calls.append((name, nanoseconds))

        with engine.observed(observe):
            library.run(**batch.inputs, dequantize=False)
        observed.append(calls)
        start = time.perf_counter_ns()
        library.run(**batch.inputs, dequantize=False)
        plain.append(time.perf_counter_ns() - start)
    observed.sort(key=lambda calls: sum(taken for _, taken in calls))
    runs = observed[: (len(observed) + 1) // 2]
    # Runs of one batch make the same calls, so that they can be averaged call by call.
    names = [name for name, _ in runs[0]]
    means = [statistics.fmean(run[i][1] for run in runs) * 1e-6 for i in range(len(names))]
    kernels = sum(means)
    fast: list[int] = sorted(plain)[: (len(plain) + 1) // 2]
    whole = max(statistics.fmean(fast) * 1e-6, kernels)
    parts = []
    listed = _matched(names, records)
    for name, milliseconds, record in zip(names, means, listed, strict=True):
        kind, layer, macs, num_bytes = (
            (record.kind, record.layer, record.macs, record.num_bytes)
            if record
            else ("unlisted", "", 0, 0)
        )
        share = milliseconds / whole
        parts.append(Part(name, kind, layer, 1, milliseconds, share, macs, num_bytes))
    parts.append(Part(OUTSIDE, "", "", 0, whole - kernels, 1 - kernels / whole, 0))
    return Profile(tuple(parts))


def _matched(names: Sequence[str], records: Sequence[KernelRecord]) -> list[KernelRecord | None]:
    """What is known of every call; layers share kernels, so that the order tells them apart."""
    if [record.name for record in records] == list(names):
        return list(records)
    known = {record.name: record for record in records}
    return [known.get(name) for name in names]

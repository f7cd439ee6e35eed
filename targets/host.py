"""Which description fits the machine we run on."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

from .description import TargetDescription
from .errors import TargetError
from .x86 import HOSTS


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first processor, as the Linux kernel names them.

    Parameters
    ----------
    cpuinfo
        File to read; another one serves tests.

    Returns
    -------
    frozenset of str
        Empty where the file does not exist or lists none (then only plain code is safe).
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def missing_features(description: TargetDescription, features: frozenset[str]) -> tuple[str, ...]:
    """Features that `description` needs and `features` lacks, in the description's order."""
    return tuple(name for name in description.required_features if name not in features)


def host_target(
    features: frozenset[str] | None = None, machine: str | None = None
) -> TargetDescription:
    """The best description for this machine, renamed ``host``.

    Raises
    ------
    TargetError
        If this machine is not an x86-64 one: nothing to detect there yet.
    """
    machine = machine or platform.machine()
    if machine not in ("x86_64", "AMD64"):
        raise TargetError(
            what="cannot compile for 'host'",
            where=f"this machine ({machine})",
            why="host detection knows x86-64 only",
            todo="name a target explicitly; `ibert targets` lists them",
        )
    if features is None:
        features = cpu_features()
    for candidate in HOSTS:
        if not missing_features(candidate, features):
            return replace(
                candidate, name="host", description=f"this machine, detected: {candidate.name}"
            )
    raise TargetError(
        what="cannot compile for 'host'",
        where=f"this machine ({machine})",
        why="no description fits its processor",
        todo="compile with --target x86-64",
    )

"""Which description fits the machine we run on."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from .catalogue import BUILT_IN, CATALOGUE
from .description import TargetDescription
from .machines import MACHINES, Linux, Machine

# Words of the kernel's auxiliary vector with the processor's features (getauxval(3)).
_HWCAP = (16, 26)


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first processor, as the Linux kernel names them.

    On ARM the kernel also tells every process directly, which is what holds under an emulator,
    whose /proc/cpuinfo may be that of the machine below.

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
        text = ""
    told = _told_features() if cpuinfo == Path("/proc/cpuinfo") else frozenset[str]()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split()) | told
    return told


def _told_features() -> frozenset[str]:
    """What the kernel told this process about its processor; empty where it tells nothing."""
    machine = CATALOGUE.running_on(platform.machine())
    if machine is None or not isinstance(machine.system, Linux) or not machine.system.capabilities:
        return frozenset()
    try:
        value = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):  # a C library without it
        return frozenset()
    value.argtypes, value.restype = [ctypes.c_ulong], ctypes.c_ulong
    return machine.system.features([value(word) for word in _HWCAP])


def missing_features(description: TargetDescription, features: frozenset[str]) -> tuple[str, ...]:
    """Features that `description` needs and `features` lacks, in the description's order."""
    return tuple(name for name in description.required_features if name not in features)


def host_target(
    features: frozenset[str] | None = None, machine: str | None = None
) -> TargetDescription:
    """The best description for this machine, renamed ``host``.

    Parameters
    ----------
    features
        Features of its processor; by default those of /proc/cpuinfo.
    machine
        As ``platform.machine()`` names it, which is the default.

    Raises
    ------
    TargetError
        If there is no target for this machine.
    """
    machine = machine or platform.machine()
    candidates = _candidates(machine)
    if features is None:
        features = cpu_features()
    for candidate in candidates:
        if not missing_features(candidate, features):
            return replace(
                candidate, name="host", description=f"this machine, detected: {candidate.name}"
            )
    raise TargetError(
        what="cannot compile for 'host'",
        where=f"this machine ({machine})",
        why="no description fits its processor: /proc/cpuinfo lists too few features",
        todo=f"compile with --target {candidates[-1].name}",
    )


def _candidates(name: str) -> list[TargetDescription]:
    """Descriptions that may fit a machine, the most demanding first."""
    machine = CATALOGUE.running_on(name)
    if machine is not None and _detects(machine):
        found = (one for one in BUILT_IN if one.machine is machine and one.gpu is None)
        return sorted(found, key=lambda one: len(one.required_features), reverse=True)
    known = " and ".join(machine.title for machine in MACHINES.values() if _detects(machine))
    raise TargetError(
        what="cannot compile for 'host'",
        where=f"this machine ({name})",
        why=f"host detection knows {known}",
        todo="name a target explicitly; `ibert targets` lists them",
    )


def _detects(machine: Machine) -> bool:
    """Whether this compiler runs on a machine: TVM does."""
    return "tvm" in machine.runtimes

"""Which description fits the machine we run on."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from .catalogue import BUILT_IN, CATALOGUE
from .description import TargetDescription
from .machines import MACHINES
from .machines.record import Linux, Machine

# Words of the kernel's auxiliary vector with the processor's features (getauxval(3)).
_HWCAP = (16, 26)


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first processor, as the Linux kernel names them.

    Registers that this process may use only by permission (tiles of x86) are asked for; without
    permission their feature is left out.

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
    system = _system() if cpuinfo == Path("/proc/cpuinfo") else None
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            listed = frozenset(line.partition(":")[2].split())
            return permitted(listed, system) | _told_features(system)
    return _told_features(system)


def _system() -> Linux | None:
    """The system that this process runs on, where a machine's record knows it."""
    machine = CATALOGUE.running_on(platform.machine())
    return machine.system if machine and isinstance(machine.system, Linux) else None


def permitted(features: frozenset[str], system: Linux | None) -> frozenset[str]:
    """Those of a processor's features that a system lets this process use."""
    if system is None or system.permits is None:
        return features
    return frozenset(filter(system.permits, features))


def _told_features(system: Linux | None) -> frozenset[str]:
    """What the kernel told this process about its processor; empty where it tells nothing."""
    if system is None or not system.capabilities:
        return frozenset()
    try:
        value = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):  # a C library without it
        return frozenset()
    value.argtypes, value.restype = [ctypes.c_ulong], ctypes.c_ulong
    return system.features([value(word) for word in _HWCAP])


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


def advised_target(machine: str | None = None, features: frozenset[str] | None = None) -> str:
    """The target to compile with for this machine, wherever that is done.

    Parameters
    ----------
    machine, features
        As of `host_target`.

    Returns
    -------
    str
        ``host`` where the compiler runs, otherwise the most demanding target that fits;
        ``c99``, which any C compiler takes, where there is none.
    """
    found = CATALOGUE.running_on(machine or platform.machine())
    if found is not None and _detects(found):
        return "host"
    present = cpu_features() if features is None else features
    fitting = [one for one in _targets_of(found) if not missing_features(one, present)]
    return fitting[0].name if fitting else "c99"


def _targets_of(machine: Machine | None) -> list[TargetDescription]:
    """The descriptions of a machine's processors, the most demanding first."""
    found = (one for one in BUILT_IN if one.machine is machine and one.gpu is None)
    return sorted(found, key=lambda one: len(one.required_features), reverse=True)


def _candidates(name: str) -> list[TargetDescription]:
    """Descriptions that may fit a machine, the most demanding first."""
    machine = CATALOGUE.running_on(name)
    if machine is not None and _detects(machine):
        return _targets_of(machine)
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

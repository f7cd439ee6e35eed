"""Which description fits the machine we run on."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from .arm import AARCH64_DOTPROD, AARCH64_I8MM, RPI4
from .description import TargetDescription
from .x86 import HOSTS

# Best first: detection takes the first whose features the host has.
_ARM_HOSTS = (AARCH64_I8MM, AARCH64_DOTPROD, RPI4)
# Words of the kernel's auxiliary vector and bits in them, of the features that targets require
# (arch/arm64/include/uapi/asm/hwcap.h, arch/arm/include/uapi/asm/hwcap.h).
_HWCAP, _HWCAP2 = 16, 26
_HARDWARE = {
    "aarch64": {"asimd": (_HWCAP, 1), "asimddp": (_HWCAP, 20), "i8mm": (_HWCAP2, 13)},
    "armv7l": {"neon": (_HWCAP, 12), "idiva": (_HWCAP, 17)},
}


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
    """What the kernel told this process about an ARM processor; empty on others."""
    bits = _HARDWARE.get(platform.machine())
    if bits is None:
        return frozenset()
    try:
        value = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):  # a C library without it
        return frozenset()
    value.argtypes, value.restype = [ctypes.c_ulong], ctypes.c_ulong
    return frozenset(name for name, (word, bit) in bits.items() if value(word) >> bit & 1)


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

    Returns
    -------
    TargetDescription

    Raises
    ------
    TargetError
        If this machine is neither an x86-64 nor a 64-bit ARM one.
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


def _candidates(machine: str) -> tuple[TargetDescription, ...]:
    """Descriptions that may fit a machine, the most demanding first."""
    if machine in ("x86_64", "AMD64"):
        return HOSTS
    if machine in ("aarch64", "arm64"):
        return _ARM_HOSTS
    raise TargetError(
        what="cannot compile for 'host'",
        where=f"this machine ({machine})",
        why="host detection knows x86-64 and 64-bit ARM",
        todo="name a target explicitly; `ibert targets` lists them",
    )

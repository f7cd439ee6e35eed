"""NVIDIA's driver, asked what GPUs there are; nothing runs on them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from ibert_tvm.common.errors import TargetError

from ..description import Gpu

_LIBRARY = "libcuda.so.1"
_NAME_BYTES = 256
# CUdevice_attribute
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
_INSTALL = "install NVIDIA's driver, 580 or newer"


@dataclass(frozen=True)
class NeededDriver:
    """The oldest driver that loads the machine code of a version of CUDA.

    Attributes
    ----------
    cuda
        What the driver has to serve: the first version with the same major number, because later
        ones make the same format.
    """

    cuda: tuple[int, int]

    @staticmethod
    def of(version: tuple[int, int]) -> NeededDriver:
        """That for machine code of a compiler of some version."""
        return NeededDriver((version[0], 0))

    def to_json(self) -> dict[str, object]:
        """``cuda`` as text, and the ``series`` of the driver, 0 if it is not known."""
        return {"cuda": ".".join(map(str, self.cuda)), "series": _SERIES.get(self.cuda[0], 0)}

    def __str__(self) -> str:
        series = _SERIES.get(self.cuda[0])
        of = f"of series {series} or later" if series else "that is newer"
        return f"a driver {of} (CUDA {self.cuda[0]}.{self.cuda[1]})"


# CUDA's release notes, "CUDA Toolkit and Minimum Required Driver Versions", by major version.
_SERIES = {12: 525, 13: 580}
OLDEST_DRIVER = NeededDriver((12, 0))


@dataclass(frozen=True)
class FoundGpu:
    """A GPU of this machine.

    Attributes
    ----------
    name
        As its vendor calls it.
    capability
        Compute capability: 75 for 7.5.
    multiprocessors
        How many it has.
    """

    name: str
    capability: int
    multiprocessors: int

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.capability})"


@dataclass(frozen=True)
class Driver:
    """The driver and its GPUs.

    Attributes
    ----------
    cuda
        Newest version of CUDA that it runs, (13, 0).
    gpus
        In its order; at least one.
    """

    cuda: tuple[int, int]
    gpus: tuple[FoundGpu, ...]


def find_driver() -> Driver:
    """Ask the driver.

    Raises
    ------
    TargetError
        If there is no driver, or no GPU that it drives.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise _missing(f"there is no driver ({_LIBRARY})") from error
    _call(library, "cuInit", ctypes.c_uint(0))
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuDriverGetVersion", ctypes.byref(version))
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    if count.value == 0:
        raise _missing("the driver has no GPU")
    gpus = tuple(_gpu(library, index) for index in range(count.value))
    return Driver((version.value // 1000, version.value % 1000 // 10), gpus)


def find_gpu(gpu: Gpu) -> str:
    """Find a GPU of this machine that runs what was compiled for one.

    Parameters
    ----------
    gpu
        What it was compiled for.

    Returns
    -------
    str
        Name of the first.

    Raises
    ------
    TargetError
        If there is none.
    """
    found = find_driver().gpus
    newest = gpu.architectures[-1].replace("sm_", "compute_")
    code = (*gpu.architectures, newest) if gpu.ptx else gpu.architectures
    for candidate in found:
        if runs_on(code, divmod(candidate.capability, 10)):
            return str(candidate)
    raise TargetError(
        what=f"no GPU for code of {', '.join(code)}",
        where="this machine",
        why=f"it has {', '.join(map(str, found))}",
        todo="compile for that one",
    )


def runs_on(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code for some architectures runs on a GPU.

    Machine code for ``sm_XY`` runs on GPUs of capability X.Y and of later minor versions of X,
    that for ``sm_XYa`` on X.Y alone; ``compute_XY``, which a driver translates, on X.Y and all
    later ones.

    Parameters
    ----------
    architectures
        For example ``("sm_75", "sm_80")``.
    capability
        Major and minor compute capability of the GPU.
    """
    for name in architectures:
        kind, _, digits = name.partition("_")
        made_for = divmod(int(digits.rstrip("af")), 10)
        if made_for == capability:
            return True
        later = digits.isdigit() and made_for < capability
        if later and (kind == "compute" or made_for[0] == capability[0]):
            return True
    return False


def _gpu(library: ctypes.CDLL, index: int) -> FoundGpu:
    device = ctypes.c_int()
    _call(library, "cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(library, "cuDeviceGetName", name, _NAME_BYTES, device)
    number = ctypes.c_int()
    found = []
    for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS):
        _call(library, "cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        found.append(number.value)
    major, minor, multiprocessors = found
    return FoundGpu(name.value.decode(errors="replace"), 10 * major + minor, multiprocessors)


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        result = getattr(library, name)(*arguments)
    except AttributeError as error:
        raise _missing(f"{_LIBRARY} has no {name}") from error
    if result != 0:
        raise _missing(f"{name} fails with error {result}")


def _missing(why: str) -> TargetError:
    return TargetError(what="no NVIDIA GPU", where="this machine", why=why, todo=_INSTALL)

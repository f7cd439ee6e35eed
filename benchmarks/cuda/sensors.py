"""Clocks, temperature and power of a GPU, as its driver's management library reads them.

A GPU lowers its clock when it gets hot or reaches its power limit, a T4 of 70 W within seconds. A
result without the clocks it was measured at says little, so every turn of every peer is read.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from typing import Any

__all__ = ["Sensors"]

_LIBRARY = "libnvidia-ml.so.1"
_CLOCK_MULTIPROCESSORS = 1  # NVML_CLOCK_SM
_CLOCK_MEMORY = 2  # NVML_CLOCK_MEM
_TEMPERATURE_GPU = 0  # NVML_TEMPERATURE_GPU
# nvmlClocksEventReasons: what holds the clock down, apart from having nothing to do.
_REASONS = {
    0x0004: "power cap",
    0x0008: "hardware slowdown",
    0x0020: "thermal (software)",
    0x0040: "thermal (hardware)",
    0x0080: "power brake",
}


class Sensors:
    """Reads one GPU; reads nothing, without an error, where NVML is not there.

    Parameters
    ----------
    uuid : str
        Which GPU, as `gpu.GpuDescription.uuid`: the order of NVML is not that of CUDA.
    library : str
        NVML's library.
    """

    def __init__(self, uuid: str, library: str = _LIBRARY) -> None:
        self.missing = "" if uuid else "the driver does not tell which GPU it is"
        self._handle = c_void_p()
        if self.missing:
            return
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError as error:
            self.missing = f"NVML cannot be loaded: {error}"
            return
        if self._nvml.nvmlInit_v2() != 0:
            self.missing = "NVML cannot be initialised"
            return
        found = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(self._handle))
        if found != 0:
            self.missing = f"NVML does not know {uuid} (error {found})"

    def _number(self, function: str, *arguments: Any, kind: Any = c_uint) -> int | None:
        value = kind()
        entry = getattr(self._nvml, function, None)
        if entry is None or entry(self._handle, *arguments, byref(value)) != 0:
            return None
        return int(value.value)

    def version(self) -> str | None:
        """Version of the kernel driver, such as ``"580.65.06"``."""
        if self.missing:
            return None
        text = ctypes.create_string_buffer(96)
        if self._nvml.nvmlSystemGetDriverVersion(text, c_uint(len(text))) != 0:
            return None
        return text.value.decode()

    def read(self) -> dict[str, Any]:
        """What can be read now.

        Returns
        -------
        dict
            ``clock_mhz`` (multiprocessors), ``memory_clock_mhz``, ``celsius``, ``watts``,
            ``limited_by`` (list of str); what cannot be read is left out.
        """
        if self.missing:
            return {}
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=c_ulonglong)
        values = {
            "clock_mhz": self._number("nvmlDeviceGetClockInfo", c_uint(_CLOCK_MULTIPROCESSORS)),
            "memory_clock_mhz": self._number("nvmlDeviceGetClockInfo", c_uint(_CLOCK_MEMORY)),
            "celsius": self._number("nvmlDeviceGetTemperature", c_uint(_TEMPERATURE_GPU)),
            "watts": None if milliwatts is None else round(milliwatts / 1000, 1),
            "limited_by": None
            if reasons is None
            else [name for bit, name in _REASONS.items() if reasons & bit],
        }
        return {name: value for name, value in values.items() if value is not None}

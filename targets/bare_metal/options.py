"""What the user asks of a package: which form it has, and how much memory there is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ibert_tvm.common.errors import UsageError

from ..description import TargetDescription
from ..machines.record import BareMetal
from ..weights import FETCH

OBJECTS = "objects"
C_SOURCES = "c"
C_ARRAYS = "c-arrays"
FORMS = (OBJECTS, C_SOURCES, C_ARRAYS)
WASM = "wasm"
"""Form of a package for browsers, the only one that these have."""

EXTERNAL = ("all", "words", FETCH)
"""Weights outside the program: all at an address, those with a row for every word, or fetched."""

TEMPLATES = Path(__file__).with_name("build_systems")
BUILD_SYSTEMS = tuple(sorted(path.name for path in TEMPLATES.iterdir() if path.is_dir()))
"""Build systems that packages have files for: the folders of templates."""


def forms_of(description: TargetDescription) -> tuple[str, ...]:
    """Forms that packages for a microcontroller have, the default first."""
    system = description.machine.system
    any_compiler = isinstance(system, BareMetal) and system.any_compiler
    return (C_ARRAYS, C_SOURCES) if any_compiler else FORMS


@dataclass(frozen=True)
class PackageOptions:
    """How to write a package for a microcontroller, or for browsers.

    Attributes
    ----------
    emit
        ``"objects"``: a static library. ``"c"``: portable C99 sources, and the weights as a binary
        file that the assembler includes. ``"c-arrays"``: the weights as C arrays too. ``"wasm"``:
        for browsers.
    flash, ram
        Bytes that there are for the model; None where nothing is to be checked.
    build_systems
        Whose files go with it: of `BUILD_SYSTEMS`.
    """

    emit: str = OBJECTS
    flash: int | None = None
    ram: int | None = None
    build_systems: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.emit not in (*FORMS, WASM):
            raise UsageError(f"emit {self.emit!r}: use one of {', '.join(FORMS)}")
        for name, value in (("flash", self.flash), ("ram", self.ram)):
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: at least 1 byte")

    @property
    def kernels(self) -> str:
        """Form of the kernels alone: ``"objects"`` or ``"c"``."""
        return OBJECTS if self.emit in (OBJECTS, WASM) else C_SOURCES


_UNITS = {"": 1, "K": 1024, "M": 1024**2}
_EXAMPLE = {"--flash": "1M", "--ram": "192K", "--fetch-buffer": "16K"}


def parse_memory(option: str, text: str) -> int:
    """Parse an amount of memory such as ``192K``.

    Parameters
    ----------
    option
        Name of the option, for the error.
    text
        A whole number of bytes, of K (1024 bytes) or of M (1024 K); KB, KiB, MB and MiB mean the
        same.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    UsageError
        If it is not a positive number with one of these units.
    """

    def refused(why: str) -> UsageError:
        example = f"{option} {_EXAMPLE[option]}"
        todo = f"give bytes, or a whole number with K or M, for example {example}"
        return UsageError(f"bad value for {option}: {text!r}", why=why, todo=todo)

    found = re.fullmatch(r"\s*([0-9]+)\s*([A-Za-z]*)\s*", text, flags=re.ASCII)
    if found is None:
        raise refused("it is not a whole number with a unit")
    unit = re.sub(r"(?<=[KM])(I?B)$|^B$", "", found[2].upper())
    if unit not in _UNITS:
        raise refused(f"{found[2]!r} is not a unit; K is 1024 bytes, M is 1024 K")
    if int(found[1]) == 0:
        raise refused("it is 0")
    return int(found[1]) * _UNITS[unit]

"""What the user asks of a package: which form it has, and how much memory there is."""

from __future__ import annotations

from dataclasses import dataclass

from ibert_tvm.common.errors import UsageError

OBJECTS = "objects"
C_SOURCES = "c"
C_ARRAYS = "c-arrays"
FORMS = (OBJECTS, C_SOURCES, C_ARRAYS)


@dataclass(frozen=True)
class PackageOptions:
    """How to write a package for a microcontroller.

    Attributes
    ----------
    emit
        ``"objects"``: a static library. ``"c"``: portable C99 sources, and the weights as a binary
        file that the assembler includes. ``"c-arrays"``: the weights as C arrays too.
    flash, ram
        Bytes that there are for the model; None where nothing is to be checked.
    """

    emit: str = OBJECTS
    flash: int | None = None
    ram: int | None = None

    def __post_init__(self) -> None:
        if self.emit not in FORMS:
            raise UsageError(f"emit {self.emit!r}: use one of {', '.join(FORMS)}")
        for name, value in (("flash", self.flash), ("ram", self.ram)):
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: at least 1 byte")

    @property
    def kernels(self) -> str:
        """Form of the kernels alone: ``"objects"`` or ``"c"``."""
        return OBJECTS if self.emit == OBJECTS else C_SOURCES

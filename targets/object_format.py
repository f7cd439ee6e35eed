"""What the compiler asks about relocatable objects, whatever their format is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ObjectFormat:
    """How relocatable objects are read, and what is dropped of those that LLVM writes.

    Attributes
    ----------
    undefined
        Names that an object leaves for the linker to find, sorted.
    code_bytes
        Bytes of code and constants that an object adds to a program.
    dropped_sections
        Sections that objcopy removes; empty where the linker drops what nothing calls.
    """

    undefined: Callable[[bytes], tuple[str, ...]]
    code_bytes: Callable[[bytes], int]
    dropped_sections: tuple[str, ...] = ()

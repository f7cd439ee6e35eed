"""The record of a layout: a model folder as it is published, with random weights.

Each module of `tests.conformance.layouts` registers some; `test_layouts` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ibert_tvm import Encoder
from ibert_tvm.common.registry import Registry


@dataclass(frozen=True)
class Layout:
    """A model folder, and the library that it is published for.

    Parameters
    ----------
    name
        The published model, or the family, that has it.
    write
        Writes the files into an empty folder, offline, the same ones each time.
    compare
        Opens the folder with its own library, and compares what an encoder gives; None if the
        folder is refused: then the refusal is recorded in ``errors.txt``.
    head
        What it is imported with; None for what its files ask for.
    default
        Whether it stands for its head in tests that run often.
    pairs
        Whether it is quantised with pairs of texts.
    """

    name: str
    write: Callable[[Path], object]
    compare: Callable[[Path, Encoder], None] | None
    head: str | None = None
    default: bool = False
    pairs: bool = False


LAYOUTS: Registry[Layout] = Registry("layout")

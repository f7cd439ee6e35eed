"""Weights as linkable symbols: one block for a library, or one section each for a linker script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..weights import Weight
from .c_text import rendered
from .model import BareModel


def filling_order(weights: Sequence[Weight]) -> list[Weight]:
    """Weights by size, the largest first: of several memories that is filled in turn least is lost.

    GNU's linker, told to spread sections over memories (``--enable-non-contiguous-regions``), takes
    them in this order, and leaves a memory for good at the first that does not fit.
    """
    return sorted(weights, key=lambda row: -row.nbytes)


def weights_assembly(model: BareModel, separate: bool) -> str:
    """Assembly source that includes ``weights.bin`` and defines the weights' symbols.

    Parameters
    ----------
    model
        The program.
    separate
        Give each weight a section of its own (``.ibert.weights.0`` ...), which a linker script can
        put into any memory and ``--gc-sections`` can drop; or all of them one section.

    Returns
    -------
    str
        For the GNU assembler of any target.
    """
    return rendered(
        Path(__file__).with_name("weights.s.in"),
        separate=separate,
        alignment=model.alignment,
        weights=filling_order(model.linked) if separate else model.weights,
    )

"""Weights as linkable symbols: one block for a library, or one section each for a linker script."""

from __future__ import annotations

from collections.abc import Sequence

from ..weights import WEIGHTS_FILE, WEIGHTS_SECTION, Weight
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
    lines = []
    if not separate:
        lines += [
            f'    .section {WEIGHTS_SECTION},"a",%progbits',
            "    .balign 4096",
            "    .globl ibert_weights",
            "    .type ibert_weights, %object",
            "ibert_weights:",
        ]
    rows = filling_order(model.weights) if separate else model.weights
    for row in rows:
        if separate:
            lines.append(f'    .section {row.section},"a",%progbits')
        lines += [
            f"    .balign {model.alignment}",
            f"    .globl {row.symbol}",
            f"    .type {row.symbol}, %object",
            f"{row.symbol}:",
        ]
        if row.nbytes:
            lines.append(f'    .incbin "{WEIGHTS_FILE}", {row.offset}, {row.nbytes}')
        lines.append(f"    .size {row.symbol}, {row.nbytes}")
    if not separate:
        lines += [f"    .balign {model.alignment}", "    .size ibert_weights, . - ibert_weights"]
    lines.append('    .section .note.GNU-stack,"",%progbits')
    return "\n".join(lines) + "\n"

"""Weights as linkable symbols: one block for a library, or one section each for a linker script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .model import BareModel, BareWeight

WEIGHTS_SECTION = ".ibert.weights"
WEIGHTS_FILE = "weights.bin"


def weight_rows(
    parameters: Mapping[str, np.ndarray], alignment: int
) -> tuple[tuple[BareWeight, ...], int]:
    """Symbols, sections and offsets of weights.

    Parameters
    ----------
    parameters
        Arrays by name, in the order in which the program takes them.
    alignment
        Of every weight, in bytes.

    Returns
    -------
    rows, nbytes
        One row per array, and the size of all of them, each padded to the alignment.
    """
    rows = []
    offset = 0
    for index, (name, array) in enumerate(parameters.items()):
        rows.append(
            BareWeight(
                index=index,
                name=name,
                symbol=f"ibert_weight_{index}",
                section=f"{WEIGHTS_SECTION}.{index}",
                dtype=str(array.dtype),
                shape=tuple(array.shape),
                offset=offset,
                nbytes=array.nbytes,
            )
        )
        offset += -(-array.nbytes // alignment) * alignment
    return tuple(rows), offset


def write_weights(model: BareModel, folder: Path) -> Path:
    """Write ``weights.bin``: every weight at its offset, in the target's byte order.

    Parameters
    ----------
    model
        The program; all targets are little-endian.
    folder
        Where to.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    path = folder / WEIGHTS_FILE
    with path.open("wb") as stream:
        for row in model.weights:
            array = np.ascontiguousarray(model.parameters[row.name])
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            stream.write(b"\0" * (row.offset - stream.tell()))
            stream.write(little.tobytes())
        stream.write(b"\0" * (model.weight_bytes - stream.tell()))
    return path


def filling_order(weights: Sequence[BareWeight]) -> list[BareWeight]:
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

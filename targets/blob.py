"""Bytes under a symbol of a library."""

from __future__ import annotations

from pathlib import Path

_ASSEMBLY = """\
    .section .rodata.{symbol},"a",%progbits
    .balign 64
    .globl {symbol}
    .type {symbol}, %object
{symbol}:
    .incbin "{symbol}.bin"
    .size {symbol}, . - {symbol}
    .section .note.GNU-stack,"",%progbits
"""


def write_blob(content: bytes, symbol: str, folder: Path) -> Path:
    """Write an assembly file that holds bytes under a symbol.

    Parameters
    ----------
    content
        The bytes.
    symbol
        Their name.
    folder
        Where to write; the file is assembled in it.

    Returns
    -------
    pathlib.Path
        The file.
    """
    (folder / f"{symbol}.bin").write_bytes(content)
    path = folder / f"{symbol}.s"
    path.write_text(_ASSEMBLY.format(symbol=symbol), encoding="utf-8")
    return path

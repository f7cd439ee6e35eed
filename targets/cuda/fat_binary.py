"""Taking an image of several architectures apart.

An image, as fatbinary writes and the CUDA driver reads it, is a header (magic number, version, its
own size, size of all that follows) and entries, each with a header (kind, version, its own size,
size of what follows, and at byte 28 the number of the architecture) and a cubin or PTX.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_FLAGS = struct.Struct("<40xQ")
_PTX, _ELF = 1, 2
# LZ4 and Zstandard.
_COMPRESSED = 0x2000 | 0x8000


class Entry(NamedTuple):
    """Code for one architecture.

    Attributes
    ----------
    is_ptx
        Whether a driver compiles it; otherwise it is machine code.
    number
        75 of ``sm_75``.
    content
        A cubin, or the text of PTX.
    """

    is_ptx: bool
    number: int
    content: bytes


def entries(image: bytes) -> list[Entry]:
    """Read the entries of an image.

    Parameters
    ----------
    image
        It may be anything.

    Returns
    -------
    list of Entry
        All of them, in their order.

    Raises
    ------
    ValueError
        If it is no such image, an entry is compressed, of an unknown kind or cut off, or something
        lies behind the last.
    """
    try:
        magic, _, place, size = _HEADER.unpack_from(image)
        if magic != _MAGIC:
            raise ValueError("it does not begin as an image of CUDA does")
        if place < _HEADER.size or place + size != len(image):
            raise ValueError(f"it says {place + size} bytes and has {len(image)}")
        found = []
        while place < len(image):
            kind, _, header, size, number = _ENTRY.unpack_from(image, place)
            (flags,) = _FLAGS.unpack_from(image, place)
            start = place + header
            place = start + size
            if kind not in (_PTX, _ELF) or header < _FLAGS.size or place > len(image):
                raise ValueError("an entry is of an unknown kind or cut off")
            if flags & _COMPRESSED:
                raise ValueError("an entry is compressed")
            found.append(Entry(kind == _PTX, number, image[start:place]))
        return found
    except struct.error:
        raise ValueError("it is cut off") from None

"""Marking objects as fit for projects with either convention for floating-point arguments.

A project for a Cortex-M4 is usually compiled with ``-mfloat-abi=hard``, and a linker refuses to mix
it with objects of the base convention. Functions here pass integers and pointers only, which both
conventions pass alike: the ABI has a mark for that, Tag_ABI_VFP_args = 3 ("compatible with both",
Addenda to the ABI for the Arm Architecture, IHI 0045, 3.3.6). Compilers do not write it.
"""

from __future__ import annotations

import struct

SECTION = ".ARM.attributes"
_VFP_ARGS, _BOTH = 28, 3
_FILE = 1
_VENDOR = b"aeabi\0"
_TEXT_TAGS = (4, 5, 67)
_COMPATIBILITY = 32


def with_either_convention(attributes: bytes) -> bytes:
    """Attributes that say that both conventions are served.

    Parameters
    ----------
    attributes
        Content of the section: version ``A``, one subsection of the vendor ``aeabi``, in it one of
        the whole file.

    Returns
    -------
    bytes
        The same with the tag, in place of another value of it where there is one.

    Raises
    ------
    ValueError
        If the section has another form.
    """
    head = 5 + len(_VENDOR)
    if len(attributes) < head + 5 or attributes[:1] != b"A" or attributes[5:head] != _VENDOR:
        raise ValueError("attributes of an unknown form")
    (outer,) = struct.unpack_from("<I", attributes, 1)
    tag = attributes[head]
    (inner,) = struct.unpack_from("<I", attributes, head + 1)
    if tag != _FILE or 1 + outer != len(attributes) or head + inner != len(attributes):
        raise ValueError("attributes of an unknown form")
    kept = b"".join(
        raw for number, raw in _entries(attributes[head + 5 :]) if number != _VFP_ARGS
    ) + bytes((_VFP_ARGS, _BOTH))
    inner = 5 + len(kept)
    outer = 4 + len(_VENDOR) + inner
    return b"".join(
        (b"A", struct.pack("<I", outer), _VENDOR, bytes((_FILE,)), struct.pack("<I", inner), kept)
    )


def _entries(data: bytes) -> list[tuple[int, bytes]]:
    """(tag, bytes with the tag) of every attribute."""
    entries, at = [], 0
    while at < len(data):
        start = at
        tag, at = _number(data, at)
        if tag == _COMPATIBILITY:
            _, at = _number(data, at)
            at = data.index(b"\0", at) + 1
        elif tag in _TEXT_TAGS or (tag > _COMPATIBILITY and tag % 2 == 1):
            at = data.index(b"\0", at) + 1
        else:
            _, at = _number(data, at)
        entries.append((tag, data[start:at]))
    return entries


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits per byte, and where the next begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at

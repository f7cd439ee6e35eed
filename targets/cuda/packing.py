"""Putting machine code where TVM's runtime looks for the CUDA source that it replaces.

What the modules of a library serialise to lies under one symbol (tvm-ffi, ``library_module.cc``)::

    <bytes : u64> <import tree: two vectors of u64> <kind : str> [<module : str>] ...

where a string and a vector begin with their number of entries (u64), and the module of kind
``_lib``, the library itself, has no contents. A module of CUDA code is a string that names its
format, ``cuda`` for source, the table of its kernels, and a string that is the code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ..blob import write_blob
from .compile import DeviceCode

_LIBRARY, _CUDA = b"_lib", b"cuda"
_SOURCE_FORMAT, _IMAGE_FORMAT = b"cuda", b"fatbin"


def write_modules(modules: bytes, device: DeviceCode, symbol: str, folder: Path) -> Path:
    """Write an assembly file that holds a library's modules, with machine code for the source.

    Parameters
    ----------
    modules
        As TVM serialises them.
    device
        The machine code.
    symbol
        Under which name TVM's runtime looks for them.
    folder
        Where to write; the file is assembled in it.

    Returns
    -------
    pathlib.Path
        The file.
    """
    return write_blob(with_image(modules, device), symbol, folder)


def with_image(modules: bytes, device: DeviceCode) -> bytes:
    """Replace CUDA source in serialised modules by machine code.

    Parameters
    ----------
    modules, device
        As for `write_modules`.

    Raises
    ------
    ValueError
        If they are not of the form that is described above, as another version of TVM might write
        them.
    """
    size, place = _number(modules, 0)
    if size != len(modules) - place:
        raise ValueError(f"serialised modules say {size} bytes and have {len(modules) - place}")
    entries = list(_entries(modules))
    found = [(content, end) for kind, content, end in entries if kind == _CUDA]
    if len(found) != 1 or entries[-1][2] != len(modules):
        raise ValueError(
            f"serialised modules hold {len(found)} modules of CUDA code instead of one"
        )
    ((content, end),) = found
    before, code = modules[place : end - 8 - len(content)], _module_with_image(content, device)
    return _packed(before + _packed(code) + modules[end:])


def image_of(modules: bytes) -> bytes:
    """Take the machine code out of what `with_image` gave.

    Parameters
    ----------
    modules
        As they lie in a library; they may be anything.

    Raises
    ------
    ValueError
        If they hold no machine code, or are of another form.
    """
    try:
        size, place = _number(modules, 0)
        for kind, content, _ in _entries(modules[: place + size]):
            if kind == _CUDA:
                return _code(content)
    except (struct.error, OverflowError):  # a number that is no place
        pass
    raise ValueError("no module of CUDA code is among the library's modules")


def _entries(modules: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Kind, content and end of serialised modules; the library's own code has no content."""
    count, place = _number(modules, 8)
    children, place = _number(modules, place + 8 * count)
    place += 8 * children
    # A module takes eight bytes at least.
    for _ in range(min(count, len(modules)) - 1):
        kind, place = _string(modules, place)
        content, place = (b"", place) if kind == _LIBRARY else _string(modules, place)
        yield kind, content, place


def _code(content: bytes) -> bytes:
    """The last string of a module, behind a table of kernels that need not be understood."""
    if not content.startswith(_packed(_IMAGE_FORMAT)):
        raise ValueError("the module of CUDA code holds no machine code")
    for place in range(len(content) - 8):
        size, start = _number(content, place)
        if start + size == len(content):
            return content[start:]
    raise ValueError("the module of CUDA code holds no machine code")


def _module_with_image(content: bytes, device: DeviceCode) -> bytes:
    head, code = _packed(_SOURCE_FORMAT), _packed(device.source.encode())
    if not content.startswith(head) or not content.endswith(code):
        raise ValueError("a module of CUDA code does not hold the source that was compiled")
    kernels = content[len(head) : len(content) - len(code)]
    return _packed(_IMAGE_FORMAT) + kernels + _packed(device.image)


def _number(data: bytes, place: int) -> tuple[int, int]:
    return struct.unpack_from("<Q", data, place)[0], place + 8


def _string(data: bytes, place: int) -> tuple[bytes, int]:
    size, place = _number(data, place)
    return data[place : place + size], place + size


def _packed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data

"""Arrays from an untrusted ``.npz`` file, as ``numpy.savez`` writes it.

NumPy allocates what a header claims before it looks at the data, and meets damaged headers with
errors of many kinds. Here every size is compared with what is in the file first.
"""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from .errors import DocumentError
from .types import Array

MAX_ARRAYS = 4096
MAX_RANK = 8
MAX_EXPANDED_BYTES = 512 * 2**20
"""Of all compressed arrays together; what is not compressed is as long as the file says."""
_KINDS = "biuf"
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_MAX_HEADER = 1024


def read_arrays(file: Path) -> dict[str, Array]:
    """Read all arrays of a file.

    Parameters
    ----------
    file : pathlib.Path
        Of integers, truth values and floats; nothing in it is unpickled.

    Returns
    -------
    dict of str to numpy.ndarray
        By name, in the order of the file.

    Raises
    ------
    DocumentError
        If it is no such file, is damaged, or claims sizes that it does not have; ``where`` names
        the array.
    """
    try:
        if file.exists() and not file.is_file():
            raise DocumentError("it is no regular file")
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_sizes(members, file.stat().st_size)
            return {m.filename.removesuffix(".npy"): _array(archive, m) for m in members}
    except OSError as error:
        raise DocumentError(str(error.strerror or error)) from error
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, ValueError) as error:
        raise DocumentError("it is not an .npz file") from error


def _check_sizes(members: list[zipfile.ZipInfo], file_bytes: int) -> None:
    if len(members) > MAX_ARRAYS:
        raise DocumentError(f"it has {len(members)} arrays; {MAX_ARRAYS} are allowed")
    names = [member.filename for member in members]
    if len({*names}) != len(names):
        raise DocumentError("two arrays have one name")
    if sum(member.compress_size for member in members) > file_bytes:
        raise DocumentError("its arrays are longer than the file")
    expanded = 0
    for member in members:
        if member.flag_bits & 1:
            raise DocumentError("it is encrypted", member.filename)
        if member.compress_type == zipfile.ZIP_STORED:
            if member.file_size != member.compress_size:
                raise DocumentError("two sizes are stated", member.filename)
        elif member.compress_type == zipfile.ZIP_DEFLATED:
            expanded += member.file_size
        else:
            raise DocumentError("it is compressed in a way that is not known", member.filename)
    if expanded > MAX_EXPANDED_BYTES:
        raise DocumentError(
            f"its compressed arrays take {expanded} bytes; {MAX_EXPANDED_BYTES} are allowed"
        )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        # No more than was stated, whatever the compressed data become.
        content = stream.read(member.file_size)
    data = io.BytesIO(content)
    try:
        version = npy.read_magic(data)
        if version not in _READERS:
            raise DocumentError(f"its header has version {version}", member.filename)
        shape, by_columns, dtype = _READERS[version](data, max_header_size=_MAX_HEADER)
    except (
        *(ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError),
        *(tokenize.TokenError, UnicodeDecodeError, AttributeError, KeyError),
    ) as error:
        # NumPy parses the header as a text of Python's, and says what that ran into.
        raise DocumentError("its header is damaged", member.filename) from error
    if dtype.kind not in _KINDS or dtype.hasobject:
        raise DocumentError(f"its entries are {dtype}, not numbers", member.filename)
    if len(shape) > MAX_RANK or any(extent < 0 for extent in shape):
        raise DocumentError(f"its shape is {shape}", member.filename)
    count, have = math.prod(shape), len(content) - data.tell()
    if count * dtype.itemsize != have:
        raise DocumentError(
            f"{count} entries of {dtype} are stated, and {have} bytes are there", member.filename
        )
    array = np.frombuffer(content, dtype, count, data.tell()).copy()
    return array.reshape(shape, order="F" if by_columns else "C")

"""Lines of an untrusted text file, one at a time, within limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..common.errors import DocumentError
from ..common.strict_json import opened
from .errors import malformed

MAX_BYTES = 2**30
"""Of a file."""
MAX_LINE = 2**20
"""Bytes of a line."""
MAX_ROWS = 2**20
"""Samples, documents or queries."""


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Read a UTF-8 file, with or without a byte order mark.

    Only ``\n`` and ``\r\n`` end a line: texts may hold what Unicode calls a line separator.

    Parameters
    ----------
    path : pathlib.Path
        What is no file, a pipe for example, is not waited for.

    Yields
    ------
    int
        Number of the line, from 1.
    str
        The line without its end.

    Raises
    ------
    DataError
        If it cannot be read, is no regular file, not UTF-8, or too large.
    """
    try:
        with opened(path) as stream:
            number = size = 0
            while raw := stream.readline(MAX_LINE + 1):
                number, size = number + 1, size + len(raw)
                if len(raw) > MAX_LINE:
                    raise malformed(path, number, f"it has more than {MAX_LINE} bytes")
                if size > MAX_BYTES:
                    raise malformed(path, 0, f"it has more than {MAX_BYTES} bytes")
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise malformed(path, number, f"it is not UTF-8: {error.reason}") from None
                yield number, line.removesuffix("\n").removesuffix("\r")
    except DocumentError as error:
        raise malformed(path, 0, error.what) from error

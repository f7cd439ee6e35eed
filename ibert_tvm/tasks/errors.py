"""Errors of data sets."""

from __future__ import annotations

from pathlib import Path

from ..common.errors import UsageError


class DataError(UsageError):
    """A data set that cannot be read, or does not suit the model."""


def malformed(path: Path, line: int, why: str, todo: str = "") -> DataError:
    """Return the error of one line of a file.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    line
        Its number, from 1; 0 for the whole file.
    why, todo
        As for `IbertError`.
    """
    where = f"{path}, line {line}" if line else str(path)
    return DataError("the data cannot be read", where, why, todo)

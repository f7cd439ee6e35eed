"""The texts that come with the package: calibration, held-out evaluation, the demo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .common.errors import UsageError

MAX_TEXTS_BYTES = 256 * 2**20
MAX_TEXTS = 2**20
"""Of a file of texts."""


def data_file(name: str) -> Path:
    """Path of a file of this package.

    Parameters
    ----------
    name
        `calibration.txt`, `heldout.txt` or `demo_sentences.txt`; `tuned`, the folder of tuning
        databases.

    Returns
    -------
    pathlib.Path
        The file.
    """
    return Path(__file__).parent / "data" / name


def packaged_texts(name: str) -> list[str]:
    """Texts of a file of this package, one per line; `name` as for `data_file`."""
    return read_texts(name, data_file(name))


def read_texts(option: str, path: Path, limit: int | None = None) -> list[str]:
    """Read texts from a file, one per line; lines of white space are left out.

    Parameters
    ----------
    option
        Name of the option, for the errors.
    path : pathlib.Path
        A UTF-8 text file.
    limit
        Use only the first ones.

    Returns
    -------
    list of str
        At least one text.

    Raises
    ------
    UsageError
        If the file cannot be read, is too large, is not UTF-8 text, or holds no text.
    """
    place, todo = str(path), "give a UTF-8 text file with one text per line"
    what = f"cannot read the texts of {option}"
    try:
        with path.expanduser().open("rb") as stream:
            read = stream.read(MAX_TEXTS_BYTES + 1)
        if len(read) > MAX_TEXTS_BYTES:
            why = f"it has more than {MAX_TEXTS_BYTES} bytes"
            raise UsageError(what, place, why, "give fewer texts, or the file in parts")
        content = read.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise UsageError(what, place, error.strerror or str(error), todo) from error
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8 text (byte {error.start})"
        raise UsageError(what, place, why, todo) from error
    texts = [line.strip() for line in content.split("\n") if line.strip()][:limit]
    if len(texts) > MAX_TEXTS:
        why = f"it has {len(texts)} texts, and {MAX_TEXTS} are the most"
        raise UsageError(what, place, why, "give fewer texts, or the file in parts")
    if not texts:
        why = "it is empty" if not content else "it holds only white space"
        raise UsageError(f"no text in the file of {option}", place, why, todo)
    return texts


def paired(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Each text with the next, and the last with the first: for models of pairs without pairs."""
    return list(zip(texts, [*texts[1:], *texts[:1]], strict=True))

"""The texts that come with the package: calibration, held-out evaluation, the demo."""

from __future__ import annotations

from pathlib import Path


def data_file(name: str) -> Path:
    """Path of a text file of this package.

    Parameters
    ----------
    name : str
        `calibration.txt`, `heldout.txt` or `demo_sentences.txt`.

    Returns
    -------
    pathlib.Path
        The file.
    """
    return Path(__file__).parent / "data" / name


def packaged_texts(name: str) -> list[str]:
    """Texts of a file of this package, one per line; `name` as for `data_file`."""
    lines = data_file(name).read_text(encoding="utf-8").split("\n")
    return [line.strip() for line in lines if line.strip()]

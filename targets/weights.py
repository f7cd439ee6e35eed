"""Weights in one block, and the sections of a library that hold them and its metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WEIGHTS_SECTION = ".ibert.weights"
METADATA_SECTION = ".ibert.metadata"
WEIGHTS_FILE, METADATA_FILE = "weights.bin", "metadata.json"
FETCH = "fetch"
"""Of external weights: those that a function of the program fetches while the model runs."""

METADATA_ASSEMBLY = Path(__file__).with_name("metadata.s")
"""Assembly source of the section with the metadata; last in its file."""


@dataclass(frozen=True)
class Weight:
    """One array of constants.

    Attributes
    ----------
    index
        Its number among the parameters.
    name
        Its canonical name.
    dtype, shape
        Its type.
    offset
        Where it lies where all weights are one block, in bytes.
    nbytes
        Its size.
    prefix
        What C names of its model begin with.
    external
        Whether the program gives its address at run time; `offset` is then that in the block of
        all of these.
    """

    index: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    prefix: str = "ibert"
    external: bool = False

    @property
    def symbol(self) -> str:
        """Its C symbol."""
        return f"{self.prefix}_weight_{self.index}"

    @property
    def section(self) -> str:
        """Section that it has to itself, where weights are linked one by one."""
        return f"{WEIGHTS_SECTION}.{self.index}"

    def to_json(self) -> dict[str, object]:
        """What a library's metadata say of it."""
        shape = list(self.shape)
        return {"name": self.name, "dtype": self.dtype, "shape": shape, "offset": self.offset}


def weight_rows(
    parameters: Mapping[str, np.ndarray],
    alignment: int,
    prefix: str = "ibert",
    external: Collection[str] = (),
) -> tuple[tuple[Weight, ...], int]:
    """Offsets of weights.

    Parameters
    ----------
    parameters
        Arrays by name, in the order in which the program takes them.
    alignment
        Of every weight, in bytes.
    prefix
        What C names of the model begin with.
    external
        Names of arrays that the program gives an address for, which are a block of their own.

    Returns
    -------
    rows, nbytes
        One row per array, and the size of those in the program, each padded to the alignment.
    """
    rows = []
    ends = {False: 0, True: 0}
    for index, (name, array) in enumerate(parameters.items()):
        outside, kind = name in external, str(array.dtype)
        offset = ends[outside]
        rows.append(Weight(index, name, kind, array.shape, offset, array.nbytes, prefix, outside))
        ends[outside] += -(-array.nbytes // alignment) * alignment
    return tuple(rows), ends[False]


def external_bytes(weights: Iterable[Weight], alignment: int) -> int:
    """Size of the block of those weights that the program gives an address for."""
    return sum(-(-row.nbytes // alignment) * alignment for row in weights if row.external)


def write_weights(
    weights: Iterable[Weight],
    parameters: Mapping[str, np.ndarray],
    nbytes: int,
    folder: Path,
) -> None:
    """Write ``weights.bin``: every weight at its offset, in the byte order of all targets.

    Parameters
    ----------
    weights
        In the order of their offsets.
    parameters
        Their arrays by name.
    nbytes
        Size of the file.
    folder
        Where to.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    with (folder / WEIGHTS_FILE).open("wb") as stream:
        stream.writelines(weight_pieces(weights, parameters, nbytes))


def weight_pieces(
    weights: Iterable[Weight], parameters: Mapping[str, np.ndarray], nbytes: int
) -> Iterator[bytes]:
    """The content of ``weights.bin``, in pieces; arguments as for `write_weights`."""
    end = 0
    for row in weights:
        array = np.ascontiguousarray(parameters[row.name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield b"\0" * (row.offset - end)
        yield little.tobytes()
        end = row.offset + row.nbytes
    yield b"\0" * (nbytes - end)

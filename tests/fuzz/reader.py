"""What a reader is that files are damaged for, and how whole files to begin from are kept."""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cache import cached, version_of
from tests.fuzz.mutation import Files, damaged

Repair = Callable[[Files, random.Random], Files]


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes
    ----------
    seeds
        Whole files, as this project or the tools of others write them.
    read
        Reads a folder of them; returns what they mean, or raises an `IbertError`.
    repair
        Makes digests right again, so that the code behind them is reached; None where there are
        none. Three of four damaged files are repaired; the others have to be refused or to mean
        what they meant.
    damage
        Makes other files of whole ones.
    same
        Whether a meaning may come of files that meant another before they were damaged.
    """

    seeds: Callable[[], Sequence[Files]]
    read: Callable[[Path], object]
    repair: Repair | None = None
    damage: Callable[[Files, random.Random], Files] = damaged
    same: Callable[[Any, Any], bool] = operator.eq


def files_of(folder: Path) -> Files:
    """Contents of all files of a folder."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """The inverse."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def arrays_of(arrays: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """A form of arrays that can be compared."""
    return [
        (name, str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in arrays.items()
    ]


def built(name: str, build: Callable[[Path], None]) -> list[Files]:
    """What takes long to make: made once, in one folder for each seed."""
    with cached(f"fuzz-{name}", version_of(build)) as (place, work):
        if work is not None:
            build(work)
        folders = sorted(path for path in (work or place).iterdir() if path.is_dir())
        return [files_of(folder) for folder in folders]

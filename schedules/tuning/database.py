"""What was measured, on disk: one folder per target.

``database.json`` says what the measurements are of: the target, versions. ``trials.jsonl`` has one
line per measurement and is only ever appended to, a line at a time, so that stopping at any moment
loses nothing but the line that was being written.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ibert_tvm.common.errors import DocumentError, OutputError
from ibert_tvm.common.files import TEMPORARY_PREFIX, OutputKind, sweep, write_file
from ibert_tvm.common.integrity import check_sealed, sealed
from ibert_tvm.common.schema import NUMBER, STRING, check
from ibert_tvm.common.strict_json import decode, parse, read_bytes, read_json
from ibert_tvm.targets import TargetDescription

from .. import tiles
from ..cuda import attention_tile, gemm_tile
from ..errors import ScheduleError
from ..tiles import Tile, value_types

FORMAT = 2
_WITHOUT_DIGESTS = 1
"""The format before, whose documents have no hash."""
_DATABASE = OutputKind("a tuning database", lambda _: False)
_ABOUT, _TRIALS = "database.json", "trials.jsonl"
_MAX_ABOUT, _MAX_TRIALS, _MAX_LINE = 2**20, 256 * 2**20, 2**16
_MAX_DEPTH = 8
_DESCRIPTION = {"name": STRING, "target": {"tvm_target?": {}, "gpu?": {}}}
_TRIAL = {
    **{key: STRING for key in ("key", "kind", "layer", "error", "board")},
    "seconds": [NUMBER],
    "tile": {},
}
# A measurement that is better by less is noise: the default stays.
_LEAST_GAIN = 0.02


class DatabaseError(ScheduleError):
    """A tuning database that is missing, damaged, or of another target."""


_TILES: tuple[type[Tile], ...] = (
    tiles.LinearTile,
    tiles.AttentionTile,
    gemm_tile.GemmTile,
    attention_tile.AttentionTile,
)
"""All decisions that there are, on processors and on GPUs; no two have the same names."""


def tile_from_json(document: Mapping[str, object]) -> Tile:
    """Read decisions that were stored.

    Parameters
    ----------
    document
        Whole numbers and truth values by name.

    Raises
    ------
    ValueError
        If no rule takes such decisions.
    """
    for tile in _TILES if isinstance(document, Mapping) else ():
        if {name: type(value) for name, value in document.items()} == value_types(tile):
            return tile(**document)
    names = " or ".join(", ".join(value_types(tile)) for tile in _TILES)
    raise ValueError(f"the decisions on a kernel are whole numbers {names}")


@dataclass(frozen=True)
class Trial:
    """One measurement of one kernel.

    Attributes
    ----------
    key
        The kernel, by its structure.
    kind
        Kind of kernel.
    layer
        A layer that it is of, for people.
    tile
        The decisions.
    seconds
        Per call, of each measurement; empty if it failed.
    error
        Why it failed; empty if it did not.
    board
        Where it was measured.
    """

    key: str
    kind: str
    layer: str
    tile: Tile
    seconds: tuple[float, ...]
    error: str = ""
    board: str = ""

    @property
    def best(self) -> float:
        """Seconds of the fastest measurement: what disturbs one only makes it longer."""
        return min(self.seconds)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary."""
        document = asdict(self)
        return {**document, "seconds": list(self.seconds)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Trial:
        """Read what `to_json` wrote; DocumentError or ValueError if it is none."""
        check(document, _TRIAL)
        seconds, error = tuple(map(float, document["seconds"])), document["error"]
        if bool(seconds) == bool(error) or any(value <= 0 for value in seconds):
            raise ValueError("a trial has positive seconds, or an error")
        return cls(
            document["key"],
            document["kind"],
            document["layer"],
            tile_from_json(document["tile"]),
            seconds,
            error,
            document["board"],
        )


def _identity(target: TargetDescription) -> dict[str, Any]:
    """What of a target decides how fast a kernel is; its name does not."""
    identity = {
        "tvm_target": dict(target.tvm_target),
        "dot": asdict(target.dot),
        "vector_lanes": target.vector_lanes,
    }
    return identity if target.gpu is None else {**identity, "gpu": asdict(target.gpu)}


@dataclass
class TuningDatabase:
    """Measurements of one target.

    Made by `open` and `create`.

    Attributes
    ----------
    folder
        Where it is.
    target_name
        Name of the target that it was made for.
    trials
        All measurements, oldest first.
    dropped
        Whether the last line was incomplete and left out: the process that wrote it was killed.
    digests
        Whether every line must have its hash; in databases of before, those that were added since
        have one.
    """

    folder: Path
    target_name: str
    trials: list[Trial] = field(default_factory=list)
    dropped: bool = False
    digests: bool = True

    # -- opening ------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: str | os.PathLike[str], target: TargetDescription) -> TuningDatabase:
        """Open a database for a target.

        Raises
        ------
        DatabaseError
            If there is none, it is damaged, or it is of another target.
        """
        path = Path(folder).expanduser()
        about = cls._about(path)
        if not cls.is_of(path, target):
            raise DatabaseError(
                what=f"the tuning database {path} is of another target",
                where=str(path / _ABOUT),
                why=f"its measurements are of {about['name']!r}"
                + _difference(about["target"], _identity(target))
                + f"; asked for is {target.name!r}",
                todo="give the database of this target, or another folder to begin a new one",
            )
        database = cls(path, about["name"], digests=about["format"] == FORMAT)
        database._read()
        return database

    @classmethod
    def is_of(cls, folder: Path, target: TargetDescription) -> bool:
        """Whether a database's measurements are of a target; DatabaseError if it is damaged."""
        return bool(cls._about(folder)["target"] == json.loads(json.dumps(_identity(target))))

    @classmethod
    def create(cls, folder: str | os.PathLike[str], target: TargetDescription) -> TuningDatabase:
        """Open a database, or begin one where there is none.

        Raises
        ------
        DatabaseError
            As `open` does; also if the folder cannot be written, or holds something else.
        """
        path = Path(folder).expanduser()
        if not (path / _ABOUT).exists():
            try:
                path.mkdir(parents=True, exist_ok=True)
                names = sorted(entry.name for entry in path.iterdir())
                # What a killed process left is removed by the next one that writes.
                there = [name for name in names if not name.startswith(TEMPORARY_PREFIX)]
                if there:
                    some = ", ".join([*there[:3], *(["..."] if there[3:] else [])])
                    raise DatabaseError(
                        what=f"{path} is no tuning database",
                        where=str(path),
                        why=f"it holds {some}, and no {_ABOUT}",
                        todo="give an empty or a new folder",
                    )
                about = {"format": FORMAT, "name": target.name, "target": _identity(target)}
                text = json.dumps(sealed(about), indent=2) + "\n"
                with write_file(path / _ABOUT, _DATABASE) as temporary:
                    temporary.write_text(text, encoding="utf-8")
            except OSError as error:
                raise _unwritable(path, error.strerror or str(error)) from error
            except OutputError as error:
                raise _unwritable(path, error.why) from error
        return cls.open(path, target)

    @staticmethod
    def _about(path: Path) -> dict[str, Any]:
        file = path / _ABOUT
        if not file.exists():
            raise DatabaseError(
                what=f"there is no tuning database at {path}",
                where=str(file),
                why="the file does not exist",
                todo="make one with `ibert tune NAME.ibert --target T --trials N --database "
                f"{path}`, or leave --database out",
            )
        try:
            about = read_json(file, _MAX_ABOUT, _MAX_DEPTH)
            version = about.get("format") if isinstance(about, dict) else None
            if type(version) is not int or version not in (FORMAT, _WITHOUT_DIGESTS):
                raise _damaged(file, f"it has format {version!r}; this version reads {FORMAT}")
            if version == FORMAT:
                check_sealed(about)
            check(about, _DESCRIPTION)
        except DocumentError as error:
            raise _damaged(file, _reason(error)) from error
        return dict(about)

    def _read(self) -> None:
        file = self.folder / _TRIALS
        if not file.exists():
            return
        try:
            content = read_bytes(file, _MAX_TRIALS)
        except DocumentError as error:
            raise _damaged(file, error.what) from error
        *lines, rest = content.split(b"\n")
        self.dropped = bool(rest)  # every whole line ends with a line feed
        for number, line in enumerate(lines, 1):
            try:
                if len(line) > _MAX_LINE:
                    raise ValueError(f"it has {len(line)} bytes")
                document = parse(decode(line), _MAX_DEPTH)
                check(document, {})
                if self.digests or "sha256" in document:
                    check_sealed(document)
                self.trials.append(Trial.from_json(document))
            except (ValueError, DocumentError) as error:
                why = _reason(error) if isinstance(error, DocumentError) else str(error)
                raise _damaged(file, f"line {number} is no trial: {why}") from error

    # -- writing ------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the database for writing; there is one writer at a time.

        Raises
        ------
        DatabaseError
            If another process writes to it.
        """
        file = self.folder / _TRIALS
        try:
            stream = file.open("ab")
        except OSError as error:
            raise _unwritable(self.folder, error.strerror or str(error)) from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DatabaseError(
                    what=f"the tuning database {self.folder} is in use",
                    where=str(file),
                    why="another `ibert tune` writes to it",
                    todo="wait until that is done, or give another folder",
                ) from error
            sweep(self.folder)
            if self.dropped:
                whole = file.read_bytes().rfind(b"\n") + 1
                os.truncate(file, whole)
                self.dropped = False
            yield

    def append(self, trial: Trial) -> None:
        """Add a measurement; it is on disk when this returns. Only inside of `writing`."""
        line = json.dumps(sealed(trial.to_json()), sort_keys=True) + "\n"
        file = self.folder / _TRIALS
        size = None
        try:
            with file.open("ab", buffering=0) as stream:
                size = stream.tell()
                written = stream.write(line.encode())
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
        except OSError as error:
            if size is not None:  # half of a line would spoil the next one
                with suppress(OSError):
                    os.truncate(file, size)
            raise _unwritable(self.folder, error.strerror or str(error)) from error
        self.trials.append(trial)

    # -- asking -------------------------------------------------------------------------------

    def of(self, key: str) -> list[Trial]:
        """All measurements of a kernel, failed ones too, oldest first."""
        return [trial for trial in self.trials if trial.key == key]

    def best(self, key: str, default: Tile | None = None) -> Trial | None:
        """The measurement whose decisions to take.

        Parameters
        ----------
        key
            The kernel.
        default
            The rule's own decisions: they win unless others are clearly faster.

        Returns
        -------
        Trial or None
            None if no measurement of the kernel succeeded.
        """
        ranking = self.ranking(key)
        if not ranking:
            return None
        untuned = [trial for trial in ranking if trial.tile == default]
        if untuned and ranking[0].best > untuned[0].best * (1 - _LEAST_GAIN):
            return untuned[0]
        return ranking[0]

    def ranking(self, key: str) -> list[Trial]:
        """The fastest measurement of each of a kernel's decisions, the fastest first.

        Decisions that failed once, for example by a wrong result, are out.
        """
        failed = {trial.tile for trial in self.of(key) if trial.error}
        ranked: dict[Tile, Trial] = {}
        for trial in sorted((t for t in self.of(key) if t.seconds), key=lambda t: t.best):
            if trial.tile not in failed:
                ranked.setdefault(trial.tile, trial)
        return list(ranked.values())


def _difference(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """How two targets differ, in few words."""
    a, b = (
        {**target.get("tvm_target", {}), **target.get("gpu", {})}
        for target in (stored, json.loads(json.dumps(asked)))
    )
    names = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
    if not names:
        return " with other instructions"
    return " (" + ", ".join(f"{name} {a.get(name)!r}, not {b.get(name)!r}" for name in names) + ")"


def _reason(error: DocumentError) -> str:
    return "; ".join(filter(None, (error.where, error.what, error.why)))


def _damaged(file: Path, why: str) -> DatabaseError:
    return DatabaseError(
        what="cannot read the tuning database",
        where=str(file),
        why=why,
        todo="restore the file, remove the line, or give another folder to begin anew",
    )


def _unwritable(path: Path, why: str) -> DatabaseError:
    return DatabaseError(
        what=f"cannot write the tuning database {path}",
        where=str(path),
        why=why,
        todo="give a folder that you may write to, with space left",
    )

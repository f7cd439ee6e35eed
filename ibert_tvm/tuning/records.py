"""Using what tuning found when a model is compiled."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.strict_json import JsonObject
from ..texts import data_file

if TYPE_CHECKING:
    from tvm import tirx

    from ibert_tvm.schedules.tiles import Tile
    from ibert_tvm.targets import TargetDescription


def packaged_database(description: TargetDescription) -> Path | None:
    """Find the measurements of a target that come with the package.

    Parameters
    ----------
    description
        The target; measurements are of its architecture, and of a GPU like it.

    Returns
    -------
    pathlib.Path or None
        A database; None if nobody measured that target.
    """
    folders = sorted(path.parent for path in data_file("tuned").glob("*/database.json"))
    if not folders:
        return None
    from ibert_tvm.schedules.tuning import TuningDatabase

    return next((path for path in folders if TuningDatabase.is_of(path, description)), None)


class TunedKernels:
    """Decisions of a tuning database, by kernel; remembers what was asked for.

    Parameters
    ----------
    folder
        The database.
    description
        The target that is compiled for.

    Raises
    ------
    ibert_tvm.schedules.tuning.DatabaseError
        If there is no database, it is damaged, or of another target.
    """

    def __init__(self, folder: str | os.PathLike[str], description: TargetDescription) -> None:
        from ibert_tvm.schedules.tuning import TuningDatabase

        self.database = TuningDatabase.open(folder, description)
        self.description = description
        self.kernels: list[JsonObject] = []

    def __call__(self, name: str, kernel: tirx.PrimFunc) -> Tile | None:
        """Decisions on an unscheduled kernel; None where the rule's default is to be taken.

        Kernels that nothing can be tuned of (row operations, a single row) are not counted.
        """
        from ibert_tvm.schedules.tuning import tile_space, workload_key

        space = tile_space(kernel, self.description)
        if len(space) < 2:
            return None
        default = space[0]
        key = workload_key(kernel)
        best = self.database.best(key, default)
        # A record of a version with other rules may hold decisions that this one does not know.
        found = best is not None and best.tile in space
        row: dict[str, object] = {
            "kernel": name,
            "kind": str(kernel.attrs["ibert.kernel"]),
            "layer": str(kernel.attrs["ibert.layer"]),
            "key": key,
            "tuned": found,
        }
        if not found or best is None:
            self.kernels.append(row)
            return None
        untuned = [t for t in self.database.ranking(key) if t.tile == default]
        speedup = untuned[0].best / best.best if untuned else None
        self.kernels.append({**row, "tile": asdict(best.tile), "faster": speedup})
        return None if best.tile == default else best.tile

    def report(self) -> dict[str, object]:
        """Name of the ``database``, ``hits``, ``misses``, and one entry per kernel."""
        hits = sum(row["tuned"] for row in self.kernels)
        return {
            "database": self.database.folder.name,
            "hits": hits,
            "misses": len(self.kernels) - hits,
            "kernels": self.kernels,
        }

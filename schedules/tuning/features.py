"""What the cost model is told of a kernel on a GPU: its decisions, in place of its loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ibert_tvm.targets import Gpu

from ..cuda.space import gpu_features
from ..tiles import Tile, tile_of


def decisions_extractor(func: tirx.PrimFunc, gpu: Gpu, kind: type[Tile]) -> Any:
    """Feature extractor of MetaSchedule's for the candidates of one kernel.

    Parameters
    ----------
    func
        Unscheduled kernel.
    gpu
        What it is scheduled for.
    kind
        What its decisions are.

    Returns
    -------
    tvm.s_tir.meta_schedule.FeatureExtractor
        Takes candidates that carry their decisions as `ibert_tvm.schedules.tiles.with_tile` puts
        them there, and gives `ibert_tvm.schedules.cuda.space.gpu_features` of each.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.feature_extractor import PyFeatureExtractor

    features = gpu_features(func, gpu)

    @derived_object
    class Decisions(PyFeatureExtractor):
        def extract_from(self, context: Any, candidates: list[Any]) -> list[Any]:
            rows = []
            for candidate in candidates:
                tile = tile_of(candidate.sch.mod["main"], kind)
                rows.append([] if tile is None else [features(tile)])
            return [tvm.runtime.tensor(np.array(row, "float32")) for row in rows]

    return Decisions()

"""What to measure next: MetaSchedule's cost model over the decisions of our rules.

The spaces are small, hundreds of decisions, each of which makes a valid schedule: no evolution of
traces is needed. The model (gradient-boosted trees on features of the loops, or on GPUs of the
decisions) ranks a random part of what is not measured yet, and learns from every measurement.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx

from ibert_tvm.common.extras import require
from ibert_tvm.targets import Gpu, TargetDescription

from ..apply import schedule_kernel
from ..cuda.space import gpu_features
from ..errors import ScheduleError
from ..row_guard import KEYS, ROW_COUNT
from ..tiles import Tile, has_tile, tile_of, with_tile

# Scheduling and looking at a candidate takes a tenth of a second.
_POOL = 48
_WARM_UP = 8
_GREEDY = 0.75
_STOCK_INTRINSICS = "tvm.s_tir.tensor_intrin"


@dataclass(frozen=True)
class Candidate:
    """Decisions, and the kernel scheduled by them.

    Attributes
    ----------
    tile
        The decisions.
    kernel
        The kernel.
    plain
        The same without guards for packed tokens, for the cost model to look at.
    """

    tile: Tile
    kernel: tirx.PrimFunc
    plain: tirx.PrimFunc


@contextmanager
def _without_stock_intrinsics() -> Iterator[None]:
    """Keep TVM from importing its own tensor intrinsics, which nothing here uses.

    Their module parses a hundred functions when it is imported, half a minute where torch is
    loaded.
    """
    package = sys.modules["tvm.s_tir"]
    missing = _STOCK_INTRINSICS not in sys.modules
    if missing:
        sys.modules[_STOCK_INTRINSICS] = ModuleType(_STOCK_INTRINSICS)
    try:
        yield
    finally:
        if missing:
            del sys.modules[_STOCK_INTRINSICS]
            if hasattr(package, "tensor_intrin"):
                delattr(package, "tensor_intrin")


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


class Search:
    """The search for the best decisions of one kernel.

    Parameters
    ----------
    name
        Of the kernel, for messages.
    func
        Unscheduled kernel.
    target
        What to schedule for.
    space
        All decisions, the rule's default first.
    seed
        The search is the same for the same seed and measurements.
    """

    def __init__(
        self,
        name: str,
        func: tirx.PrimFunc,
        target: TargetDescription,
        space: Sequence[Tile],
        seed: int = 0,
    ) -> None:
        self.name, self.func, self.target, self.space = name, func, target, space
        self.impossible: dict[Tile, str] = {}
        self._random = random.Random(seed)
        self._scheduled: dict[Tile, Candidate] = {}
        self._measured = 0
        self._model, self._context = self._make_model(seed)

    def _make_model(self, seed: int) -> tuple[Any, Any]:
        with _without_stock_intrinsics():
            from tvm.s_tir.meta_schedule import TuneContext
            from tvm.s_tir.meta_schedule.cost_model import XGBModel
            from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBConfig

            require("xgboost", to="tuning")
            context = TuneContext(
                mod=tvm.IRModule({"main": self.func.with_attr("global_symbol", "main")}),
                target=tvm.target.Target(dict(self.target.tvm_target)),
                task_name=self.name,
                rand_state=seed + 1,
                num_threads=1,
            )
        gpu = self.target.gpu
        model = XGBModel(
            extractor="per-store-feature"
            if gpu is None
            else decisions_extractor(self.func, gpu, type(self.space[0])),
            config=XGBConfig(seed=seed, nthread=1),
            num_warmup_samples=_WARM_UP,
            verbose_eval=0,
            adaptive_training=False,
        )
        return model, context

    def candidate(self, tile: Tile) -> Candidate | None:
        """Schedule the kernel by some decisions; None if they turn out impossible."""
        if tile not in self._scheduled and tile not in self.impossible:
            try:
                # The default is scheduled as it is where nothing was tuned.
                func = self.func if tile == self.space[0] else with_tile(self.func, tile)
                kernel = schedule_kernel(self.name, func, self.target)
                if has_tile(kernel):
                    raise ValueError("the rule for such decisions does not take the kernel")
                # On GPUs the model looks at the decisions, not at what became of them.
                plain = kernel if self.target.gpu is None else with_tile(self.func, tile)
                if KEYS in func.attrs:
                    # Keys are read from rows that depend on an outer loop: TVM's analyses take that
                    # for an error.
                    func = func.without_attr(KEYS).without_attr(ROW_COUNT)
                    plain = schedule_kernel(self.name, func, self.target)
            except ScheduleError as error:
                self.impossible[tile] = error.why or error.what
                return None
            except Exception as error:  # TVM's schedule errors have no class of their own
                lines = str(error).strip().splitlines() or [type(error).__name__]
                self.impossible[tile] = lines[-1].strip()
                return None
            self._scheduled[tile] = Candidate(tile, kernel, plain)
        return self._scheduled.get(tile)

    def propose(self, count: int, tried: Collection[Tile]) -> list[Candidate]:
        """Choose what to measure next.

        Parameters
        ----------
        count
            At most so many.
        tried
            What was measured before.

        Returns
        -------
        list of Candidate
            The default decisions first, if they were not measured; empty when all were.
        """
        left = [tile for tile in self.space if tile not in tried and tile not in self.impossible]
        chosen: list[Candidate] = []
        if left and left[0] == self.space[0]:
            default = self.candidate(left.pop(0))
            if default is not None:
                chosen.append(default)
        pool = self._random.sample(left, min(_POOL, len(left)))
        possible = [made for tile in pool if (made := self.candidate(tile)) is not None]
        if self._measured >= _WARM_UP and possible:
            scores = self._model.predict(self._context, [self._measurable(c) for c in possible])
            order = sorted(range(len(possible)), key=lambda index: -scores[index])
            best = order[: max(1, round(count * _GREEDY))]
            rest = [index for index in range(len(possible)) if index not in best]
            possible = [possible[index] for index in (*best, *rest)]
        return (chosen + possible)[:count]

    def learn(self, measured: Sequence[tuple[Candidate, Sequence[float]]]) -> None:
        """Teach the model what candidates took, in seconds; of each the fastest counts."""
        if not measured:
            return
        from tvm.s_tir.meta_schedule.runner import RunnerResult

        self._measured += len(measured)
        self._model.update(
            self._context,
            [self._measurable(candidate) for candidate, _ in measured],
            [RunnerResult([min(seconds)], None) for _, seconds in measured],
        )

    def _measurable(self, candidate: Candidate) -> Any:
        from tvm.s_tir.meta_schedule import MeasureCandidate
        from tvm.s_tir.meta_schedule.arg_info import ArgInfo

        kernel = candidate.plain.with_attr("global_symbol", "main")
        return MeasureCandidate(s_tir.Schedule(kernel), ArgInfo.from_prim_func(kernel))

"""Tuning a model's kernels, with a database that remembers everything that was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import TargetError
from ..common.strict_json import JsonObject

if TYPE_CHECKING:
    from tvm import relax, tirx

    from ibert_tvm.relay_passes.emit import KernelLayout
    from ibert_tvm.relay_passes.passes.pipeline import Lowered
    from ibert_tvm.schedules.tiles import Tile
    from ibert_tvm.schedules.tuning import Search, TuningDatabase
    from ibert_tvm.targets import TargetDescription
    from ibert_tvm.targets.rpc import Address

    from ..model.artefact import QuantizedModel
    from .measure import Measured, Measurer
    from .options import TuneOptions

# The kernels of a model that can be tuned, with inputs and the results that are right for them.
#
# Results come from the integer specification: the fused function that a kernel was emitted from is
# evaluated in NumPy. Activations are random over the interval that the range analysis proved.


@dataclass(frozen=True)
class KernelTask:
    """One kernel to tune.

    Attributes
    ----------
    key
        What it computes (`ibert_tvm.schedules.tuning.workload_key`).
    kind, layer, name
        Kind of kernel; a layer that it is of; its name in the module.
    calls
        Calls of it in one run of all shapes.
    macs
        Multiply-accumulates of one call.
    function
        Unscheduled.
    space
        What can be tried, the default first.
    """

    key: str
    kind: str
    layer: str
    name: str
    calls: int
    macs: int
    function: tirx.PrimFunc
    space: tuple[Tile, ...]
    lowered: Lowered
    layout: KernelLayout

    def data(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Make inputs, and evaluate the specification on them.

        Returns
        -------
        inputs, results
            As the kernel takes and gives them.
        """
        return _Data(self).make()


def find_tasks(
    quantized: QuantizedModel, description: TargetDescription, shapes: list[tuple[int, int]]
) -> list[KernelTask]:
    """Lower a model as `compile` does, and find its kernels that can be tuned.

    Parameters
    ----------
    quantized
        The model.
    description
        The target.
    shapes
        (batch, tokens).

    Returns
    -------
    list of KernelTask
        The one with the most work first.
    """
    from tvm import relax

    from ibert_tvm.relay_passes.emit import KernelLayout
    from ibert_tvm.relay_passes.passes import (
        IntegerProgram,
        TargetKind,
        lower_to_kernels,
        phases_of,
    )
    from ibert_tvm.relay_passes.passes.share_kernels import called_kernels
    from ibert_tvm.schedules.tuning import tile_space, workload_key

    layout = KernelLayout.of(description.dot, description.vector_lanes, description.functions)
    program = IntegerProgram(quantized.module, quantized.parameters)
    phases = phases_of(TargetKind.of(description))
    lowered = lower_to_kernels(program, layout, shapes, phases=phases)
    module = lowered.program.module
    found: dict[str, KernelTask] = {}
    for function in module.functions.values():
        if not isinstance(function, relax.Function):
            continue
        for var in called_kernels(function):
            kernel = module[var]
            space = tile_space(kernel, description)
            if len(space) < 2:
                continue
            key = workload_key(kernel)
            if key in found:
                found[key] = replace(found[key], calls=found[key].calls + 1)
                continue
            found[key] = KernelTask(
                key,
                str(kernel.attrs["ibert.kernel"]),
                str(kernel.attrs["ibert.layer"]),
                var.name_hint,
                1,
                int(kernel.attrs.get("ibert.macs", 0)),
                kernel,
                tuple(space),
                lowered,
                layout,
            )
    return sorted(found.values(), key=lambda task: -task.calls * task.macs)


class _Data:
    """Inputs of one kernel and what it gives, by the specification."""

    def __init__(self, task: KernelTask) -> None:
        from ibert_tvm.relay_passes.emit.group import packed_operands

        self.task = task
        self.fused = task.lowered.fused
        self.function: relax.Function = self.fused.module[task.name]
        self.packed = {var.name: how for var, how in packed_operands(self.function).items()}
        self.random = np.random.default_rng(0)
        self.masks, self.starts = self._special()

    def make(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Inputs and results, stored as kernels store them."""
        from ibert_tvm.relay_passes.emit.group import storage_shape
        from ibert_tvm.relay_passes.integer.evaluate import evaluate

        arrays = {var.name: self._array(var) for var in self.function.params}
        results = evaluate(self.fused.module, {}, arrays, self.task.name)
        inputs = [
            self.task.layout.pack(arrays[var.name], self.packed[var.name])
            if var.name in self.packed
            else arrays[var.name].reshape(storage_shape(arrays[var.name].shape))
            for var in self.function.params
        ]
        if "ibert.row_count" in self.task.function.attrs:
            place = int(self.task.function.attrs["ibert.row_count"])
            inputs.insert(place, self._whole_rows(self.task.function.params[place]))
        return (
            [np.ascontiguousarray(array) for array in inputs],
            [np.ascontiguousarray(r.reshape(storage_shape(r.shape))) for r in results],
        )

    def _special(self) -> tuple[set[str], set[str]]:
        """Names of parameters that are masks, and first rows of packed sequences."""
        from ibert_tvm.relay_passes.dialect.calls import operands_of
        from ibert_tvm.relay_passes.integer.relax_ops import is_integer_op, operator_of
        from ibert_tvm.relay_passes.passes.program import bindings

        masks, starts = set(), set()
        for binding in bindings(self.function):
            if not is_integer_op(binding.value):
                continue
            found = operands_of(binding.value)
            is_mask = {o.name for o in operator_of(binding.value).OPERANDS if o.is_mask}
            masks |= {var.name for name, var in found.items() if name in is_mask}
            starts |= {var.name for name, var in found.items() if name == "starts"}
        return masks, starts

    def _array(self, var: relax.Var) -> np.ndarray:
        parameters: Mapping[str, np.ndarray] = self.fused.parameters
        if var.name in parameters:
            return parameters[var.name]
        shape = tuple(int(extent) for extent in var.ty.shape.values)
        dtype = np.dtype(str(var.ty.dtype))
        if var.name in self.masks:
            return np.ones(shape, dtype)
        if var.name in self.starts:
            return self._whole_rows(var)
        limits = np.iinfo(dtype)
        low, high = self.task.lowered.bounds.get(var.name, (limits.min, limits.max))
        return self.random.integers(low, high, shape, endpoint=True).astype(dtype)

    def _whole_rows(self, var: Any) -> np.ndarray:
        """First rows of sequences none of which is padded."""
        shape = var.shape if hasattr(var, "shape") else var.ty.shape.values
        count = int(shape[0])
        rows = int(self.function.ret_ty.shape.values[1])
        return (np.arange(count) * rows).astype("int32")


Progress = Callable[[str], None]
Advance = Callable[[int, int], None]
_SMALLEST_ROUND, _LARGEST_ROUND = 4, 16
_FINALS = 2


@dataclass
class TuneResult:
    """What became of tuning.

    Attributes
    ----------
    kernels
        One per kernel: ``kind``, ``layer``, ``calls``, ``space``, ``trials`` (all), ``new`` (of
        this run), ``failed``, ``error`` (the most frequent one), ``default_ms``, ``best_ms``,
        ``faster`` and ``tile``.
    stopped
        Why it ended before all trials; empty if it did not.
    seconds
        Of this run.
    """

    kernels: list[JsonObject] = field(default_factory=list)
    stopped: str = ""
    seconds: float = 0.0


def tune(
    quantized: QuantizedModel,
    target: str,
    shapes: Sequence[tuple[int, int]],
    database: str | os.PathLike[str],
    options: TuneOptions,
    progress: Progress | None = None,
    advance: Advance | None = None,
) -> TuneResult:
    """Measure decisions of schedule rules on a processor, and remember them in a database.

    Every candidate is checked against the integer specification before it is timed. An interrupt
    loses nothing that was measured; the next run goes on where this one ended.

    Parameters
    ----------
    quantized
        The model whose kernels to tune.
    target
        Name of the target.
    shapes
        (batch, tokens).
    database
        Folder of the database, which is made where there is none.
    options
        How.
    progress
        Called with what is being done.
    advance
        Called with the trials done and the trials there are to do, of all kernels.

    Raises
    ------
    TargetError
        If the target cannot be tuned here.
    ibert_tvm.schedules.tuning.DatabaseError
        If the database cannot be used.
    ibert_tvm.targets.rpc.BoardError
        If no board can be reached.
    """
    from ibert_tvm.schedules.tuning import TuningDatabase
    from ibert_tvm.targets import get_target

    from ..model.shapes import check_shapes
    from .measure import Measurer

    show = progress or (lambda _text: None)
    checked = check_shapes(shapes, quantized)
    description = get_target(target)
    where = check_tunable(description, options.address)
    store = TuningDatabase.create(database, description)
    measurer = Measurer(description, options)
    started = time.monotonic()
    result = TuneResult()
    with store.writing(), measurer.running():
        show("lowering")
        tasks = find_tasks(quantized, description, checked)
        for number, task in enumerate(tasks, 1):
            label = f"kernel {number} of {len(tasks)}, {task.kind} {task.layer}"
            left = None
            if options.time_limit is not None:
                left = options.time_limit - (time.monotonic() - started)
            run = _KernelRun(task, store, measurer, where)
            count = _counted(advance, number - 1, len(tasks), options.trials)
            if not run.go(_labelled(show, label), left, count):
                result.stopped = f"the time limit of {options.time_limit:g} s is over"
            result.kernels.append(run.summary())
    result.seconds = time.monotonic() - started
    return result


def _labelled(show: Progress, label: str) -> Progress:
    return lambda text: show(f"{label}: {text}")


def _counted(advance: Advance | None, kernels: int, of: int, trials: int) -> Callable[[int], None]:
    """Count a kernel's trials among those of all."""

    def count(done: int) -> None:
        if advance is not None:
            advance(kernels * trials + min(done, trials), of * trials)

    return count


def check_tunable(description: TargetDescription, address: Address | None) -> str:
    """Refuse a target whose kernels cannot be measured from here.

    Returns
    -------
    str
        Where they will be measured.

    Raises
    ------
    TargetError
        If it has no operating system, or this machine is none of its kind and no board was given;
        for a GPU, if this machine has none for it (DeviceError), or no compiler.
    """
    from ibert_tvm.targets.host import cpu_features, missing_features

    if description.system != "linux":
        raise TargetError(
            f"cannot tune for {description.name}",
            where="--target",
            why="kernels are measured by a server on the board, which needs an operating system",
            todo="tune for a board with Linux; microcontrollers use the rules' defaults",
        )
    if description.gpu is not None:
        return _checked_gpu(description.name, description.gpu.architectures, address)
    if address is not None:
        return str(address)
    import platform

    missing = missing_features(description, cpu_features())
    if not description.machine.runs_on(platform.machine()) or missing:
        lacking = f", and lacks {', '.join(missing)}" if missing else ""
        raise TargetError(
            f"cannot measure kernels for {description.name} on this machine",
            where="--target",
            why=f"this machine is {platform.machine()}{lacking}",
            todo="give a board with --rpc HOST:PORT; docs/rpc.md shows how to set one up",
        )
    return "this machine"


def _checked_gpu(target: str, architectures: tuple[str, ...], address: Address | None) -> str:
    """Name of the GPU to measure on."""
    from ibert_tvm.targets.cuda.toolchain import find_cuda_toolchain

    from .gpu import first_gpu

    if address is not None:
        raise TargetError(
            f"cannot tune for {target} on a board",
            where="--rpc",
            why="kernels for GPUs are measured on a GPU of this machine",
            todo="run ibert tune on the machine that has the GPU, without --rpc",
        )
    index, cuda = first_gpu(architectures)
    # Without a compiler every candidate would be written down as a failure.
    find_cuda_toolchain(target, architectures)
    return cuda.name(index)


class _KernelRun:
    """The tuning of one kernel."""

    def __init__(
        self, task: KernelTask, store: TuningDatabase, measurer: Measurer, board: str
    ) -> None:
        self.task, self.store, self.measurer, self.board = task, store, measurer, board
        self.options = measurer.options
        self.before = len(self._tried())

    def go(self, show: Progress, seconds: float | None, count: Callable[[int], None]) -> bool:
        """Measure until there are as many trials as wanted; False if the time is over."""
        from ibert_tvm.schedules.tuning import Search

        task, wanted = self.task, self.options.trials
        if self.before >= wanted:
            count(wanted)
            return True
        if seconds is not None and seconds <= 0:
            return False
        end = None if seconds is None else time.monotonic() + seconds
        show("making inputs and their results")
        inputs, results = task.data()
        description, seed = self.measurer.description, self.options.seed + self.before
        search = Search(task.name, task.function, description, task.space, seed)
        self._teach(search, [(t.tile, t.seconds) for t in self.store.of(task.key)])
        while (done := len(tried := self._tried())) < wanted:
            count(done)
            if end is not None and time.monotonic() > end:
                return False
            step = min(_LARGEST_ROUND, max(_SMALLEST_ROUND, self.options.jobs), wanted - done)
            candidates = search.propose(step, tried)
            if not candidates:
                break  # everything there is was measured
            show(f"{done} of {wanted} trials{self._best_text()}")
            learned = []
            for measured in self.measurer.measure(candidates, inputs, results):
                self._record(measured)
                learned.append((measured.candidate.tile, measured.seconds))
                count(done + len(learned))
                show(f"{done + len(learned)} of {wanted} trials{self._best_text()}")
            self._teach(search, learned)
        show(f"once more the fastest{self._best_text()}")
        for _ in range(_FINALS):
            finalists = [search.candidate(tile) for tile in self._finalists()]
            again = [candidate for candidate in finalists if candidate is not None]
            for measured in self.measurer.measure(again, inputs, results):
                self._record(measured)
        return True

    def _tried(self) -> set[Tile]:
        """Decisions that were measured; that some were measured again is no further trial."""
        return {trial.tile for trial in self.store.of(self.task.key)}

    def _finalists(self) -> list[Tile]:
        """The fastest decisions and the default.

        Of many measurements the fastest may be a lucky one: these are repeated side by side.
        """
        ranking = [trial.tile for trial in self.store.ranking(self.task.key)]
        default = self.task.space[0]
        return list(dict.fromkeys([*ranking[:2], *([default] if default in ranking else [])]))

    @staticmethod
    def _teach(search: Search, trials: Sequence[tuple[Tile, Sequence[float]]]) -> None:
        made = [(search.candidate(tile), seconds) for tile, seconds in trials if seconds]
        search.learn([(candidate, seconds) for candidate, seconds in made if candidate is not None])

    def _record(self, measured: Measured) -> None:
        from ibert_tvm.schedules.tuning import Trial

        task = self.task
        tile, seconds, error = measured.candidate.tile, measured.seconds, measured.error
        self.store.append(Trial(task.key, task.kind, task.layer, tile, seconds, error, self.board))

    def _times(self) -> tuple[float | None, float | None, Tile | None]:
        """Milliseconds of the default and of the best, and the best decisions."""
        default = self.task.space[0]
        best = self.store.best(self.task.key, default)
        untuned = [t for t in self.store.ranking(self.task.key) if t.tile == default]
        return (
            untuned[0].best * 1e3 if untuned else None,
            best.best * 1e3 if best else None,
            best.tile if best else None,
        )

    def _best_text(self) -> str:
        default, best, _ = self._times()
        if default is None or best is None:
            return ""
        return f", default {default:.3f} ms, best {best:.3f} ms"

    def summary(self) -> dict[str, object]:
        """Describe the kernel for the result."""
        default, best, tile = self._times()
        trials = self.store.of(self.task.key)
        errors = [trial.error for trial in trials if trial.error]
        return {
            "key": self.task.key,
            "kind": self.task.kind,
            "layer": self.task.layer,
            "calls": self.task.calls,
            "space": len(self.task.space),
            "trials": len(self._tried()),
            "new": len(self._tried()) - self.before,
            "failed": len(errors),
            "error": max(set(errors), key=errors.count) if errors else "",
            "default_ms": default,
            "best_ms": best,
            "faster": default / best if default and best else None,
            "tile": asdict(tile) if tile is not None else None,
        }

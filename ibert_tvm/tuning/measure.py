"""Compiling and measuring candidates: several at a time where there are boards for it."""

from __future__ import annotations

import queue
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ibert_tvm.targets.process import ProcessEnded, ProcessError, ServiceProcess, hide_torch, serve

if TYPE_CHECKING:
    from tvm import tirx

    from ibert_tvm.schedules.tuning import Candidate
    from ibert_tvm.targets import TargetDescription
    from ibert_tvm.targets.rpc import Board

    from .options import TuneOptions

# Compiling the kernels that are being tried, in processes whose time is limited.
#
# MetaSchedule's own builder imports TVM's stock intrinsics in every worker, which takes longer than
# its timeout where torch is installed, and starts its workers anew for every batch. These processes
# import what they need once.

_START_SECONDS = 60.0
_WHY = "why: "


class KernelBuilder:
    """Builds kernels in a process of its own, so that the time of LLVM and nvcc is limited.

    Parameters
    ----------
    description
        The target.
    timeout
        Seconds that one kernel may take.

    Attributes
    ----------
    service
        Module that the process runs.
    """

    service = __spec__.name

    def __init__(self, description: TargetDescription, timeout: float) -> None:
        self.description, self.timeout = description, timeout
        self._process: ServiceProcess | None = None

    def build(self, kernel: tirx.PrimFunc, path: Path) -> str:
        """Build a kernel.

        Parameters
        ----------
        kernel
            Scheduled; its ``global_symbol`` is the name of the function in the library.
        path
            The library to write.

        Returns
        -------
        str
            Why it could not be built; empty if it was.
        """
        import tvm

        wait = self.timeout
        if self._process is None:
            self._process = ServiceProcess(self.service)
            wait += _START_SECONDS
        values = (tvm.ir.save_json(kernel), self.description, str(path))
        try:
            self._process.call("build", values, wait, 2 * wait)
        except TimeoutError:
            self.close()
            return f"it was not compiled within {wait:.0f} s"
        except ProcessEnded as error:
            self.close()
            return f"the compiler ended: {error}"
        except ProcessError as error:
            return _reason(str(error)) or error.kind
        except BaseException:
            self.close()
            raise
        return ""

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def _reason(text: str) -> str:
    """The line of an error that says why: ours are marked, of others it is the last."""
    lines = [line.strip() for line in text.strip().splitlines()]
    marked = [line.removeprefix(_WHY) for line in lines if line.startswith(_WHY)]
    return (marked or lines or [""])[-1]


def handle(operation: str, values: tuple[Any, ...]) -> None:
    """Build a kernel from its JSON, in the process; the one operation is ``build``."""
    import tvm

    import ibert_tvm.relay_passes.spec.q15  # noqa: F401 (registers the operator that kernels hold)
    from ibert_tvm.targets.kernel_library import build_kernel

    text, description, path = values
    build_kernel(tvm.ir.load_json(text), description, Path(path))


if __name__ == "__main__":
    hide_torch()
    serve(int(sys.argv[1]), handle, lambda: None)


ARCHITECTURES = "IBERT_TUNE_ARCHITECTURES"
"""Variable that tells the process that measures on a GPU what kernels are compiled for."""

# Many single calls, of which the fastest counts: a machine that does other things, too, leaves a
# program alone for a few milliseconds at a time.
_MILLISECONDS = 100
_KERNEL = "kernel"
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Measured:
    """What became of a candidate: `seconds` per call of each measurement, or `error`."""

    candidate: Candidate
    seconds: tuple[float, ...]
    error: str = ""


def _map(threads: int, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """Call a function on items, by several threads if there shall be several.

    An interrupt does not wait for what the threads are doing; they end when the processes that they
    wait for do (`Measurer.running`).
    """
    if threads == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Measurer:
    """Compiles candidates and measures them on boards, on this machine, or on its GPU.

    Parameters
    ----------
    description
        The target.
    options
        Where, by how many at a time, and how long.
    """

    def __init__(self, description: TargetDescription, options: TuneOptions) -> None:
        self.description, self.options = description, options
        self.boards = 1
        self._builders: queue.SimpleQueue[KernelBuilder] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[Board] = queue.SimpleQueue()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start what is needed; end it all at the end of the block, whatever happens in it.

        Raises
        ------
        ibert_tvm.targets.rpc.BoardError
            If no board can be reached.
        """
        from ibert_tvm.targets.rpc import Board, find_server

        options, description = self.options, self.description
        if options.address is not None:
            self.boards = find_server(options.address, options.run_timeout).boards
        timeout = options.build_timeout
        builders = [KernelBuilder(description, timeout) for _ in range(options.jobs)]
        # A session lasts for one kernel: it must not block the board for longer than that.
        lifetime = 2 * options.run_timeout
        environment = {"TVM_NUM_THREADS": str(options.threads), "TVM_BIND_THREADS": "0"}
        worker = "ibert_tvm.targets.rpc.worker"
        if description.gpu is not None:
            worker = "ibert_tvm.tuning.gpu_worker"
            environment = {ARCHITECTURES: ",".join(description.gpu.architectures)}
        boards = [
            Board(options.address, options.run_timeout, lifetime, environment, worker)
            for _ in range(self.boards)
        ]
        for builder in builders:
            self._builders.put(builder)
        for board in boards:
            self._free.put(board)
        try:
            yield
        finally:
            for builder in builders:
                builder.close()
            for board in boards:
                board.abandon()

    def measure(
        self,
        candidates: Sequence[Candidate],
        inputs: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> Iterator[Measured]:
        """Compile and measure candidates of one kernel.

        Parameters
        ----------
        candidates
            What to measure.
        inputs, results
            What the kernel takes, and what it must give.

        Yields
        ------
        Measured
            In the order of the candidates, as soon as each is known.

        Raises
        ------
        ibert_tvm.targets.rpc.BoardError
            If no board can be reached any more.
        """
        with tempfile.TemporaryDirectory(prefix="ibert-tune-") as folder:
            paths = [Path(folder) / f"{index}.so" for index in range(len(candidates))]
            built = zip(candidates, paths, strict=True)
            errors = list(_map(self.options.jobs, lambda item: self._build(*item), built))
            # Compiling is over before anything is measured: on this machine it would disturb.
            work = zip(candidates, paths, errors, strict=True)
            yield from _map(self.boards, lambda item: self._run(item, inputs, results), work)

    def _build(self, candidate: Candidate, path: Path) -> str:
        builder = self._builders.get()
        try:
            kernel = candidate.kernel.with_attr("global_symbol", _KERNEL)
            return builder.build(kernel, path)
        finally:
            self._builders.put(builder)

    def _run(
        self,
        built: tuple[Candidate, Path, str],
        inputs: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> Measured:
        from ibert_tvm.targets.rpc import BoardError, find_server

        candidate, path, error = built
        if error:
            return Measured(candidate, (), f"not compiled: {error}")
        board = self._free.get()
        try:
            board.open()
            board.upload(path)
            seconds = board.measure(_KERNEL, inputs, results, _MILLISECONDS, self.options.threads)
            board.end_session()
            return Measured(candidate, tuple(seconds))
        except BoardError as failed:
            board.abandon()
            address = self.options.address
            if address is not None:
                find_server(address, self.options.run_timeout)  # raises if there is no board left
            return Measured(candidate, (), failed.why)
        finally:
            self._free.put(board)

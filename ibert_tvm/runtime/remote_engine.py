"""Running a library on a board, through TVM's RPC server there."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ..common.errors import LibraryError, TargetError, UsageError
from .buffers import BufferedInputs
from .library import Library
from .library_file import read_metadata
from .mapping import LibraryFile
from .metadata import FunctionRecord, LibraryMetadata, ParameterRecord

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address, Board, BoardDescription

_logger = logging.getLogger(__name__)
_MOST_RUNS = 10_000


class RemoteEngine:
    """A library that is loaded on a board; see `ibert_tvm.runtime.engine.Engine`.

    Weights are used where the board maps them: only inputs and outputs travel. A board serves one
    call at a time.

    Parameters
    ----------
    board
        With an open session.
    metadata
        Of the library to run.
    num_threads
        Threads that kernels use there; by default all processors of the board.

    Attributes
    ----------
    description
        What the board said about itself.
    num_threads
        Threads that kernels use.
    """

    device = "cpu"
    max_contexts = 1

    def __init__(self, board: Board, metadata: LibraryMetadata, num_threads: int | None) -> None:
        self.board, self.metadata = board, metadata
        with closing(LibraryFile(metadata)) as file:
            self.file = board.upload(file.path)
        self.description: BoardDescription = board.describe()
        check_fits(metadata, self.description)
        self.num_threads = num_threads or self.description.processors
        self._prepare()
        _logger.info(
            "%s runs on %s: %s, %d threads",
            metadata.path,
            board.name,
            self.description.machine,
            self.num_threads,
        )

    def _prepare(self) -> None:
        metadata, functions = self.metadata, self.metadata.functions
        if metadata.runtime == "none":
            calls = {f.name: (f.batch, f.seq_len, metadata.output_kinds(f)) for f in functions}
            arena = max(function.arena_bytes for function in functions)
            self.board.prepare_plain(calls, arena, self.num_threads)
            return
        names = [function.name for function in functions]
        weights = [(record.dtype, record.shape, record.offset) for record in metadata.parameters]
        results = dict.fromkeys(names, len(metadata.outputs))
        self.board.prepare(names, weights, results, self.num_threads)

    def parameter(self, record: ParameterRecord) -> np.ndarray:
        """As `Engine.parameter`: refused, since it is on the board, bound to its functions."""
        raise LibraryError(
            f"the parameter {record.name!r} is not here",
            where=self.board.name,
            why="the library is loaded on a board",
            todo="load the library on this machine, or read the file's section of weights",
        )

    def create_context(self) -> RemoteContext:
        """As `Engine.create_context`."""
        return RemoteContext(self.board, self.metadata)


class RemoteContext(BufferedInputs):
    """Inputs, which are sent with every call; see `ibert_tvm.runtime.engine.ExecutionContext`."""

    def __init__(self, board: Board, metadata: LibraryMetadata) -> None:
        super().__init__(metadata)
        self._board = board

    def run(self, function: FunctionRecord, num_threads: int) -> list[np.ndarray]:
        """As `ExecutionContext.run`, on the threads that the engine was made for."""
        return self._board.run(function.name, list(self.buffers[function.name].values()))

    def time(
        self, function: FunctionRecord, inputs: Sequence[np.ndarray], seconds: float
    ) -> list[float]:
        """Time calls of a function on the board, without the network.

        Parameters
        ----------
        function
            Function.
        inputs
            Of the function's shape, in its order.
        seconds
            How long to measure, about.

        Returns
        -------
        list of float
            Seconds of each call; at least three.
        """
        name, end = function.name, time.monotonic() + seconds
        first = self._board.time(name, inputs, 1, 0)[0]
        # Requests of about a second: how long they take is known well enough to wait for them.
        runs = int(np.clip(min(seconds, 1.0) / max(first, 1e-6), 3, _MOST_RUNS))
        taken: list[float] = []
        while not taken or time.monotonic() < end:
            taken += self._board.time(name, inputs, runs, runs * first)
        return taken


def check_fits(metadata: LibraryMetadata, board: BoardDescription) -> None:
    """Refuse a library that a board cannot run.

    Parameters
    ----------
    metadata
        The library.
    board
        What the board said.

    Raises
    ------
    ibert_tvm.targets.rpc.BoardError
        If its processor is another one, or lacks what the library needs.
    TargetError
        If it has another version of TVM.
    """
    from elftools.elf.elffile import ELFFile

    from ibert_tvm.targets.rpc import check_board

    with metadata.path.open("rb") as stream:
        machine = str(ELFFile(stream)["e_machine"])
    target = str(metadata.target.get("name", "?"))
    check_board(board, target, machine, metadata.required_cpu_features)
    made, there = metadata.versions.get("tvm", ""), board.tvm_version
    if made and there and _series(made) != _series(there):
        raise TargetError(
            f"the library {metadata.path} does not fit the board's version of TVM",
            where="--rpc",
            why=f"it was compiled with TVM {made}; the board has TVM {there}",
            todo="install the same version of apache-tvm on the board, or compile with its version",
        )


def _machine_has_server(metadata: LibraryMetadata) -> bool:
    """Whether TVM, and so its server, runs on the machine that a library is for."""
    from elftools.elf.elffile import ELFFile

    from ibert_tvm.targets.catalogue import CATALOGUE

    with metadata.path.open("rb") as stream:
        machines = CATALOGUE.of_file(ELFFile(stream))
    return any("tvm" in machine.runtimes for machine in machines)


def _series(version: str) -> list[str]:
    """Major and minor version: within one, libraries fit."""
    return version.split(".")[:2]


# Running a compiled library on a board, through TVM's RPC server there.
#
#     with load_remote("model.so", Address("192.168.1.7", 9090, "rpi4")) as library:
#         outputs = library.run(input_ids=ids)        # as on this machine, bit for bit
#
# The library is sent once per session, weights included; they are used where the board maps it.
# Then only inputs and outputs travel.

DEFAULT_TIMEOUT = 60.0


@contextmanager
def load_remote(
    path: str | os.PathLike[str],
    address: Address,
    num_threads: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Iterator[Library]:
    """Load a library on a board for the duration of a block.

    Parameters
    ----------
    path
        The library, compiled for the board.
    address
        Its server, or a tracker with a key.
    num_threads
        Threads on the board; by default all its processors.
    timeout
        Seconds to wait for an answer, besides the time that transfers and measurements take.

    Yields
    ------
    Library
        Its `engine` is a `RemoteEngine`.

    Raises
    ------
    LibraryError
        If the file is missing, damaged, or not made by this project.
    UsageError
        If there is no TVM for the processor that it was compiled for.
    ibert_tvm.targets.rpc.BoardError
        If the board cannot be reached, or its processor cannot run the library.
    TargetError
        If the board's version of TVM does not fit.
    """
    from ibert_tvm.targets.rpc import Board

    metadata = read_metadata(path)
    if not _machine_has_server(metadata):
        raise UsageError(
            f"the library {metadata.path} cannot be run through RPC",
            where="--rpc",
            why="there is no package of TVM, whose server boards run, for the processor that it "
            "was compiled for",
            todo="run it under an emulator (--emulate), or copy it to the board and call its C "
            "functions",
        )
    if metadata.device != "cpu":
        raise UsageError(
            f"the library {metadata.path} cannot be run through RPC",
            where="--rpc",
            why="its kernels run on a GPU, and boards are asked for their processors only",
            todo="run it on the machine that has the GPU",
        )
    with Board(address, timeout, lifetime=max(600.0, 10 * timeout)) as board:
        board.open()
        engine = RemoteEngine(board, metadata, num_threads)
        with Library(metadata, engine.num_threads, engine) as library:
            yield library

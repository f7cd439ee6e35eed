"""Running a compiled library on a board, through TVM's RPC server there.

    with load_remote("model.so", Address("192.168.1.7", 9090, "rpi4")) as library:
        outputs = library.run(input_ids=ids)        # as on this machine, bit for bit

The library is sent once per session, weights included; they are used where the board maps it. Then
only inputs and outputs travel.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.engine import aligned_zeros
from ibert_tvm.errors import LibraryError, TargetError, UsageError
from ibert_tvm.library_file import LibraryMetadata, ParameterRecord, read_metadata
from ibert_tvm.runtime import Library

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address, Board, BoardDescription

__all__ = ["RemoteEngine", "check_fits", "load_remote"]

_logger = logging.getLogger(__name__)
DEFAULT_TIMEOUT = 60.0
_MOST_RUNS = 10_000


class RemoteEngine:
    """Stands for `ibert_tvm.engine.Engine` where the code runs on a board.

    Parameters
    ----------
    board : ibert_tvm.targets.rpc.Board
        With an open session.
    metadata : LibraryMetadata
        Of the library to run.
    num_threads : int, optional
        Threads that kernels use there; by default all processors of the board.

    Attributes
    ----------
    description : ibert_tvm.targets.rpc.BoardDescription
        What the board said about itself.
    num_threads : int
        Threads that kernels use.
    """

    device = "cpu"

    def __init__(self, board: Board, metadata: LibraryMetadata, num_threads: int | None) -> None:
        self.board, self.metadata = board, metadata
        self.file = board.upload(metadata.path)
        self.description: BoardDescription = board.describe()
        check_fits(metadata, self.description)
        self.num_threads = num_threads or self.description.processors
        names = [function.name for function in metadata.functions]
        weights = [(record.dtype, record.shape, record.offset) for record in metadata.parameters]
        results = dict.fromkeys(names, len(metadata.outputs))
        board.prepare(names, weights, results, self.num_threads)
        _logger.info(
            "%s runs on %s: %s, %d threads",
            metadata.path,
            board.name,
            self.description.machine,
            self.num_threads,
        )

    def array(self, record: ParameterRecord) -> NDArray[Any]:
        """Refuse to give a parameter, which is on the board."""
        raise LibraryError(
            f"the parameter {record.name!r} is not here",
            where=self.board.name,
            why="the library is loaded on a board",
            todo="load the library on this machine, or read the file's section of weights",
        )

    def parameter(self, record: ParameterRecord) -> ParameterRecord:
        """Stand for a parameter, which the board has bound to its functions."""
        return record

    def buffers(self, kinds: Sequence[tuple[Sequence[int], str]]) -> list[NDArray[Any]]:
        """Arrays of zeros for the inputs of one function, given their shapes and types."""
        return [aligned_zeros(shape, dtype) for shape, dtype in kinds]

    def tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        """Stand for a tensor: inputs are sent when a function is called."""
        return array

    def call(self, name: str, arguments: Sequence[Any], num_threads: int) -> list[NDArray[Any]]:
        """Call a function on the board; its inputs are the first of the arguments."""
        return self.board.run(name, arguments[: len(self.metadata.inputs)])

    def time(self, name: str, inputs: Sequence[NDArray[Any]], seconds: float) -> list[float]:
        """Time calls of a function on the board, without the network.

        Parameters
        ----------
        name : str
            Function.
        inputs : sequence of numpy.ndarray
            Of the function's shape, in its order.
        seconds : float
            How long to measure, about.

        Returns
        -------
        list of float
            Seconds of each call; at least three.
        """
        end = time.monotonic() + seconds
        first = self.board.time(name, inputs, 1, 0)[0]
        # Requests of about a second: how long they take is known well enough to wait for them.
        runs = int(np.clip(min(seconds, 1.0) / max(first, 1e-6), 3, _MOST_RUNS))
        taken: list[float] = []
        while not taken or time.monotonic() < end:
            taken += self.board.time(name, inputs, runs, runs * first)
        return taken


def check_fits(metadata: LibraryMetadata, board: BoardDescription) -> None:
    """Refuse a library that a board cannot run.

    Parameters
    ----------
    metadata : LibraryMetadata
        The library.
    board : ibert_tvm.targets.rpc.BoardDescription
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


def _series(version: str) -> list[str]:
    """Major and minor version: within one, libraries fit."""
    return version.split(".")[:2]


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
    path : path
        The library, compiled for the board.
    address : ibert_tvm.targets.rpc.Address
        Its server, or a tracker with a key.
    num_threads : int, optional
        Threads on the board; by default all its processors.
    timeout : float
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
        If it was compiled without TVM's runtime.
    ibert_tvm.targets.rpc.BoardError
        If the board cannot be reached, or its processor cannot run the library.
    TargetError
        If the board's version of TVM does not fit.
    """
    from ibert_tvm.targets.rpc import Board

    metadata = read_metadata(path)
    if metadata.runtime != "tvm":
        raise UsageError(
            f"the library {metadata.path} cannot be run through RPC",
            where="--rpc",
            why="it was compiled with --runtime none; the server on a board has TVM's runtime",
            todo="compile it with --runtime tvm, or copy it to the board and call its C functions",
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
        yield Library(metadata, engine.num_threads, engine)

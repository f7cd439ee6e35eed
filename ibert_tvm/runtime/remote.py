"""Running a compiled library on a board, through TVM's RPC server there.

    with load_remote("model.so", Address("192.168.1.7", 9090, "rpi4")) as library:
        outputs = library.run(input_ids=ids)        # as on this machine, bit for bit

The library is sent once per session, weights included; they are used where the board maps it. Then
only inputs and outputs travel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..common.errors import UsageError
from .library import Library
from .library_file import read_metadata
from .remote_engine import RemoteEngine

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address

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
        with Library(metadata, engine.num_threads, engine) as library:
            yield library

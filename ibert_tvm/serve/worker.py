"""The process that computes for a server; it ends when the server closes the connection."""

from __future__ import annotations

import signal
import sys
from typing import Any

from ibert_tvm.targets.process import serve

from ..runtime import Library, load_library
from .runners import Tokens, compute


class _Service:
    """What the server asks for."""

    def __init__(self) -> None:
        self._library: Library | None = None
        self._outputs: tuple[str, ...] = ()

    def handle(self, operation: str, values: tuple[Any, ...]) -> Any:
        return self._load(*values) if operation == "load" else self._run(*values)

    def finish(self) -> None:
        if self._library is not None:
            self._library.close()

    def _load(self, path: str, threads: int | None, device: str, outputs: tuple[str, ...]) -> str:
        """Load a library; gives its digest."""
        self._library = load_library(path, num_threads=threads, device=device)
        self._outputs = outputs
        return self._library.metadata.digest

    def _run(self, *arrays: Any) -> Any:
        assert self._library is not None
        return compute(self._library, self._outputs, Tokens(*arrays))


def main(descriptor: int) -> None:
    """Serve one connection.

    Parameters
    ----------
    descriptor
        Number of the socket's file descriptor.
    """
    # A service manager tells every process of a service to stop. This one goes on until the server
    # has answered the requests that run.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    service = _Service()
    serve(descriptor, service.handle, service.finish)


if __name__ == "__main__":
    main(int(sys.argv[1]))

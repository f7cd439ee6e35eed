"""The application on a socket, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType

import uvicorn

from ..common.errors import IbertError, UsageError
from ..encoder import Encoder
from .application import create_application
from .connections import Connection, Connections, Seldom, open_files
from .limits import Limits
from .models import Load, Service

_logger = logging.getLogger(__name__)
_BACKLOG = 2048
_HEAP = ((-8, 2), (-3, 2**18), (-1, 2**18))
"""Options of glibc's `mallopt`: 2 arenas, and freed memory goes back to the system from 256 KiB on.
By default threads keep what the longest text or request took."""
_SWITCH_SECONDS = 0.0005
"""After which a thread of Python lets another one run: a request passes through three of them."""
_NEW_OBJECTS = 700
"""Between two looks of the collector, as Python has it; commands, which end soon, have more."""


def _bound_heap() -> None:
    with contextlib.suppress(AttributeError, OSError):  # other C libraries have no such options
        for option, value in _HEAP:
            ctypes.CDLL(None).mallopt(option, value)


def listen(host: str, port: int) -> socket.socket:
    """Open the socket, so that an address that is taken shows before models are loaded.

    Parameters
    ----------
    host
        Address or name.
    port
        0 for a free one.

    Returns
    -------
    socket.socket
        Bound, for connections of TCP.

    Raises
    ------
    UsageError
        If the address cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(_BACKLOG)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}",
            why=error.strerror or str(error),
            todo="choose another --host or --port",
        ) from error
    return opened


class _Server(uvicorn.Server):
    """Stops on a signal, and does not raise it again when it has stopped: that is no failure."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(self._reload()))
        if self.started:
            self._ready()

    async def _reload(self) -> None:
        for name in self._service.models:
            with contextlib.suppress(IbertError):  # which is in the log
                await self._service.reload(name)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # the second time
        self.should_exit = True


def serve(
    encoders: Mapping[str, Encoder],
    opened: socket.socket,
    limits: Limits,
    api_key: str | None,
    ready: Callable[[], None],
    workers: int = 1,
    load: Load | None = None,
) -> int:
    """Answer requests until SIGINT or SIGTERM; those that run are answered before it returns.

    SIGHUP loads all models again.

    Parameters
    ----------
    encoders
        Models by name. With workers they are closed: these load them again.
    opened
        From `listen`.
    limits
        How much is taken at a time.
    api_key
        What clients must send.
    ready
        Called when requests are answered.
    workers
        As `create_application` takes.
    load
        Likewise.

    Returns
    -------
    int
        Requests that were answered.

    Raises
    ------
    UsageError
        If a model cannot be served.
    LibraryError
        If a worker does not start.
    """
    address = opened.getsockname()[0]
    if api_key is None and not ipaddress.ip_address(address).is_loopback:
        _logger.warning(
            "listening on %s without a key: whoever reaches this machine can use the models; set "
            "IBERT_API_KEY",
            address,
        )
    application = create_application(encoders, limits, api_key, workers, load)
    service: Service = application.state.service
    most, backlog = open_files(_BACKLOG)
    connections = Connections(
        limits,
        limits.connections,
        most,
        lambda why: service.metrics.ended.labels(why).inc(),
    )
    config = uvicorn.Config(
        application,
        http=partial(Connection, connections),  # type: ignore[arg-type]
        ws="none",
        backlog=backlog,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(limits.stop_seconds),
    )
    server = _Server(config, service, ready)
    uvicorns, seldom = logging.getLogger("uvicorn.error"), Seldom()
    switch_seconds = sys.getswitchinterval()
    try:
        uvicorns.addFilter(seldom)
        _bound_heap()
        # Of a package with threads of its own; here they would take time from what computes.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.freeze()  # what stays is not looked through whenever a request makes many objects
        gc.set_threshold(_NEW_OBJECTS)
        server.run(sockets=[opened])
    finally:
        sys.setswitchinterval(switch_seconds)
        uvicorns.removeFilter(seldom)
        service.close()
    return server.server_state.total_requests

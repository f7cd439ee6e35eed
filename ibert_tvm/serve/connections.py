"""Connections: how many there are, and what each may do before its request is known.

uvicorn bounds neither their number nor what a header has. Here a connection that is one too many
ends another, of those that nobody has asked anything for longest; only those whose request is being
answered are safe, which are fewer than there may be. So there is always room for the question for
health. One that has sent nothing yet has no parser, and few are ended per turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .limits import Limits

_MOST_PIPELINED = 16
_BODY_FRAMING = 8
"""Bytes around a byte of a body, at most: chunks of one byte have 5."""
_DESCRIPTORS = 128
"""For everything but connections."""
_BURST, _BURST_SECONDS = 4, 0.5
_ENDED_AT_ONCE = 4
_LOG_SECONDS = 10.0
_MOST_MESSAGES = 256

_WAITING, _BETWEEN, _SENDING, _BUSY = range(4)
"""Whether a connection has asked nothing yet, waits for its next request, sends the body of one, or
has its answer computed: in this order they are ended."""

_logger = logging.getLogger(__name__)


class Seldom(logging.Filter):
    """Lets a message through once in a while, with how often it was held back before."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def due(self, text: str) -> str | None:
        """What is said of a message now; None for nothing."""
        now = time.monotonic()
        last, held_back = self._seen.get(text, (-_LOG_SECONDS, 0))
        if now - last < _LOG_SECONDS:
            self._seen[text] = (last, held_back + 1)
            return None
        if len(self._seen) >= _MOST_MESSAGES:
            self._seen.clear()
        self._seen[text] = (now, 0)
        return f"{text} ({held_back} times more before)" if held_back else text

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        if record.levelno >= logging.ERROR:
            return True
        text = self.due(record.getMessage())
        if text is not None:
            record.msg, record.args = text, ()
        return text is not None


_seldom = Seldom()


def log_refusal(what: str, why: str) -> None:
    """Log that something was turned away, seldom; a thousand times a second costs little."""
    text = _seldom.due(f"{what}: {why}")
    if text is not None:  # else no record is made
        _logger.warning("%s", text)


def open_files(backlog: int) -> tuple[int, int]:
    """Raise this process's limit of open files; gives most connections and most that wait.

    Parameters
    ----------
    backlog
        Connections that shall be able to wait until they are accepted, which may be all at once.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return 2**31, backlog
    backlog = min(backlog, max(1, hard // 4))
    return max(1, hard - backlog - _DESCRIPTORS), backlog


class Connections:
    """All connections of a server.

    Parameters
    ----------
    limits
        Bytes and seconds of what comes before a request.
    most
        Connections at a time: where more come at once, four times as many for a moment, in which
        their requests may come.
    open_files
        But never more than these.
    ended
        Called with the reason whenever one is ended.
    """

    def __init__(
        self, limits: Limits, most: int, open_files: int, ended: Callable[[str], None]
    ) -> None:
        self.limits, self._ended = limits, ended
        self._most = min(most, open_files)
        self._burst = min(_BURST * most, open_files)
        self._kinds: tuple[dict[_Any, float], ...] = ({}, {}, {}, {})  # and since when
        self._kind: dict[_Any, int] = {}
        self._making_room = False

    def put(self, connection: _Any, kind: int) -> None:
        """Note what a connection does now."""
        before = self._kind.get(connection)
        if before is not None:
            del self._kinds[before][connection]
        self._kind[connection] = kind
        self._kinds[kind][connection] = time.monotonic()
        if not self._make_room() and not self._making_room:
            self._making_room = True
            asyncio.get_running_loop().call_soon(self._make_more_room)

    def _make_room(self) -> bool:
        """End some that are too many; False if there may be more of them."""
        for _ in range(_ENDED_AT_ONCE):
            if len(self._kind) <= self._most:
                return True
            longest, since = next(iter(next(group for group in self._kinds if group).items()))
            if time.monotonic() - since < _BURST_SECONDS and len(self._kind) <= self._burst:
                return True
            self.end(longest, f"more than {self._most} connections")
        return False

    def _make_more_room(self) -> None:
        if self._make_room():
            self._making_room = False
        else:
            asyncio.get_running_loop().call_soon(self._make_more_room)

    def remove(self, connection: _Any) -> None:
        """Forget a connection."""
        kind = self._kind.pop(connection, None)
        if kind is not None:
            del self._kinds[kind][connection]

    def end(self, connection: _Any, why: str, status: str | None = None) -> None:
        """End a connection, with a status for one that has begun a request."""
        self.remove(connection)
        log_refusal("a connection was ended", why)
        self._ended(why)
        if status is None:
            connection.transport.abort()
            return
        head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        connection.transport.write(head.encode())
        connection.transport.close()


class Connection(asyncio.Protocol):
    """A connection that has sent nothing yet.

    Parameters
    ----------
    all_of_them
        Where it belongs.
    **options
        As uvicorn gives.
    """

    transport: asyncio.Transport

    def __init__(self, all_of_them: Connections, **options: Any) -> None:
        self._all, self._options = all_of_them, options

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._options["server_state"].connections.add(self)
        seconds = self._all.limits.head_seconds
        why = f"no request within {seconds:g} s"
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._all.end, self, why)
        self._all.put(self, _WAITING)

    def connection_lost(self, exc: Exception | None) -> None:
        self._options["server_state"].connections.discard(self)
        self._all.remove(self)
        self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        self.connection_lost(None)
        speaking = _Speaking(self._all, self._deadline.when(), self._options)
        self.transport.set_protocol(speaking)
        speaking.connection_made(self.transport)
        speaking.data_received(data)

    def shutdown(self) -> None:
        """End it when the server stops, as uvicorn asks."""
        self.transport.close()


class _Speaking(HttpToolsProtocol):
    """uvicorn's protocol with bounds, and a time by which it has sent its first headers."""

    def __init__(self, all_of_them: Connections, ends: float, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._all, self._limits = all_of_them, all_of_them.limits
        self._in_head = True
        self._overhead = 0  # bytes since the last request that are not of a body
        self._deadline: asyncio.TimerHandle | None = self.loop.call_at(ends, self._late)
        self._write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.put(self, _WAITING)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        self._stop_deadline()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._overhead += len(data)
        if self._in_head:
            self._start_deadline()  # also for what no request begins with
        super().data_received(data)
        if self._overhead > self._limits.head_bytes and not self.transport.is_closing():
            answered = self.cycle is None or self.cycle.response_complete
            status = "431 Request Header Fields Too Large" if answered else None
            self._all.end(self, f"headers of more than {self._limits.head_bytes} bytes", status)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_deadline()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.head_bytes or len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError("too many headers, or too many requests before an answer")
        super().on_headers_complete()
        self._in_head, self._overhead = False, 0
        self._stop_deadline()
        self._all.put(self, _SENDING)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._overhead -= _BODY_FRAMING * len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._overhead = True, 0
        if self.cycle is not None and not self.cycle.response_complete:
            self._all.put(self, _BUSY)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._all.put(self, _BETWEEN)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(
            self._limits.timeout_seconds, self._all.end, self, "an answer that is not read"
        )

    def resume_writing(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._all.remove(self)
        super().send_400_response(msg)

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.head_seconds, self._late)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_deadline()  # the next request, while the one before is answered
        elif not self.transport.is_closing():
            status = "408 Request Timeout" if self._overhead else None
            why = f"no request within {self._limits.head_seconds:g} s"
            self._all.end(self, why, status)


_Any = Connection | _Speaking

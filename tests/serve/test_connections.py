"""Connections that ask nothing, too much, or too slowly: they end, and others are answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from tests.extras import needs
from tests.processes import PATIENCE

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"


class Site:
    """A server with bounds: it answers the size of a body, once it may."""

    def __init__(self, most: int, open_files: int = 0, **limits: Any) -> None:
        for package in ("uvicorn", "httptools"):
            needs(package)
        import uvicorn

        from ibert_tvm.serve.connections import Connection, Connections
        from ibert_tvm.serve.limits import Limits

        self.ended: list[str] = []
        self.may_answer: asyncio.Event | None = None
        self.answering = 0
        self.answer = b""
        self.later = 0.0  # seconds that the clock of the event loop is ahead
        patient = Limits(**{"head_seconds": PATIENCE / 4, **limits})
        ended = self.ended.append
        self.connections = Connections(patient, most, open_files or most, ended)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._application,
                port=0,
                lifespan="off",
                log_config=None,
                interface="asgi3",
                timeout_graceful_shutdown=1,
                http=partial(Connection, self.connections),  # type: ignore[arg-type]
            )
        )

    async def _application(self, _scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            size, more = size + len(message["body"]), message["more_body"]
        self.answering += 1
        if self.may_answer is not None:
            await self.may_answer.wait()
        body = self.answer or str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def run(self, use: Callable[[Any], Awaitable[None]]) -> None:
        """Run a coroutine that is given what opens connections."""

        async def both() -> None:
            loop = asyncio.get_running_loop()
            loop.time = lambda: time.monotonic() + self.later  # type: ignore[method-assign]
            running = asyncio.create_task(self._server.serve())
            await until(lambda: self._server.started)
            port = self._server.servers[0].sockets[0].getsockname()[1]
            using = use(partial(asyncio.open_connection, "127.0.0.1", port))
            try:
                await asyncio.wait_for(using, PATIENCE)
            finally:
                self._server.should_exit = True
                await running

        asyncio.run(both())


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until a condition holds; `Site.run` ends what never does."""
    while not condition():
        await asyncio.sleep(0.001)


async def ask(open_: Any, content: bytes = GET) -> bytes:
    reader, writer = await open_()
    writer.write(content)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All until the connection ends."""
    try:
        return await reader.read()
    except ConnectionError:  # what came before is kept
        return bytes(reader._buffer)  # type: ignore[attr-defined]


def test_idle_connections_make_room_and_a_request_is_finished() -> None:
    site = Site(8)

    async def use(open_: Any) -> None:
        site.may_answer = asyncio.Event()
        asked = asyncio.create_task(ask(open_))
        await until(lambda: site.answering)
        idle = [await open_() for _ in range(50)]
        everyone = site._server.server_state.connections
        await until(lambda: len(site.ended) >= 43 and len(everyone) == 8)
        assert site.ended == ["more than 8 connections"] * 43
        kinds = [type(one).__name__ for one in everyone]
        assert sorted(kinds) == ["Connection"] * 7 + ["_Speaking"]  # idle ones have no parser
        assert await rest(idle[0][0]) == b""
        site.may_answer.set()
        assert (await asked).startswith(b"HTTP/1.1 200")
        assert (await ask(open_)).startswith(b"HTTP/1.1 200")
        for _, writer in idle:
            writer.close()

    site.run(use)


def test_many_that_come_at_once_may_ask_before_they_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(8, 100)
    from ibert_tvm.serve import connections

    monkeypatch.setattr(connections, "_BURST_SECONDS", float(PATIENCE))

    async def use(open_: Any) -> None:
        at_once = [await open_() for _ in range(30)]
        await until(lambda: len(site._server.server_state.connections) == 30)
        assert not site.ended
        at_once[0][1].write(GET)
        assert (await at_once[0][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connections, "_BURST_SECONDS", 0.0)
        at_once.append(await open_())
        at_once[-1][1].write(GET)
        assert (await at_once[-1][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await until(lambda: len(site._server.server_state.connections) == 8)
        assert len(site.ended) == 23
        assert not at_once[0][0].at_eof()  # it has asked, and others have not
        for _, writer in at_once:
            writer.close()

    site.run(use)


def test_few_are_ended_per_turn_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("uvicorn", "httptools"):
        needs(package)
    from ibert_tvm.serve import connections
    from ibert_tvm.serve.limits import Limits

    async def use() -> None:
        ended: list[str] = []
        monkeypatch.setattr(connections, "_BURST_SECONDS", float(PATIENCE))
        everyone = connections.Connections(Limits(), 10, 1000, ended.append)
        many: list[Any] = [Mock(name=str(number)) for number in range(41)]
        for one in many[:40]:
            everyone.put(one, connections._WAITING)
        assert not ended  # they come at once
        monkeypatch.setattr(connections, "_BURST_SECONDS", 0.0)
        everyone.put(many[40], connections._WAITING)
        for turn in range(1, 12):
            assert len(ended) == min(4 * turn, 31)
            await asyncio.sleep(0)
        assert [one.transport.abort.called for one in many] == [True] * 31 + [False] * 10

    asyncio.run(use())


async def slowly(writer: asyncio.StreamWriter, begin: bytes, content: bytes, pause: float) -> None:
    writer.write(begin)
    try:
        while True:
            writer.write(content)
            await writer.drain()
            await asyncio.sleep(pause)
    except ConnectionError:
        return


@pytest.mark.parametrize(
    ("begin", "content", "pause", "answer", "why"),
    [
        (b"", b"", 0.05, b"", "no request within 0.3 s"),
        (b"GET / HTTP/1.1\r\nx: ", b"a", 0.05, b"HTTP/1.1 408", "no request within 0.3 s"),
        (GET + b"GET", b"", 0.05, b"HTTP/1.1 200", "no request within 0.3 s"),
        (b"GET /", b"a" * 1000, 0.01, b"HTTP/1.1 431", "headers of more than 9000 bytes"),
        (b"GET / HTTP/1.1\r\nx: ", b"a" * 1000, 0.01, b"HTTP/1.1 431", "headers of more than"),
        (b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 100, 0.01, b"HTTP/1.1 431", "headers of more than"),
        (POST + b"0\r\nx: ", b"a" * 1000, 0, b"", "headers of more than"),
        (POST, b"1;" + b"a" * 1000 + b"\r\na\r\n", 0, b"", "headers of more than"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 9000 + b"\r\n\r\n", b"", 0.05, b"HTTP/1.1 400", ""),
        (GET * 40, b"", 0.05, b"HTTP/1.1 400", ""),
    ],
)
def test_what_becomes_no_request_ends(
    begin: bytes, content: bytes, pause: float, answer: bytes, why: str
) -> None:
    late = {"head_seconds": 0.3} if why.startswith("no request") else {}
    site = Site(8, head_bytes=9000, **late)

    async def use(open_: Any) -> None:
        if begin.startswith(GET * 2):
            site.may_answer = asyncio.Event()
        reader, writer = await open_()
        sending = asyncio.create_task(slowly(writer, begin, content, pause))
        assert (await rest(reader)).startswith(answer)
        sending.cancel()
        assert [one.startswith(why) for one in site.ended] == [True] * bool(why)
        site.may_answer = None
        site.connections.limits = replace(site.connections.limits, head_seconds=PATIENCE)
        assert (await ask(open_)).startswith(b"HTTP/1.1 200")

    site.run(use)


def test_an_answer_that_is_not_read_ends() -> None:
    site = Site(8, timeout_seconds=0.3)
    site.answer = b"a" * 2**25

    async def use(open_: Any) -> None:
        _, writer = await open_(limit=1)
        writer.write(GET)
        await until(lambda: site.ended)
        assert site.ended == ["an answer that is not read"]
        writer.close()

    site.run(use)


def test_what_is_allowed() -> None:
    """Pipelined requests, large headers, small chunks, a body slower than headers."""
    site = Site(8, head_bytes=9000)
    from ibert_tvm.serve.connections import _SENDING

    async def use(open_: Any) -> None:
        reader, writer = await open_()
        writer.write(GET * 8)
        for _ in range(8):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(1) == b"0"
        writer.write(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nx: ")
        for _ in range(8):
            writer.write(b"a" * 1000)
            await asyncio.sleep(0.01)
        writer.write(b"\r\n\r\n")
        await until(lambda: _SENDING in site.connections._kind.values())
        site.later = PATIENCE / 2  # than what headers may take
        for _ in range(5):
            writer.write(b"1\r\na\r\n" * 2000)
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(5) == b"10000"
        writer.close()
        assert not site.ended

    site.run(use)


def test_what_happens_often_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for package in ("uvicorn", "httptools"):
        needs(package)
    from ibert_tvm.serve.connections import Seldom

    logger, seldom = logging.getLogger("tests.seldom"), Seldom()
    logger.addFilter(seldom)
    for number in range(300):
        logger.warning("it happened %s", "again" if number % 3 else "once")
    seldom._seen = {text: (last - 60, count) for text, (last, count) in seldom._seen.items()}
    logger.warning("it happened %s", "once")
    assert caplog.messages == [
        "it happened once",
        "it happened again",
        "it happened once (99 times more before)",
    ]


def test_refusals_are_logged_seldom(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("uvicorn", "httptools"):
        needs(package)
    from ibert_tvm.serve import connections

    monkeypatch.setattr(connections, "_seldom", connections.Seldom())
    for _ in range(3):
        connections.log_refusal("a connection was ended", "it tested this log")
    assert caplog.messages == ["a connection was ended: it tested this log"]

"""What a request must pass before it is read: the key, the number of requests, its size."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import numpy as np

from ..common.errors import IbertError
from ..common.strict_json import JsonDict
from .limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_SMALL_BODY = 65536
"""Bytes of a body that is always waited for: clients send it with the headers."""
_MOST_ARRIVING = 32
"""Largest bodies that may be on their way at a time."""

OPEN = ("/health", "/docs")
"""Paths that need no key, and are answered however many requests there are."""

_TOO_MANY = "too many requests at a time; try again later"
_MOST_BRACKETS = 65536
"""Of a body: as many as the longest text may have."""


class _RefusedError(IbertError):
    """A body that is not taken, and the status that says so."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class Gate:
    """ASGI middleware.

    Parameters
    ----------
    application : callable
        What is behind it.
    limits
        Most requests at a time, the largest body, and how long it may take to come.
    api_key
        Key that clients must send as ``Authorization: Bearer KEY``; None to ask for none.
    refused
        Called with the status of every request that is turned away here, and the reason.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits,
        api_key: str | None,
        refused: Callable[[int, str], None],
    ) -> None:
        self._application = application
        self._limits = limits
        self._key = None if api_key is None else f"Bearer {api_key}".encode()
        self._refused = refused
        self._largest = f"a request has at most {limits.body_bytes} bytes"
        self._uncounted = min(_MOST_BRACKETS, limits.queue_tokens)
        self._running = 0
        self._arriving = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection as ASGI asks for."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._application(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"authorization", b"")
        if self._key is not None and not hmac.compare_digest(given, self._key):
            await self._refuse(send, 401, "the API key is missing or wrong")
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._limits.body_bytes:
            await self._refuse(send, 413, self._largest)
            return
        if self._running >= self._limits.requests:
            await self._too_many(send)
            return
        await self._pass(scope, receive, send)

    async def _pass(self, scope: Message, receive: Receive, send: Send) -> None:
        """Read the body up to its limit, and only then let the application have it."""
        try:
            content = await asyncio.wait_for(self._body(receive), self._limits.timeout_seconds)
        except asyncio.TimeoutError:
            await self._refuse(send, 408, "the request did not arrive in time")
            return
        except _RefusedError as error:
            await self._refuse(send, error.status, error.what)
            return
        if content is None:
            return
        if self._running >= self._limits.requests:  # meanwhile
            await self._too_many(send)
            return
        body: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def replay() -> Message:
            return body.pop() if body else await receive()

        self._running += 1
        try:
            await self._application(scope, replay, send)
        finally:
            self._running -= 1

    async def _body(self, receive: Receive) -> bytes | None:
        """The body; None if the client has left."""
        content = bytearray()
        counts = {"opening brackets": 0, "commas": 0}
        counted = 0
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                content += message.get("body", b"")
                self._arriving += len(message.get("body", b""))
                if len(content) > self._limits.body_bytes:
                    raise _RefusedError(413, self._largest)
                complete = not message.get("more_body", False)
                large = len(content) > _SMALL_BODY
                if len(content) > self._uncounted and (complete or large):
                    self._count(content[counted:], counts)
                    counted = len(content)
                if complete:
                    return bytes(content)
                if large and self._arriving > _MOST_ARRIVING * self._limits.body_bytes:
                    raise _RefusedError(429, _TOO_MANY)
        finally:
            self._arriving -= len(content)

    def _count(self, content: bytearray, counts: dict[str, int]) -> None:
        """Refuse what would take long to parse, each of these may become an object, as it arrives.

        `bytes.count` takes milliseconds for a mebibyte of what occurs often.
        """
        characters = np.frombuffer(content, np.uint8)
        for name, sought, most in (
            ("opening brackets", b"[{", _MOST_BRACKETS),
            ("commas", b",", self._limits.queue_tokens),
        ):
            found = (np.count_nonzero(characters == one) for one in sought)
            counts[name] += sum(map(int, found))
            if counts[name] > most:
                what = f"a request has at most {most} {name}, those in texts included"
                raise _RefusedError(400, what)

    async def _too_many(self, send: Send) -> None:
        await self._refuse(send, 429, _TOO_MANY)

    async def _refuse(self, send: Send, status: int, what: str) -> None:
        self._refused(status, what)
        body = json.dumps(error_document(status, what)).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        if status == 429:
            headers.append((b"retry-after", b"1"))
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_document(status: int, message: str) -> JsonDict:
    """An error as OpenAI's clients read it."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}

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


_MOST_BRACKETS = 65536
"""Of a body: as many as the longest text may have."""


class _TooManyError(IbertError):
    """More bytes of bodies are on their way than memory is meant for."""


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
            await self._too_large(send)
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
        except _TooManyError:
            await self._too_many(send)
            return
        if content is None:
            return
        if self._running >= self._limits.requests:  # meanwhile
            await self._too_many(send)
            return
        if len(content) > self._limits.body_bytes:
            await self._too_large(send)
            return
        # Each may become an object when it is parsed, which takes longer than all checks before.
        for name, characters, most in (
            ("opening brackets", b"[{", _MOST_BRACKETS),
            ("commas", b",", self._limits.queue_tokens),
        ):
            if len(content) > most and _count(content, characters) > most:
                what = f"a request has at most {most} {name}, those in texts included"
                await self._refuse(send, 400, what)
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
        """The body, or a beginning of it that is too large; None if the client has left."""
        content = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                content += message.get("body", b"")
                self._arriving += len(message.get("body", b""))
                if not message.get("more_body", False) or len(content) > self._limits.body_bytes:
                    return bytes(content)
                large = len(content) > _SMALL_BODY
                if large and self._arriving > _MOST_ARRIVING * self._limits.body_bytes:
                    raise _TooManyError("too many bytes of bodies are on their way")
        finally:
            self._arriving -= len(content)

    async def _too_many(self, send: Send) -> None:
        await self._refuse(send, 429, "too many requests at a time; try again later")

    async def _too_large(self, send: Send) -> None:
        await self._refuse(send, 413, f"a request has at most {self._limits.body_bytes} bytes")

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


def _count(content: bytes, characters: bytes) -> int:
    """How often some characters occur; `bytes.count` takes milliseconds where that is often."""
    found = np.frombuffer(content, np.uint8)
    return sum(int(np.count_nonzero(found == character)) for character in characters)


_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_document(status: int, message: str) -> JsonDict:
    """An error as OpenAI's clients read it."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}

"""Bodies that are turned away while they arrive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ibert_tvm.serve.gate import Gate
from ibert_tvm.serve.limits import Limits

CHUNK = 65536


def answer(chunks: list[bytes]) -> tuple[int, str, int]:
    """Status and message of a body that comes in chunks, and how many of these were read."""
    sent: list[Any] = []
    coming = iter(chunks)

    async def receive() -> Any:
        body = next(coming)
        return {"type": "http.request", "body": body, "more_body": bool(coming.__length_hint__())}

    async def send(message: Any) -> None:
        sent.append(message)

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"status": 200})
        await send({"body": json.dumps({"error": {"message": str(len(body))}}).encode()})

    gate = Gate(application, Limits(), None, lambda _status, _what: None)
    asyncio.run(gate({"type": "http", "path": "/", "headers": []}, receive, send))
    message = json.loads(sent[1]["body"])["error"]["message"]
    return sent[0]["status"], message, len(chunks) - coming.__length_hint__()


@pytest.mark.parametrize(
    ("chunks", "status", "message", "read"),
    [
        ([b"a" * CHUNK] * 15, 200, "983040", 15),
        ([b"[" * CHUNK, b"a" * CHUNK, b","], 200, "131073", 3),
        ([b"," * CHUNK, b",", b"," * (CHUNK - 1), b"a"], 200, "131073", 4),
        ([b"[" * CHUNK, b"{", *[b"a"] * 5], 400, "a request has at most 65536 opening brackets", 2),
        ([b"," * CHUNK] * 16, 400, "a request has at most 131072 commas", 3),
        ([b"a" * CHUNK] * 18, 413, "a request has at most 1048576 bytes", 17),
    ],
)
def test_a_body_is_refused_as_soon_as_it_is_too_much(
    chunks: list[bytes], status: int, message: str, read: int
) -> None:
    found = answer(chunks)
    assert found[0] == status and found[1].startswith(message) and found[2] == read

"""A peer of `ibert serve`: sentence-transformers behind FastAPI and uvicorn, with dynamic batching.

    python -m benchmarks.serving_peer PEER MODEL FOLDER THREADS

What waits is encoded together by one thread, sorted by length and in batches of 32 by `encode`
itself; nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

from .sentences import PEERS, Encode

_MOST = 64
"""Texts that are taken at once."""


def _work(encode: Encode, waiting: queue.SimpleQueue[Any]) -> None:
    while True:
        jobs = [waiting.get()]
        while not waiting.empty() and sum(len(texts) for texts, *_ in jobs) < _MOST:
            jobs.append(waiting.get())
        vectors = encode([text for texts, *_ in jobs for text in texts])
        start = 0
        for texts, loop, future in jobs:
            rows = vectors[start : start + len(texts)]
            start += len(texts)
            loop.call_soon_threadsafe(future.set_result, rows)


def create_application(encode: Encode) -> FastAPI:
    """Make the application, with the thread that encodes."""
    application = FastAPI()
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_work, args=(encode, waiting), daemon=True).start()

    @application.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        given = orjson.loads(await request.body())["input"]
        texts = [given] if isinstance(given, str) else given
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        waiting.put((texts, loop, future))
        vectors = await future
        data = [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(vectors)
        ]
        body = orjson.dumps({"object": "list", "data": data}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    return application


def main() -> None:
    """Serve until the process is ended."""
    name, model, folder, threads = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads
    encode = PEERS[name].load(Path(model), Path(folder), int(threads))
    encode(["to load everything"])
    opened = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"serving {name} on http://127.0.0.1:{opened.getsockname()[1]}", flush=True)
    config = uvicorn.Config(create_application(encode), log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[opened])


if __name__ == "__main__":
    main()

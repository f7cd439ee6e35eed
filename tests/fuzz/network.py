"""Readers of what comes over the network: answers of a tracker, requests to the server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.mutation import Files
from tests.fuzz.reader import Reader, files_of

# -- the network --------------------------------------------------------------------------------


def _answers() -> list[Files]:
    server = {"key": "server:rpi4", "addr": ["127.0.0.1", 9090]}
    summary = [0, {"queue_info": {"rpi4": {"free": 1, "pending": 0}}, "server_info": [server]}]
    body = json.dumps(summary).encode()
    board = b"machine aarch64\nprocessors 4\ncapabilities 887 10\ncpuinfo\nFeatures : fp asimd\n"
    return [{"tracker.json": body, "board": board}]


def _listen(folder: Path) -> object:
    """Ask a tracker that answers what the file says, and read what a board says of itself."""
    from ibert_tvm.targets.rpc.address import Address, find_server
    from ibert_tvm.targets.rpc.processor import BoardDescription

    body = (folder / "tracker.json").read_bytes() if (folder / "tracker.json").exists() else b""
    magic = (0x2F271).to_bytes(4, "little")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4)
                connection.sendall(magic)
                connection.recv(100)
                connection.sendall(len(body).to_bytes(4, "little") + body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        found = find_server(Address("127.0.0.1", server.getsockname()[1], "rpi4"), 2)
        thread.join()
    board = (folder / "board").read_bytes() if (folder / "board").exists() else b""
    return found, BoardDescription.parse(board.decode("utf-8", "replace"))


_REQUESTS: Mapping[str, object] = {
    "v1/embeddings": {"input": ["hello world", "big"], "encoding_format": "base64", "model": "e"},
    "v1/embeddings/ids": {"input": [[2, 4, 3], [2, 3]], "dimensions": 3, "truncate": True},
    "v2/rerank": {"query": "big", "documents": ["hello", {"text": "small"}], "top_n": 1},
    "rerank": {
        "query": "big",
        "documents": ["hello"],
        "return_documents": True,
        "function": "none",
    },
    "classify": {"inputs": ["hello", ["big", "small"]], "top_k": 2, "threshold": 0.5},
    "reload": {"model": "e"},
}


def _requests() -> list[Files]:
    return [{f"{path}.json": json.dumps(body).encode()} for path, body in _REQUESTS.items()]


@cache
def _server() -> Callable[[str, bytes], tuple[int, bytes]]:
    """A server in this process, without its sockets: what it answers to a body at a path."""
    import asyncio

    import httpx

    from ibert_tvm import Encoder
    from ibert_tvm.serve.application import create_application
    from tests.encoder.small_encoders import tiny

    place = TemporaryDirectory()  # lives as long as what loads from it
    libraries = {
        kind[0]: tiny(kind).build(Path(place.name) / f"{kind}.so")
        for kind in ("embedding", "score", "classes")
    }

    def load(name: str) -> Encoder:
        return Encoder(Path(place.name) / libraries[name].name)

    application = create_application({n: load(n) for n in libraries}, None, "key", load=load)
    transport = httpx.ASGITransport(application, raise_app_exceptions=True)
    client = httpx.AsyncClient(transport=transport, base_url="http://x")
    loop = asyncio.new_event_loop()
    headers = {"content-type": "application/json", "authorization": "Bearer key"}

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        given = loop.run_until_complete(client.post(path, content=body, headers=headers))
        return given.status_code, given.content

    return answer


def _ask(folder: Path) -> object:
    found = []
    for name, body in files_of(folder).items():
        path = name.removesuffix(".json").removesuffix("/ids")
        status, content = _server()(f"/{path}", body)
        assert status < 500, (status, content)
        found.append(status)
    return found


READERS: dict[str, Reader] = {
    "requests": Reader(_requests, _ask),
    "network": Reader(_answers, _listen),
}

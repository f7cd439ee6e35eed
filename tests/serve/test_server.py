"""What a server does with the process that it has to itself."""

from __future__ import annotations

import gc
import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.extras import needs


def test_garbage_of_requests_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("fastapi", "httptools", "uvicorn"):
        needs(package)
    from ibert_tvm.serve import server
    from ibert_tvm.serve.limits import Limits

    before, seen = gc.get_threshold(), []
    application = SimpleNamespace(state=SimpleNamespace(service=Mock()))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(server, "create_application", lambda *_: application)
    monkeypatch.setattr(server, "_bound_heap", lambda: None)
    monkeypatch.setattr(server._Server, "run", lambda *_, **__: seen.append(gc.get_threshold()[0]))
    gc.set_threshold(200_000)  # as `ibert` leaves it
    try:
        with socket.create_server(("127.0.0.1", 0)) as opened:
            server.serve({}, opened, Limits(), None, lambda: None)
    finally:
        gc.set_threshold(*before)
    assert seen == [700]

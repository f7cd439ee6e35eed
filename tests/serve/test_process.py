"""`ibert serve` as a process: it listens, answers, and stops when it is told to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from tests.cli.conftest import ibert  # noqa: F401  a fixture
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.serve.test_application import PACKAGES


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for package in PACKAGES:
        needs(package)
    return tiny("embedding").build(tmp_path / "tiny.so")


def test_it_answers_many_clients_and_stops(library: Path) -> None:
    import httpx

    command = [sys.executable, "-m", "ibert_tvm", "serve", library, "--port", "0", "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "IBERT_API_KEY": "secret"},
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        address = re.fullmatch(r"serving tiny on (http://127\.0\.0\.1:\d+)\n", said)
        assert address, said
        encoder = Encoder(library)
        requests = [texts_of(count, 12) for count in range(1, 25)]
        with httpx.Client(headers={"authorization": "Bearer secret"}) as client:

            def ask(texts: list[str]) -> np.ndarray:
                answer = client.post(f"{address[1]}/v1/embeddings", json={"input": texts})
                rows = [item["embedding"] for item in answer.json()["data"]]
                return np.array(rows, np.float32)

            with ThreadPoolExecutor(8) as pool:
                for texts, vectors in zip(requests, pool.map(ask, requests), strict=True):
                    np.testing.assert_array_equal(vectors, encoder.encode(texts))
            assert httpx.get(f"{address[1]}/v1/models").status_code == 401
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert '"requests": 25' in out


def test_an_address_that_is_taken(library: Path, ibert) -> None:  # noqa: F811
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = ibert("serve", library, "--port", port)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (
        2,
        "",
        f"error: cannot listen on 127.0.0.1, port {port}\n"
        "  why: Address already in use\n"
        "  what to do: choose another --host or --port\n",
    )


def test_two_models_of_one_name(library: Path, ibert) -> None:  # noqa: F811
    outcome = ibert("serve", library, library, "--port", "0")
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: two models are called tiny\n"
        "  why: clients choose a model by the name of its file\n"
        "  what to do: rename one of the files\n",
    )

"""`ibert serve` as a process: it listens, answers, and stops when it is told to."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import LibraryError
from tests.encoder.small_encoders import WORDS, tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.processes import PATIENCE, wait_until
from tests.serve.test_application import PACKAGES
from tests.snapshots import Messages


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for package in PACKAGES:
        needs(package)
    return tiny("embedding").build(tmp_path / "tiny.so")


@contextmanager
def serving(library: Path, *options: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address; it is ended with the block."""
    command = [sys.executable, "-m", "ibert_tvm", "serve", library, "--port", "0", "--json"]
    process = subprocess.Popen(
        [*map(str, command), *map(str, options)],
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
        yield process, address[1]
    finally:
        process.kill()
        process.communicate()


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Its processes, without those that are dead and not yet buried."""
    return [child for child in psutil.Process(process.pid).children() if lives(child)]


def lives(process: psutil.Process) -> bool:
    """Whether it is neither dead nor buried; it may be so between two looks at it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def vectors_of(client: Any, address: str, texts: list[str]) -> np.ndarray:
    answer = client.post(f"{address}/v1/embeddings", json={"input": texts})
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], np.float32)


HEADERS = {"authorization": "Bearer secret"}


def connected() -> Any:
    import httpx

    return httpx.Client(headers=HEADERS, timeout=PATIENCE)


def test_it_answers_many_clients_and_stops(library: Path) -> None:
    import httpx

    requests = [texts_of(count, 12) for count in range(1, 25)]
    with serving(library) as (process, address), connected() as client:
        encoder = Encoder(library)
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(partial(vectors_of, client, address), requests)
            for texts, vectors in zip(requests, answers, strict=True):
                np.testing.assert_array_equal(vectors, encoder.encode(texts))
        assert httpx.get(f"{address}/v1/models", timeout=PATIENCE).status_code == 401
        (worker,) = workers_of(process)
        worker.send_signal(signal.SIGTERM)  # as service managers send it to all of a service
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert '"requests": 25' in out
    wait_until(lambda: not lives(worker))


@pytest.mark.slow
def test_workers_that_are_killed_under_load_lose_and_swap_nothing(library: Path) -> None:
    encoder, kills, stop = Encoder(library), 3, threading.Event()
    with serving(library, "--workers", 2) as (process, address):

        def ask(seed: int) -> int:
            """Ask for different texts until the end; every answer is compared."""
            chosen = random.Random(seed)
            with connected() as client:
                count = 0
                while not count or not stop.is_set():
                    sizes = [chosen.randint(0, 12) for _ in range(chosen.randint(1, 6))]
                    texts = [" ".join(chosen.choices(WORDS, k=size)) for size in sizes]
                    vectors = vectors_of(client, address, texts)
                    np.testing.assert_array_equal(vectors, encoder.encode(texts))
                    count += 1
                return count

        with ThreadPoolExecutor(8) as pool, connected() as client:
            clients = [pool.submit(ask, seed) for seed in range(8)]
            try:
                for number in range(kills):
                    wait_until(lambda: health(client, address)["status"] == "ok")
                    workers_of(process)[number % 2].kill()
                    wait_until(lambda number=number: restarts(client, address) > number)
                wait_until(lambda: health(client, address)["status"] == "ok")
            finally:
                stop.set()
            assert min(future.result() for future in clients) > 0
            assert health(client, address) == {
                "status": "ok",
                "models": ["tiny"],
                "workers": {"tiny": {"alive": 2, "wanted": 2}},
            }


def health(client: Any, address: str) -> Any:
    return client.get(f"{address}/health").json()


def restarts(client: Any, address: str) -> float:
    lines = client.get(f"{address}/metrics").text.splitlines()
    return float(next(x for x in lines if x.startswith("ibert_worker_restarts_total{")).split()[1])


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(library: Path) -> None:
    with serving(library, "--timeout", 1.5) as (process, address), connected() as client:
        (worker,) = workers_of(process)
        worker.suspend()
        answer = client.post(f"{address}/v1/embeddings", json={"input": "big"})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        wait_until(lambda: restarts(client, address) >= 1)
        expected = Encoder(library).encode(["big"])

        def answered() -> Any:  # a loaded machine may need more than the server's 1.5 s
            answer = client.post(f"{address}/v1/embeddings", json={"input": "big"})
            return answer if answer.status_code == 200 else None

        got = wait_until(answered).json()["data"][0]["embedding"]
        np.testing.assert_array_equal(np.float32([got]), expected)


def other_library(folder: Path) -> Path:
    """A library of the same kind that gives other vectors."""
    model = tiny("embedding")
    scales = [{**output, "scale": output["scale"] * 2} for output in model.metadata["outputs"]]
    model.metadata_changes["outputs"] = scales
    return model.build(folder / "other.so")


@contextmanager
def asking(address: str, expected: dict[str, np.ndarray]) -> Iterator[set[str]]:
    """Ask all the time, and check that every answer is right for the library that it names."""
    stop, texts, seen = threading.Event(), texts_of(6, 12), set()

    def ask(number: int) -> None:
        with connected() as client:
            while not stop.is_set():
                some = slice(number % 3, number % 3 + 3)
                answer = client.post(f"{address}/v1/embeddings", json={"input": texts[some]})
                assert answer.status_code == 200, answer.text
                digest = answer.headers["x-model-digest"]
                assert answer.json()["system_fingerprint"] == digest
                got = [item["embedding"] for item in answer.json()["data"]]
                np.testing.assert_array_equal(np.float32(got), expected[digest][some])
                seen.add(digest)

    with ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(ask, number) for number in range(6)]
        try:
            yield seen
        finally:
            stop.set()
        for client in clients:
            client.result()


def digest_and_vectors(library: Path) -> tuple[str, np.ndarray]:
    with Encoder(library) as encoder:
        return encoder.library.metadata.digest, encoder.encode(texts_of(6, 12))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_reload_under_load_loses_nothing(library: Path, tmp_path: Path, workers: int) -> None:
    other = other_library(tmp_path)
    found = [digest_and_vectors(path) for path in (library, other)]
    (first, _), (second, _) = found
    new, old = other.read_bytes(), library.read_bytes()
    with (
        serving(library, "--workers", workers) as (process, address),
        connected() as client,
        asking(address, dict(found)) as seen,
    ):
        ask = partial(client.post, f"{address}/reload")
        wait_until(lambda: first in seen)
        assert ask(json={}).json()["data"] == [{"id": "tiny", "digest": first, "changed": False}]
        library.write_bytes(new)  # the file itself is overwritten: a copy of it is served
        if workers:
            workers_of(process)[0].kill()
            wait_until(lambda: restarts(client, address) == 1)
        answer = ask(json={"model": "tiny"})
        assert answer.json()["data"] == [{"id": "tiny", "digest": second, "changed": True}]
        wait_until(lambda: second in seen)
        library.write_bytes(b"broken")
        broken = ask(json={})
        assert broken.status_code == 409
        assert "cannot read the library" in broken.json()["error"]["message"]
        library.write_bytes(old)
        process.send_signal(signal.SIGHUP)
        models = f"{address}/v1/models"
        wait_until(lambda: client.get(models).json()["data"][0]["digest"] == first)
        wait_until(lambda: len(workers_of(process)) == workers)
    assert seen == {first, second}


@pytest.mark.slow
def test_what_serves_something_else_takes_no_place(library: Path, tmp_path: Path) -> None:
    import httpx

    with serving(library) as (_, address), connected() as client:
        ask = partial(client.post, f"{address}/reload")
        tiny("score").build(tmp_path / "score.so").replace(library)
        answer = ask(json={})
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            409,
            "tiny is not replaced, and the library of before serves\n"
            "  why: its methods are ['rerank', 'classify']: "
            "those of the library that runs are ['encode']\n"
            "  what to do: put a whole library of the same kind in its place, and ask again",
        )
        assert ask(json={"model": "../other"}).status_code == 404
        assert httpx.post(f"{address}/reload", json={}, timeout=PATIENCE).status_code == 401
        assert vectors_of(client, address, ["big"]).shape == (1, 3)


@pytest.mark.slow
def test_no_worker_is_started_of_another_file(library: Path, tmp_path: Path) -> None:
    """What was asked before and what is asked after a restart have vectors of one model."""
    from ibert_tvm.serve.runners import ProcessRunner

    with Encoder(library) as encoder:
        runner = ProcessRunner(encoder.library, "tiny", ["embedding"], 1, 10.0)
        other_library(tmp_path).replace(library)
        with pytest.raises(LibraryError, match="the file is not the one that this server"):
            runner.start()


def test_an_address_that_is_taken(library: Path, ibert, messages: Messages) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = ibert("serve", library, "--port", port)
    assert (outcome.code, outcome.stdout) == (2, "")
    messages.check(outcome.stderr, port=port)


def test_two_models_of_one_name(library: Path, ibert, messages: Messages) -> None:
    outcome = ibert("serve", library, library, "--port", "0")
    assert outcome.code == 2
    messages.check(outcome.stderr)

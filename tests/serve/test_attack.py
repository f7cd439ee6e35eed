"""A server under attack, and one that is asked for all that its OpenAPI document allows."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ibert_tvm import Encoder
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.serve.test_application import PACKAGES

_CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,negative_data_rejection,"
    "unsupported_method,allow_header_conformance"
)


@contextmanager
def _serving(*libraries: Path) -> Iterator[object]:
    from benchmarks.serving import Server

    command = [sys.executable, "-m", "ibert_tvm", "serve", *map(str, libraries), "--port", "0"]
    server = Server("ibert", command)
    try:
        yield server
    finally:
        server.close()


@pytest.mark.slow
def test_no_valid_request_fails_under_attack(tmp_path: Path) -> None:
    for package in PACKAGES:
        needs(package)
    if shutil.which("h2load") is None:
        pytest.skip("h2load is not installed (Debian: nghttp2-client)")
    from benchmarks.serving_attack import ATTACKS, exceeded, measured

    library = tiny("embedding").build(tmp_path / "tiny.so")
    texts = texts_of(40, 12)
    expected = Encoder(library).encode(texts)
    with _serving(library) as server:
        quiet, *rows = [
            measured(server, texts, expected, names, 50.0, 1.0)
            for names in ([], *([name] for name in ATTACKS), list(ATTACKS))
        ]
    for row in (quiet, *rows):
        assert row["requests"] > 0 and row["health_ms"] < 60_000, row
        # Other tests have the same processors: how soon it answers is the benchmark's to judge.
        assert exceeded(quiet, row | {"p99_ms": quiet["p99_ms"], "health_ms": 0}) == [], row


@pytest.mark.slow
def test_every_answer_is_in_the_openapi_document(tmp_path: Path) -> None:
    for package in PACKAGES:
        needs(package)
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    libraries = [tiny(kind).build(tmp_path / f"{kind}.so") for kind in ("embedding", "score")]
    with _serving(*libraries) as server:
        document = f"http://127.0.0.1:{server.port}/openapi.json"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", document, "--seed=1"),
                *(f"--checks={_CHECKS}", "--phases=examples,coverage,fuzzing", "--max-examples=15"),
                *("--continue-on-failure", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        with urllib.request.urlopen(document) as answer:
            assert len(json.load(answer)["paths"]) == 8

"""A server under attack: every valid request is answered, and answered right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ibert_tvm import Encoder
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.serve.test_application import PACKAGES


@pytest.mark.slow
def test_no_valid_request_fails_under_attack(tmp_path: Path) -> None:
    for package in PACKAGES:
        needs(package)
    from benchmarks.serving import Server
    from benchmarks.serving_attack import ATTACKS, measured

    library = tiny("embedding").build(tmp_path / "tiny.so")
    texts = texts_of(40, 12)
    expected = Encoder(library).encode(texts)
    server = Server(
        "ibert", [sys.executable, "-m", "ibert_tvm", "serve", str(library), "--port", "0"]
    )
    try:
        rows = [
            measured(server, texts, expected, names, 50.0, 3.0)
            for names in ([], *([name] for name in ATTACKS), list(ATTACKS))
        ]
    finally:
        server.close()
    quiet = rows[0]
    for row in rows:
        assert (row["requests"], row["failed"], row["wrong"]) == (150, 0, 0), row
        assert row["resident_mib"] <= 1.5 * quiet["resident_mib"], row
        # Attackers have the same two processors; a server that lets them goes beyond minutes.
        assert row["p99_ms"] <= max(3 * quiet["p99_ms"], 5000), row
        assert row["health_ms"] <= 5000, row

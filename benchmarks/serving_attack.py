"""A server that is attacked while clients ask it for vectors at a steady rate.

    python -m benchmarks.serving_attack
    python -m benchmarks.serving_attack --library model.so --seconds 20 --rate 200

Requests are due at fixed times, and their latency counts from then. One after the other, and in the
end together, the attacks below run beside them from a process of their own; answers are compared
with what the library gives, bit for bit. ``/health`` is asked over new connections all the time.

Whoever attacks from the same machine takes its processor time, too: latency under attack on two
cores says less than that nothing fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from .process import ending_with_this
from .serving import LOG, ROOT, Load, Server, _ask, _right, _started, requests_of

__all__ = ["ATTACKS", "main", "measured"]

_HEAD = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
_CONNECTIONS = 16
"""Of valid clients."""
_MEBIBYTE = 2**20
_FIELDS = ("input", "documents", "inputs", "query", "model", "truncate", "encoding_format", "x")
_PATHS = (b"/v1/embeddings", b"/rerank", b"/classify")
_ELEMENTS = (b"1", b'"a"', b"[1]", b"{}", b"null", b"1e9", b'["a","b"]')


async def _again(port: int, use: Callable[[Any, Any], Awaitable[None]], pause: float) -> None:
    """Open a connection and use it, for ever."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            await use(reader, writer)
        writer.close()
        await asyncio.sleep(pause)


async def _idle(reader: Any, writer: Any) -> None:
    await reader.read()


async def _slow_headers(reader: Any, writer: Any) -> None:
    writer.write(b"GET / HTTP/1.1\r\nx: ")
    while not reader.at_eof():
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.5)


async def _endless_headers(reader: Any, writer: Any) -> None:
    writer.write(b"GET / HTTP/1.1\r\nx: ")
    while not reader.at_eof():
        writer.write(b"a" * 65536)
        await writer.drain()


async def _slow_bodies(reader: Any, writer: Any) -> None:
    writer.write(_HEAD % b"/v1/embeddings" + b"content-length: 100000\r\n\r\n")
    while not reader.at_eof():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.5)


async def _garbage(reader: Any, writer: Any) -> None:
    path, field = random.choice(_PATHS), random.choice(_FIELDS)
    element = random.choice(_ELEMENTS)
    body = b'{"%s":[' % field.encode() + element
    body += (b"," + element) * ((_MEBIBYTE - len(body) - 2) // (len(element) + 1)) + b"]}"
    writer.write(_HEAD % path + b"content-length: %d\r\n\r\n" % len(body) + body)
    await asyncio.wait_for(reader.read(), 60)


async def _half_closed(reader: Any, writer: Any) -> None:
    for part in (b"", b"GET /health", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"):
        writer.write(part)
    writer.write_eof()
    await reader.read()


async def _pipelined(reader: Any, writer: Any) -> None:
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 5000)
    await reader.read()


async def _poisoned(reader: Any, writer: Any) -> None:
    words = "transformer " * 5400  # as many characters as a text may have
    for content in (
        b'{"input": "half \\ud83d"}',
        b'{"input": ["fine", "half \\udc00"], "truncate": true}',
        json.dumps({"input": words, "truncate": True}).encode(),
        json.dumps({"input": ["." * 65000] * 16, "truncate": True}).encode(),
        json.dumps({"input": ["a b c d e f g h " * 128] * 400, "truncate": True}).encode(),
        b'{"input": [[1, 2, 999999999]]}',
        b'{"input": "%s", "truncate": true}' % (b"a" * 1_000_000),
    ):
        status, _ = await asyncio.wait_for(_ask(reader, writer, content), 60)
        if status in (413, 429):  # which close the connection
            return


ATTACKS: dict[str, tuple[Callable[[Any, Any], Awaitable[None]], int, float]] = {
    "idle connections": (_idle, 5000, 5.0),
    "slow headers": (_slow_headers, 300, 0.1),
    "endless headers": (_endless_headers, 8, 0.1),
    "slow bodies": (_slow_bodies, 300, 0.1),
    "a mebibyte of garbage": (_garbage, 4, 0.01),
    "half-closed connections": (_half_closed, 50, 0.5),
    "pipelined requests": (_pipelined, 4, 0.1),
    "poisoned texts": (_poisoned, 4, 0.1),
}
"""What one connection does, how many do it, and seconds until one that was ended comes again."""


async def _attack(port: int, names: list[str], scale: float) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - 256 if hard != resource.RLIM_INFINITY else 2**20
    attackers = []
    for name in names:
        use, count, pause = ATTACKS[name]
        attackers += [_again(port, use, pause) for _ in range(max(1, round(scale * count)))]
    await asyncio.gather(*attackers[:most])


async def _valid(
    port: int, texts: list[str], expected: np.ndarray, rate: float, seconds: float
) -> tuple[Load, float]:
    """Requests at a rate, each due at its time; and the slowest answer of ``/health``."""
    seen, slowest = Load(), 0.0
    started = time.perf_counter() + 0.2
    due = iter(
        (started + number / rate, places)
        for number, places in enumerate(requests_of(texts, int(rate * seconds)))
    )

    async def client() -> None:
        reader: Any = None
        writer: Any = None
        for at, places in due:
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            body = json.dumps({"input": [texts[place] for place in places], "truncate": True})
            try:
                if reader is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
                status, answer = await asyncio.wait_for(_ask(reader, writer, body.encode()), 60)
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                LOG.warning("a valid request failed: %r", error)
                status, answer = 0, b""
            seen.statuses[status] = seen.statuses.get(status, 0) + 1
            if status == 200:
                data = json.loads(answer)["data"]
                vectors = np.array([item["embedding"] for item in data], np.float32)
                seen.seconds.append(time.perf_counter() - at)
                seen.texts += len(places)
                seen.wrong += not _right(vectors, expected[places], exact=True)
            else:
                LOG.warning("a valid request got %d: %s", status, answer[:200])
                reader = None

    async def health() -> None:
        nonlocal slowest
        while True:
            began = time.perf_counter()
            answer = b""
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                answer = await reader.readuntil(b"\r\n\r\n")
                writer.close()
            took = time.perf_counter() - began
            slowest = max(slowest, took if answer.startswith(b"HTTP/1.1 200") else 60.0)
            await asyncio.sleep(0.1)

    asking = asyncio.ensure_future(health())
    await asyncio.gather(*(client() for _ in range(_CONNECTIONS)))
    asking.cancel()
    return seen, slowest


def measured(
    server: Server,
    texts: list[str],
    expected: np.ndarray,
    names: list[str],
    rate: float,
    seconds: float,
    scale: float = 1.0,
) -> dict[str, Any]:
    """What valid clients see while some attacks run, and what the server needs.

    Parameters
    ----------
    server
        A running server.
    texts, expected
        What is asked for, and its vectors [texts, channels].
    names
        Attacks, of `ATTACKS`; may be none.
    rate
        Valid requests per second.
    seconds
        For so long.
    scale
        Connections of attacks, of those that they usually have.

    Returns
    -------
    dict of str to Any
        ``attack``, ``requests``, ``failed``, ``wrong``, ``p50_ms``, ``p99_ms``, ``health_ms``
        (slowest), ``resident_mib`` (most).
    """
    words = [sys.executable, "-m", "benchmarks.serving_attack", "--attack", *names]
    words += ["--port", str(server.port), "--scale", str(scale)]
    peak = 0.0

    async def watched() -> tuple[Load, float]:
        nonlocal peak
        valid = asyncio.ensure_future(_valid(server.port, texts, expected, rate, seconds))
        while not valid.done():
            peak = max(peak, server.usage()[1])
            await asyncio.wait([valid], timeout=0.5)
        return valid.result()

    attacker = None
    if names:
        attacker = subprocess.Popen(ending_with_this(words), cwd=ROOT)
        time.sleep(1.0)
    try:
        seen, slowest = asyncio.run(watched())
    finally:
        if attacker is not None:
            attacker.kill()
            attacker.wait()
    milliseconds = 1e3 * np.array(seen.seconds or [float("nan")])
    return {
        "attack": " + ".join(names) if len(names) < len(ATTACKS) else "all together",
        "requests": sum(seen.statuses.values()),
        "failed": sum(count for status, count in seen.statuses.items() if status != 200),
        "wrong": seen.wrong,
        "p50_ms": round(float(np.percentile(milliseconds, 50)), 1),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 1),
        "health_ms": round(1e3 * slowest),
        "resident_mib": round(peak),
    }


def _markdown(result: dict[str, Any]) -> str:
    from .report import machine_lines, table

    settings, rows = result["settings"], result["rows"]
    lines = [
        "# A server under attack",
        "",
        *machine_lines(result),
        "",
        f"{settings['model']}, {settings['rate']:g} valid requests per second of 1 to 8 texts for "
        f"{settings['seconds']:g} s each, attacked from the same machine. *health* is the slowest "
        "answer to `/health` over a new connection.",
        "",
    ]
    body = [
        [row["attack"] or "none", *(str(row[key]) for key in list(row)[1:])]  # as in `measured`
        for row in rows
    ]
    header = ["attack", "requests", "failed", "wrong", "p50 ms", "p99 ms", "health ms", "MiB"]
    return "\n".join([*lines, *table(header, body)]) + "\n"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving_attack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--library", type=Path, help="default: made of all-MiniLM-L6-v2, once")
    parser.add_argument("--rate", type=float, default=200.0, help="valid requests per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of every attack")
    parser.add_argument("--scale", type=float, default=1.0, help="of the attackers' connections")
    parser.add_argument("--workers", type=int, default=1, help="of `ibert serve`")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "sentences")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "serving-attack",
        help="path of the result without suffix; .md and .json are written",
    )
    parser.add_argument("--attack", nargs="+", choices=list(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    if options.attack:
        asyncio.run(_attack(options.port, options.attack, options.scale))
        return 0
    from ibert_tvm import Encoder
    from ibert_tvm.demo import find_model
    from ibert_tvm.encoder.prepared import Options, prepared_library

    from .machine import describe_machine, describe_software
    from .serving import _texts
    from .store import save

    model = "all-MiniLM-L6-v2" if options.library is None else options.library.name
    if options.library is None:
        os.environ["XDG_CACHE_HOME"] = str(options.cache.absolute() / "ibert")
        options.library = prepared_library(find_model().absolute(), Options())
    texts = _texts(options.cache)
    expected = Encoder(options.library).encode(texts)
    settings = {"model": model, "rate": options.rate, "seconds": options.seconds}
    result: dict[str, Any] = {
        "machine": describe_machine(),
        "software": describe_software(),
        "settings": {**settings, "scale": options.scale, "workers": options.workers},
        "rows": [],
    }
    command = [sys.executable, "-m", "ibert_tvm", "serve", str(options.library), "--port", "0"]
    with _started("ibert", [*command, "--workers", str(options.workers)]) as server:
        measured(server, texts, expected, [], options.rate, 2.0)  # warm
        for names in ([], *([name] for name in ATTACKS), list(ATTACKS)):
            row = measured(
                server, texts, expected, names, options.rate, options.seconds, options.scale
            )
            result["rows"].append(row)
            LOG.info("%s", row)
    document = options.output.with_name(options.output.name + ".json")
    save(result, document)
    report = options.output.with_name(options.output.name + ".md")
    report.write_text(_markdown(result), encoding="utf-8")
    LOG.info("wrote %s and %s", document, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())

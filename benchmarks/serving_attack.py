"""A server that is attacked while clients ask it for vectors at a steady rate.

    python -m benchmarks.serving_attack
    python -m benchmarks.serving_attack --library model.so --seconds 20 --rate 200

h2load (Debian: nghttp2-client) sends valid requests at that rate. One after the other, and in the
end together, the attacks below run beside them from a process of their own. Another client compares
answers with what the library gives, bit for bit, and ``/health`` is asked over new connections. The
exit code is 1 if a bound does not hold.

Attackers have the lowest priority: elsewhere they would not take this machine's processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from .process import ending_with_this
from .report import machine_lines, table
from .serving import LOG, ROOT, Load, Server, _ask, _right, _started, begin, parser_of, texts_of
from .store import save_with_text

__all__ = ["ATTACKS", "exceeded", "main", "measured"]

_HEAD = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
_LOADS, _CLIENTS = 8, 2
"""Processes of valid clients, each with a text of its own, and connections of each."""
_PAUSE = 0.1
_SLOWER, _LARGER, _HEALTH_MS = 3, 1.5, 1000
"""Bounds under attack: of the 99th percentile, of memory, and of ``/health``."""
_MEBIBYTE = 2**20
_GROUPS = (Path("/sys/fs/cgroup/cpu/ibert-attack"), Path("/sys/fs/cgroup/ibert-attack"))
"""Control groups of the attackers, where this user may make some: of version 1, and of version 2.
Within a group of usual priority even the lowest one runs to the end of its slice."""
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


def _lower_priority() -> None:
    """Run only where processors are idle, as far as this user may ask for that."""
    os.nice(19)
    with contextlib.suppress(OSError):  # Linux shares processors among sessions first
        os.setsid()
        Path("/proc/self/autogroup").write_text("19")
    for group in _GROUPS:
        with contextlib.suppress(OSError):
            group.mkdir(exist_ok=True)
            group.joinpath("cpu.idle").write_text("1")
            group.joinpath("cgroup.procs").write_text("0")


async def _attack(port: int, names: list[str], scale: float) -> None:
    _lower_priority()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - 256 if hard != resource.RLIM_INFINITY else 2**20
    attackers = []
    for name in names:
        use, count, pause = ATTACKS[name]
        attackers += [_again(port, use, pause) for _ in range(max(1, round(scale * count)))]
    await asyncio.gather(*attackers[:most])


class _Load:
    """Valid requests at a steady rate, which h2load sends: one text each, over kept connections."""

    def __init__(self, port: int, texts: list[str], rate: float, seconds: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="attack-")
        self._seconds = seconds
        self._running = [
            self._started(port, number, texts[number % len(texts)], rate / _LOADS)
            for number in range(_LOADS)
        ]

    def _started(self, port: int, number: int, text: str, rate: float) -> subprocess.Popen[str]:
        folder = Path(self._folder.name)
        body = folder / f"{number}.json"
        body.write_text(json.dumps({"input": text, "truncate": True}), encoding="utf-8")
        words = ["h2load", "--h1", "-t1", f"-c{_CLIENTS}", f"--rps={rate / _CLIENTS:g}"]
        words += [f"-D{self._seconds:g}", f"-d{body}", f"--log-file={folder / f'{number}.log'}"]
        words += ["-Hcontent-type: application/json", f"http://127.0.0.1:{port}/v1/embeddings"]
        return subprocess.Popen(ending_with_this(words), stdout=subprocess.PIPE, text=True)

    def result(self) -> tuple[int, int, list[float]]:
        """Requests, how many failed, and the latency in milliseconds of those that did not."""
        failed, milliseconds = 0, []
        for number, process in enumerate(self._running):
            said, _ = process.communicate(timeout=self._seconds + 60)
            # Those without an answer have no line in the log.
            lost = re.search(r"requests: .* (\d+) errored, (\d+) timeout", said)
            if process.returncode != 0 or lost is None:
                raise RuntimeError(f"h2load failed: {said.strip()}")
            failed += int(lost[1]) + int(lost[2])
            log = Path(self._folder.name) / f"{number}.log"
            for line in log.read_text(encoding="ascii").splitlines():
                _, status, microseconds = line.split("\t")
                if status == "200":
                    milliseconds.append(int(microseconds) / 1e3)
                else:
                    failed += 1
        self._folder.cleanup()
        return len(milliseconds) + failed, failed, milliseconds


async def _compared(port: int, texts: list[str], expected: np.ndarray, seen: Load) -> None:
    """Ask for texts one after the other, for ever, and compare their vectors."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    for place in itertools.cycle(range(len(texts))):
        body = json.dumps({"input": texts[place], "truncate": True}).encode()
        status, answer = await asyncio.wait_for(_ask(reader, writer, body), 60)
        seen.statuses[status] = seen.statuses.get(status, 0) + 1
        if status == 200:
            vector = np.array([json.loads(answer)["data"][0]["embedding"]], np.float32)
            seen.wrong += not _right(vector, expected[place : place + 1], exact=True)
        await asyncio.sleep(_PAUSE)


async def _health(port: int, seconds: list[float]) -> None:
    """Ask for the health over new connections, for ever; 60 s stand for no answer."""
    while True:
        began = time.perf_counter()
        answer = b""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.close()
        took = time.perf_counter() - began
        seconds.append(took if answer.startswith(b"HTTP/1.1 200") else 60.0)
        await asyncio.sleep(_PAUSE)


async def _watched(
    server: Server, texts: list[str], expected: np.ndarray, seconds: float
) -> tuple[Load, float, float]:
    """Compared answers, the slowest health in seconds, and the largest resident MiB."""
    seen, health, peak = Load(), [0.0], 0.0
    asking = [
        asyncio.ensure_future(_compared(server.port, texts, expected, seen)),
        asyncio.ensure_future(_health(server.port, health)),
    ]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        peak = max(peak, server.usage()[1])
        done, _ = await asyncio.wait(asking, timeout=_PAUSE, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()  # they end by an error alone
    for one in asking:
        one.cancel()
    return seen, max(health), peak


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
    attacker = None
    if names:
        words = [sys.executable, "-m", "benchmarks.serving_attack", "--attack", *names]
        words += ["--port", str(server.port), "--scale", str(scale)]
        attacker = subprocess.Popen(ending_with_this(words), cwd=ROOT)
        time.sleep(1.0)
    try:
        load = _Load(server.port, texts, rate, seconds)
        seen, health, peak = asyncio.run(_watched(server, texts, expected, seconds))
        requests, failed, milliseconds = load.result()
    finally:
        if attacker is not None:
            attacker.kill()
            attacker.wait()
    compared = sum(seen.statuses.values())
    return {
        "attack": " + ".join(names) if len(names) < len(ATTACKS) else "all together",
        "requests": requests + compared,
        "failed": failed + compared - seen.statuses.get(200, 0),
        "wrong": seen.wrong,
        "p50_ms": round(float(np.percentile(milliseconds or [np.nan], 50)), 1),
        "p99_ms": round(float(np.percentile(milliseconds or [np.nan], 99)), 1),
        "health_ms": round(1e3 * health),
        "resident_mib": round(peak),
    }


def exceeded(quiet: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """What a row under attack shows beyond the bounds, in words."""
    found = {
        "valid requests failed": row["failed"],
        "answers were wrong": row["wrong"],
        f"p99 over {_SLOWER} times the quiet one": row["p99_ms"] > _SLOWER * quiet["p99_ms"],
        f"/health over {_HEALTH_MS} ms": row["health_ms"] > _HEALTH_MS,
        f"memory over {_LARGER} times the quiet one": row["resident_mib"]
        > _LARGER * quiet["resident_mib"],
    }
    return [what for what, there in found.items() if there]


def _markdown(result: dict[str, Any]) -> str:
    settings = result["settings"]
    lines = [
        "# A server under attack",
        "",
        *machine_lines(result),
        "",
        f"{settings['model']}, {settings['rate']:g} valid requests of a text per second for "
        f"{settings['seconds']:g} s each, sent by h2load; attacked from the same machine, at the "
        f"lowest priority. *health* is the slowest answer to `/health` over a new connection. "
        f"Bounds: no valid request fails, p99 at most {_SLOWER} times and memory at most {_LARGER} "
        f"times those without attack, just before; health at most {_HEALTH_MS} ms.",
        "",
    ]
    body = [
        [row["attack"] or "none", *map(str, list(row.values())[1:-1]), ", ".join(row["exceeded"])]
        for row in result["rows"]
    ]
    header = ["attack", "requests", "failed", "wrong", "p50 ms", "p99 ms", "health ms", "MiB"]
    return "\n".join([*lines, *table([*header, "exceeded"], body)]) + "\n"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("serving_attack", __doc__, "serving-attack")
    parser.add_argument("--rate", type=float, default=200.0, help="valid requests per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of every attack")
    parser.add_argument("--scale", type=float, default=1.0, help="of the attackers' connections")
    parser.add_argument("--attack", nargs="+", choices=list(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    # One per processor, as docs/serving.md has it.
    parser.set_defaults(workers=len(os.sched_getaffinity(0)))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    if options.attack:
        asyncio.run(_attack(options.port, options.attack, options.scale))
        return 0
    if shutil.which("h2load") is None:
        LOG.error("h2load is missing: install nghttp2-client")
        return 2
    from ibert_tvm import Encoder

    result = begin(options, ("rate", "seconds", "scale", "workers"))
    texts = texts_of(options.cache)
    expected = Encoder(options.library).encode(texts)
    command = [sys.executable, "-m", "ibert_tvm", "serve", str(options.library), "--port", "0"]
    rows = result["rows"]
    with _started("ibert", [*command, "--workers", str(options.workers)]) as server:
        measured(server, texts, expected, [], options.rate, 2.0)  # warm
        for attack in (*([name] for name in ATTACKS), list(ATTACKS)):
            for names in ([], attack):  # in turns: machines are not as fast at all times
                row = measured(
                    server, texts, expected, names, options.rate, options.seconds, options.scale
                )
                rows.append({**row, "exceeded": exceeded(rows[-1] if names else row, row)})
                LOG.info("%s", rows[-1])
    for group in _GROUPS:
        with contextlib.suppress(OSError):
            group.rmdir()
    LOG.info("wrote %s and %s", *save_with_text(result, _markdown(result), options.output))
    return int(any(row["exceeded"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

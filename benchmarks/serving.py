"""A server under load: `ibert serve` beside sentence-transformers behind the same ASGI stack.

    python -m benchmarks.serving
    python -m benchmarks.serving --backends-python peers/bin/python --seconds 120
    python -m benchmarks.serving --peers ibert,ibert@7ec0376 --extra 0     # two commits

Clients ask for vectors of the held-out texts and of lines of documentation, one to eight texts a
request, each as soon as it has its answer. Every answer is compared: this project's with what the
library gives, bit for bit; others' by the direction of the vectors, which shows a swapped answer.
Servers take turns in alternating order, and are stopped while it is another one's turn. Then this
project's server is flooded beyond its limits, and its workers are killed under load.

Latency and throughput are those of the clock, so what else the machine does counts, the clients
too; processor time per text, of all processes of a server, hardly depends on it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from .measure import busy_seconds
from .peers import commit_of, place_of
from .peers.commit import Place
from .process import ending_with_this
from .store import new_result, save_with_text

__all__ = ["Load", "begin", "main", "parser_of", "requests_of", "texts_of"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")
PEERS = {
    "ibert": "`ibert serve`",
    "torch": "sentence-transformers, torch FP32",
    "onnx-int8": "sentence-transformers, ONNX INT8",
    "openvino-int8": "sentence-transformers, OpenVINO INT8",
}
_MAKE = """
import sys
from pathlib import Path
from ibert_tvm.encoder.prepared import Options, prepared_library
print(prepared_library(Path(sys.argv[1]), Options()))
"""
_SIZES = (1, 1, 1, 2, 4, 8)
"""Texts of a request, drawn from these: queries, and documents in small batches."""
_ALIKE = 0.8
"""Cosine with this project's vector below which an answer is another text's."""


def requests_of(texts: list[str], count: int) -> list[list[int]]:
    """Places of texts for each request; the same in every run."""
    chosen = random.Random(17)
    return [
        [chosen.randrange(len(texts)) for _ in range(chosen.choice(_SIZES))] for _ in range(count)
    ]


@dataclass
class Load:
    """What clients saw.

    Attributes
    ----------
    seconds : list of float
        Latency of every request that was answered with vectors.
    texts : int
        Texts of these.
    wrong : int
        Answers that are not those of their texts.
    statuses : dict of int to int
        How many answers had a status.
    """

    seconds: list[float] = field(default_factory=list)
    texts: int = 0
    wrong: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    def add(self, other: Load) -> None:
        """Take over what another turn saw."""
        self.seconds += other.seconds
        self.texts += other.texts
        self.wrong += other.wrong
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, bytes]:
    """One request over a connection that is kept."""
    writer.write(
        b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return int(head[9:12]), await reader.readexactly(int(length[1]) if length else 0)


async def _load(
    port: int,
    texts: list[str],
    expected: np.ndarray,
    requests: Iterator[list[int]],
    clients: int,
    seconds: float,
    exact: bool,
    seen: Load | None = None,
) -> Load:
    import orjson

    seen = Load() if seen is None else seen
    end = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        try:
            while time.perf_counter() < end:
                places = next(requests)
                body = orjson.dumps({"input": [texts[place] for place in places], "truncate": True})
                started = time.perf_counter()
                status, answer = await _ask(reader, writer, body)
                took = time.perf_counter() - started
                seen.statuses[status] = seen.statuses.get(status, 0) + 1
                if status != 200:
                    if status == 429:  # which closes the connection
                        writer.close()
                        reader, writer = await asyncio.open_connection(
                            "127.0.0.1", port, limit=2**24
                        )
                    continue
                data = orjson.loads(answer)["data"]
                vectors = np.array([item["embedding"] for item in data], np.float32)
                seen.seconds.append(took)
                seen.texts += len(places)
                seen.wrong += not _right(vectors, expected[places], exact)
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return seen


def _right(vectors: np.ndarray, expected: np.ndarray, exact: bool) -> bool:
    if exact:
        return np.array_equal(vectors, expected)
    if vectors.shape != expected.shape:
        return False
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    return bool(((vectors * expected).sum(axis=1) >= _ALIKE * lengths).all())


class Server:
    """A server in a process, stopped except while it is its turn."""

    def __init__(self, name: str, command: list[str], root: Path = ROOT) -> None:
        self.name, self.load = name, Load()
        self.processor = self.clock = 0.0
        self.peak_mib = 0.0
        self._log = Path(tempfile.mkstemp(prefix="serving-", suffix=".log")[1])
        with self._log.open("w") as stream:
            self._process = subprocess.Popen(
                ending_with_this(command),
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.port = self._wait_for_port(600)

    def _wait_for_port(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = self._log.read_text(errors="replace")
            found = re.search(r"serving .* on http://127\.0\.0\.1:(\d+)", text)
            if found:
                return int(found[1])
            if self._process.poll() is not None:
                raise RuntimeError((text.strip().splitlines() or ["no message"])[-1])
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not start in {seconds:.0f} s")

    def processes(self) -> list[psutil.Process]:
        """Its process, and those that compute for it."""
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def usage(self) -> tuple[float, float]:
        """Processor seconds and resident MiB."""
        used, resident = 0.0, 0
        for process in self.processes():
            try:
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            used += times.user + times.system
        return used, resident / 2**20

    def pause(self, stopped: bool) -> None:
        """Stop it, or let it go on."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self.pause(False)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.unlink(missing_ok=True)


def _place(options: argparse.Namespace, name: str) -> Place:
    """Where a server runs; checkouts of commits are those of `benchmarks.cpu`."""
    return place_of(name, options.cache.parent)


def _library(options: argparse.Namespace, name: str) -> Path:
    """The library that a commit's own sources make of the model, once."""
    if name == "ibert":
        return Path(options.library)
    place = _place(options, name)
    done = subprocess.run(
        [sys.executable, "-c", _MAKE, str(options.model)],
        cwd=place.root,
        env={**os.environ, "XDG_CACHE_HOME": str(place.cache / "ibert")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Path(done.stdout.splitlines()[-1])


def _command(options: argparse.Namespace, name: str, *more: object) -> list[str]:
    if name == "ibert" or commit_of(name):
        library = _library(options, name)
        words: list[object] = [sys.executable, "-m", "ibert_tvm", "serve", library]
        words += ["--port", 0, "--threads", options.threads, "--workers", options.workers, *more]
    else:
        python = sys.executable if name == "torch" else options.backends_python
        words = [python, "-m", "benchmarks.serving_peer", name, options.model, options.cache / name]
        words += [options.threads]
    return list(map(str, words))


def _turn(server: Server, drive: Any, seconds: float) -> None:
    server.pause(False)
    used, _ = server.usage()
    started = time.perf_counter()
    seen = asyncio.run(drive(server, seconds))
    server.clock += time.perf_counter() - started
    now, resident = server.usage()
    server.processor += now - used
    server.peak_mib = max(server.peak_mib, resident)
    server.load.add(seen)
    server.pause(True)


def _row(server: Server) -> dict[str, Any]:
    load = server.load
    return {
        "peer": server.name,
        "requests": len(load.seconds),
        "texts": load.texts,
        "wrong": load.wrong,
        "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
        "texts_per_second": round(load.texts / server.clock, 1),
        "p50_ms": round(1e3 * statistics.median(load.seconds), 1),
        "p99_ms": round(1e3 * float(np.percentile(load.seconds, 99)), 1),
        "processor_ms_per_text": round(1e3 * server.processor / load.texts, 3),
        "resident_mib": round(server.peak_mib),
    }


@contextmanager
def _started(name: str, command: list[str], root: Path = ROOT) -> Iterator[Server]:
    server = Server(name, command, root)
    try:
        yield server
    finally:
        server.close()


def _measure(options: argparse.Namespace, result: dict[str, Any]) -> None:
    from ibert_tvm import Encoder

    texts = texts_of(options.cache)
    expected = Encoder(options.library).encode(texts)
    requests = requests_of(texts, 100_000)

    def drive(exact: bool, clients: int) -> Any:
        places = iter(requests)
        return lambda server, seconds, seen=None: _load(
            server.port, texts, expected, places, clients, seconds, exact, seen
        )

    with ExitStack() as stack:
        servers = []
        for name in options.peers:
            try:
                server = stack.enter_context(
                    _started(name, _command(options, name), _place(options, name).root)
                )
            except RuntimeError as error:
                result["skipped"][name] = str(error)
                LOG.warning("%s: %s", name, error)
                continue
            asyncio.run(drive(name == "ibert", options.clients)(server, 2.0))  # warm
            server.pause(True)
            servers.append((server, drive(name == "ibert", options.clients)))
        rounds = max(1, round(options.seconds / options.turn))
        started, busy = time.perf_counter(), busy_seconds()
        for number in range(rounds):
            for server, driven in servers if number % 2 == 0 else reversed(servers):
                _turn(server, driven, options.turn)
        elapsed = time.perf_counter() - started
        own = sum(s.processor for s, _ in servers) + time.process_time()
        result["other_load_cores"] = round(max(0.0, (busy_seconds() - busy - own) / elapsed), 2)
        for server, _ in servers:
            result["rows"].append(row := _row(server))
            LOG.info("%s", row)
    if "ibert" in options.peers and options.extra:
        result["killed"] = _killed(options, drive(True, options.clients))
        result["flooded"] = _flooded(options, drive(True, 4 * options.clients))


def _killed(options: argparse.Namespace, driven: Any) -> dict[str, Any]:
    """Workers killed under load, one whenever answers have come since the one before."""
    with _started("ibert", _command(options, "ibert")) as server:
        seen, kills = Load(), 0

        async def kill() -> None:
            nonlocal kills
            answered = 0
            while True:
                await asyncio.sleep(options.extra / 10)
                workers = server.processes()[1:]
                if workers and len(seen.seconds) > answered + options.clients:
                    workers[0].kill()
                    kills, answered = kills + 1, len(seen.seconds)

        async def both() -> None:
            killing = asyncio.create_task(kill())
            await driven(server, options.extra, seen)
            killing.cancel()

        asyncio.run(both())
    return {
        "kills": kills,
        "requests": len(seen.seconds),
        "wrong": seen.wrong,
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "slowest_ms": round(1e3 * max(seen.seconds, default=0.0)),
    }


def _flooded(options: argparse.Namespace, driven: Any) -> dict[str, Any]:
    """Four times as many clients as before, and limits for less than the half of them."""
    limits = ("--max-requests", options.clients, "--queue-tokens", 4096)
    with _started("ibert", _command(options, "ibert", *limits)) as server:
        asyncio.run(driven(server, 2.0))
        _, before = server.usage()
        seen = asyncio.run(driven(server, options.extra))
        _, after = server.usage()
    return {
        "clients": 4 * options.clients,
        "wrong": seen.wrong,
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "resident_mib": [round(before), round(after)],
    }


def texts_of(cache: Path) -> list[str]:
    """The held-out texts and some lines of documentation, as long and short as these are."""
    from .texts import documentation, texts

    kept = cache / "serving-texts.json"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([*texts("held-out"), *documentation(1000)]), encoding="utf-8")
    return list(json.loads(kept.read_text(encoding="utf-8")))


def _markdown(result: dict[str, Any]) -> str:
    from .report import machine_lines, table

    settings = result["settings"]
    lines = [
        "# A server under load",
        "",
        *machine_lines(result),
        f"- Other processes kept {result['other_load_cores']:.1f} cores busy meanwhile: only "
        "ratios mean something, and processor time, which hardly depends on it.",
        "",
        f"{settings['model']}, {settings['clients']} clients on the same machine, "
        f"{settings['seconds']:g} s for each server in turns of {settings['turn']:g} s, 1 to 8 "
        "texts a request: held-out texts and lines of documentation. *ms* is processor time per "
        "text, of all processes of the server; *times* is what `ibert serve` is ahead by; "
        "*wrong* counts answers that are not those of their texts.",
        "",
    ]
    own = next((row for row in result["rows"] if row["peer"] == "ibert"), None)
    body = []
    for row in result["rows"]:
        speed, used = row["texts_per_second"], row["processor_ms_per_text"]
        ahead = ["–", "–"]
        if own is not None:
            ahead = [
                f"{own['texts_per_second'] / speed:.2f}",
                f"{used / own['processor_ms_per_text']:.2f}",
            ]
        others = sum(count for status, count in row["statuses"].items() if status != "200")
        body.append(
            [
                PEERS.get(row["peer"], row["peer"]), f"{speed:.0f}", ahead[0],
                f"{row['p50_ms']:.0f}",
                f"{row['p99_ms']:.0f}", f"{used:.2f}", ahead[1], str(row["resident_mib"]),
                f"{row['requests']}", str(others), str(row["wrong"]),
            ]
        )  # fmt: skip
    lines += table(
        ["", "texts per second", "times", "p50 ms", "p99 ms", "ms", "times", "MiB", "requests",
         "errors", "wrong"],
        body,
    )  # fmt: skip
    if killed := result.get("killed"):
        lines += [
            "",
            f"**Killed workers.** {killed['kills']} workers were killed under that load: "
            f"{_counted(killed['statuses'])}, {killed['wrong']} wrong; the slowest answer took "
            f"{killed['slowest_ms']} ms.",
        ]
    if flooded := result.get("flooded"):
        before, after = flooded["resident_mib"]
        lines += [
            "",
            f"**A flood.** {flooded['clients']} clients, and limits for "
            f"{settings['clients']} requests and 4096 tokens: {_counted(flooded['statuses'])}, "
            f"{flooded['wrong']} wrong; {before} MiB were resident before, {after} MiB after it.",
        ]
    left = [f"- `{name}`: {reason}" for name, reason in result["skipped"].items()]
    if left:
        lines += ["", "Not measured:", "", *left]
    return "\n".join(lines) + "\n"


def _counted(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count} answers of {status}" for status, count in statuses.items())


def begin(options: argparse.Namespace, settings: Sequence[str]) -> dict[str, Any]:
    """An empty result, with some of the options; makes the library where none is given."""
    from ibert_tvm.demo import find_model
    from ibert_tvm.encoder.prepared import Options, prepared_library

    given = options.model
    options.model = (given or find_model()).absolute()
    if options.library is None:
        os.environ["XDG_CACHE_HOME"] = str(options.cache / "ibert")
        options.library = prepared_library(options.model, Options())
    name = "all-MiniLM-L6-v2" if given is None else options.model.name
    return new_result([], {"model": name, **{one: getattr(options, one) for one in settings}})


def parser_of(module: str, text: str | None, output: str) -> argparse.ArgumentParser:
    """The options that benchmarks of servers share."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=1, help="of `ibert serve`")
    parser.add_argument("--library", type=Path, help="default: made of the model, once")
    parser.add_argument("--model", type=Path, help="model folder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--cache", type=_absolute, default=ROOT / "build" / "bench" / "sentences")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / output,
        help="path of the result without suffix; .md and .json are written",
    )
    return parser


def _absolute(word: str) -> Path:
    return Path(word).absolute()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("serving", __doc__, "serving")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0, help="for each server")
    parser.add_argument("--turn", type=float, default=10.0, help="seconds of a turn")
    parser.add_argument("--extra", type=float, default=20.0, help="seconds of flood and of kills")
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--backends-python", type=Path, help="Python with optimum's packages")
    options = parser.parse_args(arguments)
    options.peers = options.peers.split(",")
    unknown = [name for name in options.peers if name not in PEERS and not commit_of(name)]
    if unknown:
        parser.error(f"--peers: {unknown[0]!r} is not valid; known: {', '.join(PEERS)}")
    if min(options.clients, options.seconds, options.turn, options.threads) <= 0:
        parser.error("numbers must be positive")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    result = begin(options, ("clients", "seconds", "turn", "threads", "workers"))
    for name in [n for n in options.peers if n.endswith("int8")]:
        if options.backends_python is None or not (options.cache / name).is_dir():
            reason = "it needs --backends-python, and to be built by benchmarks.sentences"
            result["skipped"][name] = reason
            options.peers.remove(name)
    _measure(options, result)
    LOG.info("wrote %s and %s", *save_with_text(result, _markdown(result), options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())

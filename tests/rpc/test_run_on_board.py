"""`ibert run --rpc` and `ibert bench --rpc` through a server and a tracker on this machine."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm
from ibert_tvm.common.errors import TargetError, UsageError
from ibert_tvm.runtime import load_library
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.runtime.remote_engine import check_fits, load_remote
from ibert_tvm.targets.rpc import Address, Board, BoardError, find_server
from ibert_tvm.targets.rpc.address import _TRACKER_MAGIC
from tests.commands import Ibert
from tests.processes import PATIENCE, free_port, start_captured, wait_until, without_progress
from tests.snapshots import Messages

from .conftest import environment
from .servers import HOST, Servers, free_boards, running_tracker, started, wait_for
from .small_model import small_model

_IDS = np.array([[2, 4, 5, 3, 0], [2, 6, 3, 0, 0], [2, 7, 7, 7, 3]])
_MASK = (_IDS != 0).astype(int)


def test_outputs_are_those_of_this_machine(servers: Servers, library: Path) -> None:
    here = load_library(library, num_threads=1).run(_IDS, _MASK, dequantize=False)
    with load_remote(library, servers.tracker, num_threads=2) as loaded:
        first = loaded.run(_IDS, _MASK, dequantize=False)
        again = loaded.run(_IDS, _MASK, dequantize=False)  # inputs are sent, parameters are not
        longer = loaded.run(np.resize(_IDS, (3, 12)), dequantize=False)
        texts = loaded.run_texts(["hello world", "small"], dequantize=False)
        assert loaded.num_threads == 2
        assert loaded.engine.description.machine == os.uname().machine
    expected = load_library(library, num_threads=1).run(np.resize(_IDS, (3, 12)), dequantize=False)
    words = load_library(library, num_threads=1).run_texts(
        ["hello world", "small"], dequantize=False
    )
    for name, output in here.items():
        np.testing.assert_array_equal(first[name].values, output.values)
        np.testing.assert_array_equal(again[name].values, output.values)
        np.testing.assert_array_equal(longer[name].values, expected[name].values)
        np.testing.assert_array_equal(texts[name].values, words[name].values)


@pytest.mark.slow
def test_command_line_gives_the_same_file(
    ibert: Ibert, servers: Servers, library: Path, tmp_path: Path
) -> None:
    texts = ("--text", "hello world", "--text", "big small")
    here = ibert("run", library, *texts, "--integers", "-o", tmp_path / "here.npz")
    there = ibert("run", library, *texts, "--integers", "-o", tmp_path / "t.npz", *servers.rpc)
    assert (here.code, there.code) == (0, 0), there.stderr
    with np.load(tmp_path / "here.npz") as a, np.load(tmp_path / "t.npz") as b:
        assert sorted(a.files) == sorted(b.files)
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.slow
def test_a_server_alone_outlives_what_crashes(
    ibert: Ibert, library: Path, tmp_path: Path, messages: Messages
) -> None:
    port = free_port()
    script = Path(__file__).resolve().parents[2] / "examples" / "board_server.py"
    address = Address(HOST, port, "alone")
    where = ("--rpc", f"{HOST}:{port}")
    with started(
        sys.executable, str(script), "--host", HOST, "--port", str(port), "--key", "alone"
    ) as log:
        wait_for(address, log)
        words = ("run", library, "--text", "hello", "--json", *where)
        document = ibert(*words, "--key", "alone").document
        assert document["board"] == f"{HOST}:{port} (key 'alone')"
        assert document["outputs"]["hidden"]["dtype"] == "float32"
        wrong = ibert("run", library, "--text", "hello", *where)
        assert wrong.code == 4
        messages.check(wrong.stderr, port=port)
        truncated = tmp_path / "truncated.so"  # mapping it ends in a bus error
        truncated.write_bytes(library.read_bytes()[:5000])
        with Board(address, timeout=PATIENCE) as board:
            board.open()
            lost = _error(lambda: board.upload(truncated))
        assert lost == (
            "cannot load the library there\n"
            f"  where: board {address}\n"
            "  why: the connection was lost (Check failed: (code == RPCCode::kReturn) is false: "
            "code=kShutdown): the server stopped, or the program that it ran did\n"
            "  what to do: look at the server's output and start it again (python -m "
            "tvm.exec.rpc_server)"
        )
        assert ibert(*words, "--key", "alone").document == document


@pytest.mark.slow
def test_bench_times_on_the_board(ibert: Ibert, servers: Servers, library: Path) -> None:
    arguments = ("--batch", "4", "--seconds", "0.05", "--threads", "1", "--json")
    document = ibert("bench", library, *arguments, *servers.rpc).document
    (result,) = document["results"]
    assert (result["batch"], result["seq_len"], result["threads"]) == (4, 8, 1)
    assert result["runs"] >= 3
    assert 0 < result["min_ms"] <= result["median_ms"] <= result["p90_ms"]
    assert math.isclose(result["sequences_per_second"], 4 / result["median_ms"] * 1e3)
    assert document["machine"]["processor"] == f"board {servers.tracker}"
    assert document["ceilings"] == {
        "1": {"instruction": "", "gmacs": None, "missing": "boards are not asked for their limit"}
    }


@pytest.mark.slow
def test_bench_shows_a_table(ibert: Ibert, servers: Servers, library: Path) -> None:
    outcome = ibert("bench", library, "--batch", "4", "--seconds", "0.02", *servers.rpc)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert f"on board {servers.tracker}" in outcome.stdout
    assert re.search(r"4x8 +100%", outcome.stdout)


def test_layers_are_not_timed_on_a_board(ibert: Ibert, library: Path, messages: Messages) -> None:
    outcome = ibert("bench", library, "--per-layer", "--rpc", "localhost:1")
    assert outcome.code == 2
    messages.check(outcome.stderr)


@pytest.mark.parametrize(
    "options",
    [
        ("--rpc", "board"),
        ("--rpc", "board:99999"),
        ("--key", "rpi4"),
        ("--rpc", "board:9090", "--key", "two words"),
    ],
)
def test_wrong_options(
    ibert: Ibert, library: Path, options: tuple[str, ...], messages: Messages
) -> None:
    outcome = ibert("run", library, "--text", "hello", *options)
    assert (outcome.code, outcome.stdout) == (2, "")
    messages.check(outcome.stderr)


def test_nothing_listens(ibert: Ibert, library: Path, messages: Messages) -> None:
    port = free_port()
    outcome = ibert("run", library, "--text", "hello", "--rpc", f"{HOST}:{port}")
    assert outcome.code == 4
    messages.check(outcome.stderr, port=port)


def test_unknown_host() -> None:
    with pytest.raises(BoardError) as caught:
        find_server(Address("no-such-host.invalid", 9090), 60)
    assert caught.value.why == "the host name 'no-such-host.invalid' cannot be resolved"


def _error(call: Callable[[], object]) -> str:
    with pytest.raises(BoardError) as caught:
        call()
    return str(caught.value)


def test_keys_of_a_tracker(servers: Servers, messages: Messages) -> None:
    where = f"{HOST}:{servers.tracker_port}"
    with messages.raises(BoardError, where=where):
        find_server(Address(HOST, servers.tracker_port), 60)
    with messages.raises(BoardError, where=where):
        find_server(Address(HOST, servers.tracker_port, "rpi4"), 60)


@pytest.mark.slow
def test_a_tracker_without_boards() -> None:
    with running_tracker() as port:
        address = Address(HOST, port, "rpi4")
        answer = "why: the keys of its boards are: none\n"
        wait_until(lambda: answer in _error(lambda: find_server(address, 60)))


@contextmanager
def _odd_server(serve: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Something that is no RPC server, on a port of its own."""
    with socket.create_server((HOST, 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield Address(HOST, int(listener.getsockname()[1]), "x86")


def test_a_silent_server(messages: Messages) -> None:
    over = threading.Event()

    def silent(_connection: socket.socket) -> None:
        over.wait(PATIENCE)

    with _odd_server(silent) as address:
        with messages.raises(BoardError, address=address):
            find_server(address, 0.2)
        over.set()


@pytest.mark.slow
def test_something_that_is_no_server(library: Path, messages: Messages) -> None:
    def http(connection: socket.socket) -> None:
        # All of a greeting: who writes to a closed connection is told so instead.
        if connection.recv(4, socket.MSG_WAITALL) != struct.pack("<i", _TRACKER_MAGIC):
            (size,) = struct.unpack("<i", connection.recv(4, socket.MSG_WAITALL))
            connection.recv(size, socket.MSG_WAITALL)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        _odd_server(http) as address,
        Board(address, timeout=PATIENCE) as board,
        messages.raises(BoardError, address=address),
    ):
        board.open()


def test_a_tracker_that_talks_nonsense(messages: Messages) -> None:
    def odd(connection: socket.socket) -> None:
        connection.sendall(connection.recv(4, socket.MSG_WAITALL))
        connection.recv(100)
        connection.sendall(struct.pack("<i", 1 << 30))

    with _odd_server(odd) as address, messages.raises(BoardError, address=address):
        find_server(address, 60)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"[" * 100_000, "arrays and objects are nested too deep"),
        (b"9" * 6000, "a number has 6000 characters"),
        (b"[0, 3]", "it answered [0, 3]"),
        (b'[0, {"server_info": 3}]', "its list lacks 'int' object is not iterable"),
        (b"\xff", "it is not readable JSON: 'utf-8' codec can't decode"),
    ],
    ids=["nesting", "digits", "number", "list", "bytes"],
)
def test_a_tracker_whose_answer_is_hostile(answer: bytes, why: str) -> None:
    def odd(connection: socket.socket) -> None:
        connection.sendall(connection.recv(4, socket.MSG_WAITALL))
        connection.recv(100)
        connection.sendall(struct.pack("<i", len(answer)) + answer)

    with _odd_server(odd) as address:
        assert f"  why: {why}" in _error(lambda: find_server(address, 60))


@pytest.mark.slow
def test_a_board_that_does_not_fit(servers: Servers, library: Path, messages: Messages) -> None:
    """Another version of TVM, or features that are missing."""
    import tvm

    with load_remote(library, servers.tracker) as loaded:
        there = loaded.engine.description
    metadata = read_metadata(library)
    newer = replace(metadata, versions={**metadata.versions, "tvm": "0.99.1"})
    with messages.raises(TargetError, version=tvm.__version__):
        check_fits(newer, there)
    lacking = replace(metadata, required_cpu_features=("warp_drive",))
    features = ", ".join(sorted(there.features))
    with messages.raises(BoardError, machine=there.machine, features=features):
        check_fits(lacking, there)
    with messages.raises(BoardError):
        check_fits(metadata, replace(there, machine="riscv64"))
    check_fits(metadata, replace(there, tvm_version=""))  # a runtime that tells no version
    check_fits(metadata, there)


@pytest.mark.slow
def test_a_library_for_a_machine_without_tvm(tmp_path: Path, messages: Messages) -> None:
    from tests.arm.tools import board

    path = tmp_path / "board.so"
    target = board("rv64gc", run=False).name
    ibert_tvm.compile(small_model(), target=target, shapes=[(1, 8)]).export(path)
    with messages.raises(UsageError), load_remote(path, Address(HOST, 1)):
        pass


@pytest.mark.slow
def test_plain_functions_run_on_a_board(servers: Servers, tmp_path: Path) -> None:
    """In several shapes, one call after the other, and timed; what they refuse is an error."""
    path, model = tmp_path / "plain.so", small_model()
    shapes = [(1, 8), (4, 8), (1, 16)]
    ibert_tvm.compile(model, target="host", shapes=shapes, prefix="plain").export(path)
    longer = np.resize(_IDS, (1, 12))
    with load_library(path, num_threads=1) as library:
        wanted = [library.run(ids, dequantize=False) for ids in (_IDS, longer)]
    for threads in (1, 2):
        with load_remote(path, servers.tracker, num_threads=threads) as library:
            for ids, want in zip((_IDS, longer, _IDS), (*wanted, wanted[0]), strict=True):
                (got,) = library.run(ids, dequantize=False).values()
                np.testing.assert_array_equal(got.values, want["hidden"].values)
            board, function = library.engine.board, library.metadata.functions[0]
            arrays = [np.zeros(*kind) for kind in library.metadata.input_kinds(function)]
            assert min(board.time(function.name, arrays, 3, 0)) > 0
            arrays[0][:] = model.info.vocab_size  # `Library` would have refused it
            with pytest.raises(BoardError, match=r"refused a call \(status 9, docs/c-api.md\)"):
                board.run(function.name, arrays)


@pytest.mark.slow
def test_a_file_that_is_no_library(servers: Servers, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no ELF file" * 100)
    with Board(servers.tracker, timeout=PATIENCE) as board:
        board.open()
        head, _, tail = _error(lambda: board.upload(broken)).partition("refuses it: ")
    assert head == (
        "cannot load the library there\n"
        f"  where: board {servers.tracker}\n"
        "  why: the board's loader "
    )
    assert tail.endswith(
        "\n  what to do: compile it for the board's architecture, with the version of TVM that the "
        "board has; `ibert inspect` tells what it was compiled for"
    )


@pytest.mark.slow
def test_a_call_that_takes_too_long(
    ibert: Ibert, servers: Servers, library: Path, messages: Messages
) -> None:
    with load_remote(library, servers.tracker, num_threads=1) as loaded:
        board = loaded.engine.board
        board.timeout, board.lifetime = 0.5, 77
        arrays = [np.ones((4, 8), "int32")] * 3
        with messages.raises(BoardError, address=servers.tracker):
            board.time("main_b4_s8", arrays, 500_000, 0)
    # The board is usable again once it is through with that.
    assert ibert("run", library, "--text", "hello", *servers.rpc).code == 0


@pytest.mark.slow
def test_an_interrupt_leaves_the_board_usable(
    ibert: Ibert, servers: Servers, library: Path
) -> None:
    words = ["bench", str(library), "--batch", "4", "--seconds", "60", *servers.rpc]
    wait_until(lambda: free_boards(servers))  # no earlier caller has it
    process = start_captured([sys.executable, "-m", "ibert_tvm", *words], env=environment())
    wait_until(lambda: not free_boards(servers))
    time.sleep(2)  # the library is sent, or being timed
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, without_progress(stderr)) == (130, "error: interrupted\n")
    assert ibert("run", library, "--text", "hello", *servers.rpc).code == 0


@pytest.mark.slow
def test_a_terminated_server_leaves_nothing_on_its_port() -> None:
    port = free_port()
    script = Path(__file__).resolve().parents[2] / "examples" / "board_server.py"
    words = [sys.executable, str(script), "--host", HOST, "--port", str(port), "--key", "ended"]
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                words, env=environment(), stdout=log, stderr=log, start_new_session=True
            )
            try:
                wait_for(Address(HOST, port, "ended"), log)
                process.send_signal(number)
                assert process.wait(PATIENCE) == code
                wait_until(lambda: not _listens(port))
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_a_board_that_is_stopped_takes_its_timeout_only(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """What this machine takes to start its own process is no time that the board is given."""
    from ibert_tvm.targets.rpc import board as module
    from ibert_tvm.targets.rpc.address import Listener

    calls: list[tuple[str, float]] = []

    class Process:
        def __init__(self, *_: object) -> None:
            pass

        def call(self, operation: str, _values: object, wait: float, _end: float) -> None:
            calls.append((operation, wait))
            if operation == "open":
                raise TimeoutError

        def leave(self, _seconds: float) -> bool:
            return True

    monkeypatch.setattr(module, "ServiceProcess", Process)
    monkeypatch.setattr(module, "find_server", lambda *_: Listener("server", 1))
    with messages.raises(BoardError):
        Board(Address(HOST, 9090), 8.0, lifetime=600).open()
    assert calls == [("start", 60.0), ("open", 8.0)]


def test_a_library_of_another_architecture_is_called_that() -> None:
    """The loader of the board says of such a file, which is there, that there is none."""
    text = "dlopen: ibert-1.so: cannot open shared object file: No such file or directory"
    error = Board(Address(HOST, 9090))._explained("upload", "RuntimeError", text)
    assert error.why == (
        "the board's loader refuses it: it is for another architecture, or needs a library that "
        "the board lacks"
    )

"""Where a board is: a server's address, or a tracker's with a key.

What listens at an address is found out with plain sockets and timeouts, before TVM connects: its
own client waits without limit, and says little when nothing answers.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ibert_tvm.common.errors import DocumentError, TargetError, UsageError
from ibert_tvm.common.strict_json import JsonObject, decode, parse, shown

# What goes wrong between here and a board.


class BoardError(TargetError):
    """A board that cannot be reached, does not answer, or cannot run what it was given."""


# tvm/rpc/base.py
_TRACKER_MAGIC = 0x2F271
_SUMMARY, _SUCCESS = 6, 0
_LARGEST_MESSAGE, _MAX_DEPTH = 1 << 20, 16

SERVER_COMMAND = "python -m tvm.exec.rpc_server"
TRACKER_COMMAND = "python -m tvm.exec.rpc_tracker"


@dataclass(frozen=True)
class Address:
    """Where to connect.

    Attributes
    ----------
    host
        Name or number.
    port
        Of a server, or of a tracker.
    key
        Name of the kind of board; may be empty for a server that was started without one.
    """

    host: str
    port: int
    key: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + (f" (key {self.key!r})" if self.key else "")

    @classmethod
    def parse(cls, text: str, key: str) -> Address:
        """Read ``HOST:PORT``, with an IPv6 number in brackets, and a key, which may be empty.

        Raises
        ------
        UsageError
            If one of them has another form.
        """
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        digits = port.isascii() and port.isdigit()
        if not (host and colon and digits and 1 <= int(port) <= 65535):
            raise UsageError(
                f"bad value for --rpc: {text!r}",
                why="it is not HOST:PORT with a port from 1 to 65535",
                todo="give the address of a board's server or of a tracker, for example "
                "--rpc 192.168.1.7:9090",
            )
        if any(letter.isspace() for letter in key) or ":" in key:
            raise UsageError(
                f"bad value for --rpc-key: {key!r}",
                why="a key has no white space and no colon",
                todo="give the key that the board's server was started with",
            )
        return cls(host, int(port), key)


@dataclass(frozen=True)
class Listener:
    """What was found at an address.

    Attributes
    ----------
    kind
        ``"server"`` or ``"tracker"``.
    boards
        Boards that serve the address's key: those of the tracker, or the server itself.
    """

    kind: str
    boards: int


def find_server(address: Address, timeout: float) -> Listener:
    """Find out what listens at an address, and whether it has boards of the key.

    Parameters
    ----------
    address
        Where to look.
    timeout
        Seconds to wait for each answer.

    Raises
    ------
    BoardError
        If nothing listens there or nothing answers; if it is a tracker and has no board of the key.
    """
    with _connected(address, timeout) as connection:
        connection.sendall(struct.pack("<i", _TRACKER_MAGIC))
        try:
            answer = connection.recv(4)
        except TimeoutError as error:
            raise BoardError(
                what=f"the board at {address} does not answer",
                where="--rpc",
                why=f"something listens there, and said nothing for {timeout:g} s: a server that "
                "is serving somebody else, or hangs",
                todo="wait until it is free, or restart its server; a tracker lets several users "
                "share boards",
            ) from error
        except ConnectionResetError:
            answer = b""
        if len(answer) < 4 or struct.unpack("<i", answer)[0] != _TRACKER_MAGIC:
            return Listener("server", 1)  # it closes the connection of a tracker's client
        try:
            summary = _ask(connection, [_SUMMARY])
        except (OSError, ValueError) as error:
            raise _odd_tracker(address, str(error)) from error
    return Listener("tracker", _count_boards(address, summary))


@contextmanager
def _connected(address: Address, timeout: float) -> Iterator[socket.socket]:
    try:
        connection = socket.create_connection((address.host, address.port), timeout)
    except TimeoutError as error:
        why = f"no answer for {timeout:g} s"
        raise _unreachable(address, why, "check the address and firewalls") from error
    except ConnectionRefusedError as error:
        why = "the connection was refused: nothing listens on that port"
        todo = (
            f"start the server there ({SERVER_COMMAND} --host {address.host} --port {address.port})"
        )
        raise _unreachable(address, why, todo) from error
    except socket.gaierror as error:
        why = f"the host name {address.host!r} cannot be resolved"
        raise _unreachable(address, why, "check the name, or give its number") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise _unreachable(address, why, "check the address and the network") from error
    with connection:
        yield connection


def _unreachable(address: Address, why: str, todo: str) -> BoardError:
    return BoardError(
        what=f"cannot connect to {address}",
        where="--rpc",
        why=why,
        todo=f"{todo}; docs/rpc.md shows how boards are set up",
    )


def _odd_tracker(address: Address, why: str) -> BoardError:
    return BoardError(
        what=f"the tracker at {address} gives no list of its boards",
        where="--rpc",
        why=why or "the connection was closed",
        todo=f"restart it ({TRACKER_COMMAND}), with the version of TVM that is used here",
    )


def _ask(connection: socket.socket, message: list[int]) -> JsonObject:
    """One question to a tracker; ValueError where the answer is none."""
    data = json.dumps(message).encode()
    connection.sendall(struct.pack("<i", len(data)) + data)
    (size,) = struct.unpack("<i", _receive(connection, 4))
    if not 0 < size <= _LARGEST_MESSAGE:
        raise ValueError(f"it announced a message of {size} bytes")
    try:
        answer = parse(decode(_receive(connection, size)), _MAX_DEPTH)
    except DocumentError as error:
        raise ValueError(error.what) from None
    if not isinstance(answer, list) or len(answer) != 2 or answer[0] != _SUCCESS:
        raise ValueError(f"it answered {shown(answer)}")
    if not isinstance(answer[1], dict):
        raise ValueError(f"it answered {shown(answer)}")
    return answer[1]


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    end = time.monotonic() + (connection.gettimeout() or 0)
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part or time.monotonic() > end:
            raise ValueError("the connection was closed in the middle of a message")
        data += part
    return data


def _count_boards(address: Address, summary: JsonObject) -> int:
    try:
        # Servers call themselves "server:KEY".
        keys = [str(entry["key"]).partition(":")[2] for entry in summary["server_info"]]
    except (KeyError, TypeError) as error:
        raise _odd_tracker(address, f"its list lacks {error}") from error
    there = ", ".join(sorted(set(keys))) or "none"
    if not address.key:
        raise BoardError(
            what=f"no key was given for the tracker at {address}",
            where="--rpc-key",
            why="a tracker hands out boards by their key",
            todo=f"give --rpc-key; the keys of its boards are: {there}",
        )
    count = keys.count(address.key)
    if count == 0:
        raise BoardError(
            what=f"the tracker at {address} has no board of that key",
            where="--rpc-key",
            why=f"the keys of its boards are: {there}",
            todo=f"give one of these, or start a server with --tracker {address.host}:"
            f"{address.port} --key {address.key}",
        )
    return count

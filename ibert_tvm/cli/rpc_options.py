"""Options of commands that work on a board: ``--rpc``, ``--key``, ``--rpc-timeout``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..common.errors import UsageError
from .options import BOARD

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address

RpcOption = Annotated[
    str | None,
    Option(
        "--rpc",
        metavar="HOST:PORT",
        rich_help_panel=BOARD,
        help="Work on a board: its RPC server, or a tracker.",
    ),
]
KeyOption = Annotated[
    str | None,
    Option(
        "--key", rich_help_panel=BOARD, help="Key of the board; a tracker hands out boards by it."
    ),
]
RpcTimeoutOption = Annotated[
    float,
    Option(
        "--rpc-timeout",
        min=1.0,
        rich_help_panel=BOARD,
        help="Seconds to wait for an answer of the board.",
    ),
]


def parse_address(rpc: str | None, key: str | None) -> Address | None:
    """Parse what ``--rpc`` and ``--key`` were given; None if neither was.

    Parameters
    ----------
    rpc : str or None
        ``HOST:PORT``; an IPv6 number in brackets.
    key : str or None
        Key of the board.

    Returns
    -------
    ibert_tvm.targets.rpc.Address or None

    Raises
    ------
    UsageError
        If the address has another form, or there is a key without an address.
    """
    if rpc is None:
        if key is not None:
            raise UsageError("--key was given without --rpc", todo="give --rpc HOST:PORT as well")
        return None
    from ibert_tvm.targets.rpc import Address

    host, colon, port = rpc.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    digits = port.isascii() and port.isdigit()
    if not (host and colon and digits and 1 <= int(port) <= 65535):
        raise UsageError(
            f"bad value for --rpc: {rpc!r}",
            why="it is not HOST:PORT with a port from 1 to 65535",
            todo="give the address of a board's server or of a tracker, for example "
            "--rpc 192.168.1.7:9090",
        )
    name = key or ""
    if any(letter.isspace() for letter in name) or ":" in name:
        raise UsageError(
            f"bad value for --key: {name!r}",
            why="a key has no white space and no colon",
            todo="give the key that the board's server was started with",
        )
    return Address(host, int(port), name)

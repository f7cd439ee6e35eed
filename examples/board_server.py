"""TVM's RPC server for a board, which outlives programs that crash.

Copy this file to the board; it needs TVM there and nothing else:

    python board_server.py --host 192.168.1.7 --key rpi4
    python board_server.py --host 192.168.1.7 --key rpi4 --tracker 192.168.1.2:9190

The host is the board's address in a network that you trust: whoever can connect may run programs
here. By default only this machine can, as through `ssh -L 9090:localhost:9090 board`.

Every session runs in a process of its own. Where that crashes, the server that comes with TVM 0.27
accepts no other session, although it keeps running; this one goes on. While kernels are tuned,
programs are being tried, so crashes are not unusual.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import signal
import sys

_PR_SET_PDEATHSIG = 1


def survive_crashes() -> None:
    """Make the end of a session, whatever it was, the end of that session only.

    Runs in the process that listens, which is not to outlive the one that was started.
    """
    import os

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    from tvm.rpc import server

    serve = server._serving

    def serving(sock: object, *arguments: object) -> None:
        folder = os.getcwd()
        try:
            serve(sock, *arguments)
        except RuntimeError as error:
            server.logger.warning("the session crashed: %s", error)
            os.chdir(folder)
            sock.close()  # type: ignore[attr-defined]

    server._serving = serving


def main() -> None:
    """Run the server until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=9090, help="port to listen on")
    parser.add_argument("--key", default="", help="name of this kind of board")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="register with this tracker")
    options = parser.parse_args()
    if options.tracker and not options.key:
        parser.error("a tracker hands out boards by their key: give --key as well")
    tracker = None
    if options.tracker:
        host, _, port = options.tracker.rpartition(":")
        tracker = (host, int(port))
    logging.basicConfig(level=logging.INFO)
    from tvm import rpc

    server = rpc.Server(
        options.host,
        options.port,
        options.port + 1,
        key=options.key,
        tracker_addr=tracker,
        server_init_callback=survive_crashes,
    )
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        server.proc.join()
    finally:
        server.terminate()


if __name__ == "__main__":
    sys.exit(main())

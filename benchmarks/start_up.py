"""How long the package and the command line take to start, and a library to be loaded.

    python -m benchmarks.start_up
    python -m benchmarks.start_up --library model.so --rounds 10

Each run is a process of its own; printed are the smallest and the median wall-clock time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

__all__ = ["main"]

_LOAD = "import sys, ibert_tvm; ibert_tvm.load_library(sys.argv[1], num_threads=1)"


def main(argv: list[str] | None = None) -> None:
    """Measure each command and print a line of it."""
    parser = argparse.ArgumentParser(prog="benchmarks.start_up", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command")
    parser.add_argument("--library", help="a compiled library, to be loaded")
    options = parser.parse_args(argv)
    commands = {
        "python": ["-c", ""],
        "import ibert_tvm": ["-c", "import ibert_tvm"],
        "ibert --help": ["-m", "ibert_tvm", "--help"],
    }
    if options.library is not None:
        commands["load_library"] = ["-c", _LOAD, options.library]
    for name, arguments in commands.items():
        seconds = []
        for _ in range(options.rounds):
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        print(f"{name:18}{min(seconds):8.3f} s at best,{statistics.median(seconds):8.3f} s median")


if __name__ == "__main__":
    main()
